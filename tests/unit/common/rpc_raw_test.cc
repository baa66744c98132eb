#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

// What a peer sees that does not use our client: raw bytes on any method.
namespace lockstep::rpc {
namespace {

// Sends one raw message (or none), half-closes and waits for the status.
class RawCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RawCall(grpc::GenericStub* stub, const std::string& method, const std::string* bytes) {
    stub->PrepareBidiStreamingCall(&context_, method, {}, this);
    if (bytes == nullptr) {
      StartWritesDone();
    } else {
      const grpc::Slice slice(*bytes);
      message_ = grpc::ByteBuffer(&slice, 1);
      StartWriteLast(&message_, {});
    }
    StartRead(&answer_);
    StartCall();
  }
  absl::Status Wait() {
    EXPECT_TRUE(done_.WaitFor(1));
    return status_;
  }
  // Of the status, as they came.
  const std::string& details() const { return details_; }

 private:
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&answer_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = FromGrpcStatus(status);
    details_ = status.error_details();
    done_.Add(1);
  }

  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
  absl::Status status_;
  std::string details_;
  WaitableCount done_;
};

class RawTest : public EchoFixture {
 protected:
  absl::Status Send(const std::string& method, const std::string* bytes) {
    grpc::GenericStub stub(MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
    RawCall call(&stub, method, bytes);
    return call.Wait();
  }
  const std::string garbage_ = "\xFF\xFF\xFF\xFF";
};

TEST_F(RawTest, ReflectionIsServed) {
  EXPECT_TRUE(Send("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", nullptr).ok());
}

TEST_F(RawTest, UnknownMethodIsUnimplementedAndItsErrorHasDetails) {
  for (const char* method : {"/lockstep.test.EchoService/Nothing", "/lockstep.test.Nobody/Unary"}) {
    for (const std::string* bytes : {static_cast<const std::string*>(nullptr), &garbage_}) {
      grpc::GenericStub stub(MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
      RawCall call(&stub, method, bytes);
      const absl::Status status = call.Wait();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      EXPECT_EQ(status.message(), absl::StrCat(method, ": not a method of this server"));
      v1::ErrorDetail detail;
      ASSERT_TRUE(detail.ParseFromString(call.details()));
      EXPECT_EQ(detail.code(), static_cast<int>(status.code()));
      EXPECT_EQ(detail.message(), status.message());
    }
  }
}

TEST_F(RawTest, RequestThatDoesNotParseNeverReachesAUnaryHandler) {
  EXPECT_FALSE(Send("/lockstep.test.EchoService/Unary", &garbage_).ok());
  EXPECT_EQ(service_.tally.started.value(), 0);
}

// Documented in handler_base.h: gRPC does not tell a broken message from the end of the stream.
TEST_F(RawTest, MessageThatDoesNotParseEndsTheReadsOfAStream) {
  service_.client_stream.start = [](ClientStreamEcho& handler) { handler.RequestRead(); };
  service_.client_stream.half_close = [](ClientStreamEcho& handler) {
    handler.Finish(absl::InvalidArgumentError("ended without a commit"));
  };
  EXPECT_EQ(Send("/lockstep.test.EchoService/ClientStream", &garbage_).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(service_.tally.messages.value(), 0);
  EXPECT_EQ(service_.tally.half_closes.value(), 1);
}

}  // namespace
}  // namespace lockstep::rpc
