// Requests that do not parse, as a client of another language may send them: each gets an error
// that says so, is counted, and takes no other request with it. And requests that never come, since
// their client has gone: each is counted by what its client got.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::ClusterHarness;
using ::testing::HasSubstr;

// Sends raw messages, half-closes and keeps what comes.
class RawCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  enum class End { kHalfClose, kNone };
  RawCall(grpc::GenericStub* stub, const std::string& method, std::vector<std::string> messages,
          End end = End::kHalfClose, absl::Duration timeout = absl::Seconds(60))
      : messages_(std::move(messages)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    stub->PrepareBidiStreamingCall(&context_, method, {}, this);
    if (end == End::kHalfClose) WriteNext();
    StartRead(&answer_);
    StartCall();
  }
  grpc::Status Wait() {
    base::MutexLock lock(&mutex_);
    while (!done_) changed_.Wait(&mutex_);
    return status_;
  }
  void Cancel() { context_.TryCancel(); }
  // After Wait().
  const std::vector<std::string>& answers() const { return answers_; }

 private:
  void WriteNext() {
    if (written_ == messages_.size()) return StartWritesDone();
    const grpc::Slice slice(messages_[written_++]);
    message_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    grpc::Slice slice;
    ASSERT_TRUE(answer_.DumpToSingleSlice(&slice).ok());
    answers_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
    StartRead(&answer_);
  }
  void OnDone(const grpc::Status& status) override {
    base::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
    changed_.NotifyAll();
  }

  grpc::ClientContext context_;
  const std::vector<std::string> messages_;
  size_t written_ = 0;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
  std::vector<std::string> answers_;
  base::Mutex mutex_;
  base::CondVar changed_;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

class UnparsedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
    stub_ = std::make_unique<grpc::GenericStub>(rpc::MakeChannel(cluster_.gateway_address()));
  }
  bool Counted(const std::string& code, int count) const {
    const std::string name = absl::StrCat("lockstep_gateway_requests_total{code=\"", code, "\"}");
    return ClusterHarness::WaitUntil([&] { return cluster_.GatewayMetric(name) == count; });
  }

  ClusterHarness cluster_{{.workers = 1}};
  std::unique_ptr<grpc::GenericStub> stub_;
};

const google::protobuf::ServiceDescriptor* Service() {
  return v1::GenerateRequest::descriptor()->file()->FindServiceByName("RolloutService");
}

std::string MethodPath(const std::string& method) {
  return absl::StrCat("/", Service()->full_name(), "/", method);
}

TEST_F(UnparsedTest, EveryMethodOfOneRequestSaysThatItDoesNotParse) {
  for (int i = 0; i < Service()->method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *Service()->method(i);
    if (method.client_streaming()) continue;
    RawCall call(stub_.get(), MethodPath(method.name()), {"\xff"});
    const grpc::Status status = call.Wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method.name();
    EXPECT_THAT(status.error_message(),
                HasSubstr(absl::StrCat("does not parse as ", method.input_type()->full_name())));
    v1::ErrorDetail detail;
    ASSERT_TRUE(detail.ParseFromString(status.error_details()));
    EXPECT_EQ(detail.message(), status.error_message());
  }
  // Generate, GenerateStream and Score.
  EXPECT_TRUE(Counted("invalid_argument", 3));
}

TEST_F(UnparsedTest, ACallWithoutAMessageSaysThatItHasNone) {
  for (const char* method : {"Generate", "Score", "GenerateStream", "Tokenize"}) {
    RawCall call(stub_.get(), MethodPath(method), {});
    const grpc::Status status = call.Wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("came without its message, lockstep.v1."));
  }
  EXPECT_TRUE(Counted("invalid_argument", 3));
}

TEST_F(UnparsedTest, AClientThatLeavesBeforeItsMessageIsCountedByWhatItGot) {
  const auto leave = [&](absl::Duration timeout, bool cancels) {
    for (const char* method : {"Generate", "Score", "GenerateStream", "Tokenize"}) {
      RawCall call(stub_.get(), MethodPath(method), {}, RawCall::End::kNone, timeout);
      // One connection keeps the order of calls: this one has begun when the next is answered.
      RawCall next(stub_.get(), MethodPath("GetServerInfo"), {""});
      EXPECT_TRUE(next.Wait().ok());
      if (cancels) call.Cancel();
      EXPECT_EQ(call.Wait().error_code(),
                cancels ? grpc::StatusCode::CANCELLED : grpc::StatusCode::DEADLINE_EXCEEDED);
    }
  };
  leave(absl::Seconds(60), true);
  EXPECT_TRUE(Counted("cancelled", 3));
  leave(absl::Seconds(1), false);
  EXPECT_TRUE(Counted("deadline_exceeded", 3));
  EXPECT_TRUE(Counted("cancelled", 3));
  EXPECT_TRUE(Counted("invalid_argument", 0));
}

TEST_F(UnparsedTest, AMessageOfAStreamIsAnItemWithAnErrorAndThoseAfterItAreRead) {
  const auto prompt = [](const std::string& id) {
    v1::GenerateManyRequest message;
    message.mutable_generate()->set_request_id(id);
    message.mutable_generate()->mutable_prompt_ids()->add_ids(7);
    message.mutable_generate()->mutable_stop()->set_max_new_tokens(2);
    return message.SerializeAsString();
  };
  std::string not_utf8 = prompt("ab");
  not_utf8.replace(not_utf8.find("ab"), 2, "\xff\xfe");
  RawCall call(stub_.get(), MethodPath("GenerateMany"),
               {"\xff", prompt("one"), not_utf8, prompt("three"), "", prompt("five")});
  const grpc::Status status = call.Wait();
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<std::string> finished;
  std::vector<std::string> errors;
  for (const std::string& bytes : call.answers()) {
    v1::GenerateManyResponse answer;
    ASSERT_TRUE(answer.ParseFromString(bytes));
    if (answer.has_response()) {
      finished.push_back(answer.request_id());
    } else {
      EXPECT_EQ(answer.request_id(), "");
      EXPECT_EQ(rpc::FromErrorDetail(answer.error()).code(), absl::StatusCode::kInvalidArgument);
      errors.push_back(answer.error().message());
    }
  }
  EXPECT_THAT(finished, ::testing::UnorderedElementsAre("one", "three", "five"));
  EXPECT_THAT(errors, ::testing::UnorderedElementsAre(
                          HasSubstr("messages[0]: the message does not parse as lockstep.v1."),
                          HasSubstr("messages[2]: the message does not parse as lockstep.v1."),
                          "messages[4]: kind: not set"));
  EXPECT_TRUE(Counted("ok", 3));
  EXPECT_TRUE(Counted("invalid_argument", 3));
}

}  // namespace
}  // namespace lockstep
