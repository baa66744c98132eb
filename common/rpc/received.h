#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace lockstep::rpc {

// A message that is read whether it parses or not. gRPC answers a request that does not parse by
// itself, without a word, and lets one in a stream look like the end of the stream, so a handler
// that owes its client an error for it reads Received<Message> in place of Message.
template <typename Message>
struct Received {
  Message message;  // Of no use unless it parses.
  bool parses = false;
  bool came = false;  // False where the client has gone, or half-closed, before it had sent one.
};

// What to answer to a message that does not parse.
template <typename Message>
absl::Status DoesNotParse() {
  return absl::InvalidArgumentError(
      absl::StrCat("the message does not parse as ", Message::descriptor()->full_name(),
                   ": it is damaged or of another type, or a string in it is not UTF-8"));
}

// What to answer where no message came.
template <typename Message>
absl::Status DidNotCome() {
  return absl::InvalidArgumentError(
      absl::StrCat("the call came without its message, ", Message::descriptor()->full_name()));
}

}  // namespace lockstep::rpc

// How gRPC reads it.
template <typename Message>
class grpc::SerializationTraits<lockstep::rpc::Received<Message>> {
 public:
  static Status Deserialize(ByteBuffer* buffer, lockstep::rpc::Received<Message>* received) {
    received->came = buffer->Valid();
    received->parses = SerializationTraits<Message>::Deserialize(buffer, &received->message).ok();
    return Status::OK;
  }
};
