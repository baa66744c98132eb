#include "tests/process/stream_abuse.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/rpc/status_conversion.h"
#include "grpcpp/create_channel.h"
#include "lockstep/v1/rollout.grpc.pb.h"
#include "lockstep/v1/sequence.pb.h"
#include "services/cli/files.h"
#include "tests/support/tcp_proxy.h"

namespace lockstep::testing {
namespace {

constexpr int kPrompts = 50000;
constexpr int64_t kStreamSlots = 1024;        // Default of GatewayConfig.stream_slots.
constexpr int64_t kStreamWindowTokens = 256;  // Credit of a GenerateStream.
constexpr int64_t kHeldTimes = 3 * 2;         // See bytes_max().
constexpr int64_t kWindowBytes = 64 << 10;    // HTTP/2's, of one stream that is not read.
constexpr int64_t kTransportBytes = 8 << 20;  // Of one connection, its buffers included.
// Of a router for one gateway: in flight, behind it, and growing; of 1 MiB, in buffers that grow by
// doubling.
constexpr int64_t kFramesBytes = 3 * 2 * (1 << 20);
constexpr int kSlowReaders = 32;
constexpr int64_t kSlowTokens = 3500;

v1::GenerateRequest Request(int prompt_tokens, int64_t new_tokens, int top_count) {
  v1::GenerateRequest request;
  for (int id = 0; id < prompt_tokens; ++id) request.mutable_prompt_ids()->add_ids(id);
  request.set_seed(7);
  request.mutable_stop()->set_max_new_tokens(new_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_logprobs()->set_top_count(top_count);
  return request;
}

// A connection of its own, with gRPC's limits of messages.
std::unique_ptr<v1::RolloutService::Stub> NewClient(const std::string& address,
                                                    bool takes_all = false) {
  grpc::ChannelArguments arguments;
  if (takes_all) arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Left alone, the transport would widen its window to megabytes and read for its client.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return v1::RolloutService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

// What a worker holds of one token that is still under way: on its way to the router a result is as
// many deltas as it has tokens.
int64_t DeltaBytes() {
  v1::SequenceDelta delta;
  delta.set_token_ids(std::string(4, 'x'));
  delta.mutable_logprobs()->set_raw(std::string(4, 'x'));
  delta.mutable_logprobs()->set_scaled(std::string(4, 'x'));
  delta.set_weights_digest(std::string(32, 'x'));
  return static_cast<int64_t>(delta.SpaceUsedLong());
}

// Prompts of a stream that is never read, with or without a half-close after them.
class Unread final : public StreamAbuse {
 public:
  Unread(MemberCluster* cluster, int prompts, bool half_close)
      : half_close_(half_close), stub_(NewClient(cluster->member("gateway").address())) {
    const v1::GenerateRequest request = Request(200, kTokens, 0);
    const auto answer = cluster->client().Generate(request);
    LOCKSTEP_CHECK(answer.ok()) << answer.status();
    item_bytes_ = static_cast<int64_t>(request.ByteSizeLong() + answer->ByteSizeLong());
    stream_ = stub_->GenerateMany(&context_);
    writer_ = std::thread([this, request, prompts] {
      for (int i = 0; i < prompts; ++i) {
        v1::GenerateManyRequest item;
        *item.mutable_generate() = request;
        item.mutable_generate()->set_request_id(absl::StrCat(name(), "-", i));
        if (!stream_->Write(item)) return;
        ++written_;
      }
      if (half_close_) stream_->WritesDone();
    });
  }
  ~Unread() override { (void)Stop(); }

  absl::string_view name() const override { return half_close_ ? "half_close" : "unread_prompts"; }
  int64_t bytes_max() const override {
    return kStreamSlots * (kHeldTimes * item_bytes_ + kTokens * DeltaBytes()) + kTransportBytes;
  }
  int64_t router_bytes_max() const override {
    return kStreamSlots * kHeldTimes * item_bytes_ + kFramesBytes + kTransportBytes;
  }
  absl::Status Stop() override {
    if (!writer_.joinable()) return absl::OkStatus();
    if (!half_close_) context_.TryCancel();
    writer_.join();
    v1::GenerateManyResponse response;
    int answers = 0;
    while (stream_->Read(&response)) ++answers;
    const grpc::Status end = stream_->Finish();
    if (half_close_) {
      // Whoever reads in time gets everything.
      return end.ok() && answers != written_
                 ? absl::DataLossError(absl::StrCat(answers, " of ", written_.load(), " answers"))
                 : rpc::FromGrpcStatus(end);
    }
    // Flow control has to have held the writer back.
    return written_ < kPrompts ? absl::OkStatus()
                               : absl::InternalError("all prompts were taken from the client");
  }

 private:
  static constexpr int64_t kTokens = 200;

  const bool half_close_;
  const std::unique_ptr<v1::RolloutService::Stub> stub_;
  int64_t item_bytes_ = 0;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::GenerateManyRequest, v1::GenerateManyResponse>>
      stream_;
  std::atomic<int> written_ = 0;
  std::thread writer_;
};

class SlowReaders final : public StreamAbuse {
 public:
  explicit SlowReaders(MemberCluster* cluster)
      : proxy_(TcpProxy::Start(cluster->member("gateway").port).value()) {
    const v1::GenerateRequest request = Request(16, kSlowTokens, 64);
    for (int i = 0; i < kSlowReaders; ++i) {
      readers_.emplace_back([this, request] { Read(request); });
    }
    // A connection that is not there yet would not come to be at this rate.
    while (begun_ < kSlowReaders) std::this_thread::yield();
    proxy_->SetTrickle(true);
  }
  ~SlowReaders() override { (void)Stop(); }

  absl::string_view name() const override { return "slow_readers"; }
  int64_t bytes_max() const override {
    return kSlowReaders * kHeldTimes * (kStreamWindowTokens * kTokenBytes + kWindowBytes) +
           kTransportBytes;
  }
  absl::Status Stop() override {
    proxy_->SetTrickle(false);
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
    return incomplete_ == 0 ? absl::OkStatus()
                            : absl::DataLossError(
                                  absl::StrCat(incomplete_.load(), " streams did not end whole"));
  }

 private:
  // Top ids and logprobs, id, raw and scaled.
  static constexpr int64_t kTokenBytes = 64 * 8 + 12;

  void Read(const v1::GenerateRequest& request) {
    const auto stub = NewClient(absl::StrCat("127.0.0.1:", proxy_->port()));
    grpc::ClientContext context;
    const auto stream = stub->GenerateStream(&context, request);
    v1::GenerateDelta delta;
    size_t bytes = 0;
    for (int64_t deltas = 0; stream->Read(&delta); ++deltas) {
      if (deltas == 0) ++begun_;
      bytes += delta.token_ids().size();
    }
    if (!stream->Finish().ok() || bytes != kSlowTokens * sizeof(uint32_t)) ++incomplete_;
  }

  const std::unique_ptr<TcpProxy> proxy_;
  std::atomic<int> begun_ = 0;
  std::atomic<int> incomplete_ = 0;
  std::vector<std::thread> readers_;
};

class LargeAnswers final : public StreamAbuse {
 public:
  LargeAnswers(MemberCluster* cluster, bool takes_all)
      : takes_all_(takes_all),
        stub_(NewClient(cluster->member("gateway").address(), takes_all)),
        caller_([this] { Call(); }) {}
  ~LargeAnswers() override { (void)Stop(); }

  absl::string_view name() const override {
    return takes_all_ ? "large_answers_taken" : "large_answers";
  }
  int64_t bytes_max() const override { return kHeldTimes * kAnswerBytes + kTransportBytes; }
  absl::Status Stop() override {
    if (!caller_.joinable()) return status_;
    stopping_ = true;
    caller_.join();
    return status_;
  }

 private:
  static constexpr int64_t kSamples = 64;
  static constexpr int64_t kTokens = 600;
  static constexpr int64_t kAnswerBytes = kSamples * kTokens * (64 * 8 + 12);

  void Call() {
    v1::GenerateRequest request = Request(1, kTokens, 64);
    request.set_n(kSamples);
    while (!stopping_) {
      grpc::ClientContext context;
      v1::GenerateResponse response;
      const grpc::Status status = stub_->Generate(&context, request, &response);
      if (takes_all_ && status.ok()) continue;
      // gRPC's own limit, by its number.
      if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED ||
          status.error_message().find("4194304") == std::string::npos) {
        status_ = absl::InternalError(
            absl::StrCat("the error does not name the limit: ", status.error_message()));
        return;
      }
    }
  }

  const bool takes_all_;
  const std::unique_ptr<v1::RolloutService::Stub> stub_;
  std::atomic<bool> stopping_ = false;
  absl::Status status_;  // The caller's until it is joined.
  std::thread caller_;
};

class BusyThreads final : public StreamAbuse {
 public:
  BusyThreads() {
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
      threads_.emplace_back([this] {
        while (!stopping_) continue;
      });
    }
  }
  ~BusyThreads() override { (void)Stop(); }

  absl::string_view name() const override { return "busy_threads"; }
  int64_t bytes_max() const override { return 0; }
  absl::Status Stop() override {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return absl::OkStatus();
  }

 private:
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<StreamAbuse> StartUnreadPrompts(MemberCluster* cluster) {
  return std::make_unique<Unread>(cluster, kPrompts, /*half_close=*/false);
}

std::unique_ptr<StreamAbuse> StartHalfClose(MemberCluster* cluster) {
  return std::make_unique<Unread>(cluster, kStreamSlots, /*half_close=*/true);
}

std::unique_ptr<StreamAbuse> StartSlowReaders(MemberCluster* cluster) {
  return std::make_unique<SlowReaders>(cluster);
}

std::unique_ptr<StreamAbuse> StartLargeAnswers(MemberCluster* cluster) {
  return std::make_unique<LargeAnswers>(cluster, /*takes_all=*/false);
}

std::unique_ptr<StreamAbuse> StartLargeAnswersThatAreTaken(MemberCluster* cluster) {
  return std::make_unique<LargeAnswers>(cluster, /*takes_all=*/true);
}

std::unique_ptr<StreamAbuse> StartBusyThreads(MemberCluster*) {
  return std::make_unique<BusyThreads>();
}

std::map<std::string, int64_t> MemoryOf(const MemberCluster& cluster) {
  std::map<std::string, int64_t> bytes;
  for (const char* name : {"gateway", "router", "scheduler", "worker-0", "worker-1"}) {
    const auto text = cli::ReadFile(absl::StrCat("/proc/", cluster.PidOf(name), "/status"));
    LOCKSTEP_CHECK(text.ok()) << text.status();
    const size_t begin = text->find("RssAnon:") + 8;
    int64_t kib = 0;
    LOCKSTEP_CHECK(absl::SimpleAtoi(text->substr(begin, text->find("kB", begin) - begin), &kib));
    bytes[name] = kib << 10;
  }
  return bytes;
}

}  // namespace lockstep::testing
