// A first request from C++, with gRPC and the generated messages only.
//   example_generate 127.0.0.1:7100 '12+34*2='
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "lockstep/v1/rollout.grpc.pb.h"

namespace {

// Arrays of answers are little-endian bytes.
template <typename T>
std::vector<T> Read(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s HOST:PORT PROMPT\n", argv[0]);
    return 2;
  }
  const auto stub = lockstep::v1::RolloutService::NewStub(
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));

  lockstep::v1::GenerateRequest request;
  request.set_prompt_text(argv[2]);
  request.set_n(2);
  request.set_seed(1);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_stop()->set_max_new_tokens(48);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  lockstep::v1::GenerateResponse response;
  const grpc::Status status = stub->Generate(&context, request, &response);
  if (!status.ok()) {
    std::fprintf(stderr, "Generate: %s\n", status.error_message().c_str());
    return 1;
  }
  for (const lockstep::v1::Sample& sample : response.samples()) {
    std::printf("sample %lld: %s\n  ids     ", static_cast<long long>(sample.index()),
                sample.text().c_str());
    for (const uint32_t id : Read<uint32_t>(sample.token_ids())) std::printf(" %u", id);
    std::printf("\n  logprobs");
    for (const float value : Read<float>(sample.logprobs().raw())) std::printf(" %.9g", value);
    std::printf("\n  receipt  %s\n", sample.receipt().digest().c_str());
  }
  return 0;
}
