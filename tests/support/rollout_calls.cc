#include "tests/support/rollout_calls.h"

#include <utility>

namespace lockstep::testing {

using Async = RolloutStub::async_interface;

void GenerateCalls::Start(const v1::GenerateRequest& request, absl::Duration timeout) {
  size_t index = 0;
  {
    base::MutexLock lock(&state_->mutex);
    index = state_->answers.size();
    state_->answers.push_back(absl::UnknownError("running"));
  }
  handles_.push_back(
      rpc::CallUnary(stub_->async(), &Async::Generate, request, {.deadline = absl::Now() + timeout},
                     [state = state_, index](absl::StatusOr<v1::GenerateResponse> response) {
                       base::MutexLock lock(&state->mutex);
                       state->answers[index] = std::move(response);
                       ++state->finished;
                       state->changed.NotifyAll();
                     }));
}

std::vector<absl::StatusOr<v1::GenerateResponse>> GenerateCalls::Wait() {
  base::MutexLock lock(&state_->mutex);
  while (state_->finished < state_->answers.size()) state_->changed.Wait(&state_->mutex);
  return state_->answers;
}

size_t GenerateCalls::finished_count() const {
  base::MutexLock lock(&state_->mutex);
  return state_->finished;
}

std::vector<absl::StatusOr<v1::GenerateResponse>> GenerateAll(
    RolloutStub* stub, const std::vector<v1::GenerateRequest>& requests) {
  GenerateCalls calls(stub);
  for (const v1::GenerateRequest& request : requests) calls.Start(request);
  return calls.Wait();
}

std::vector<absl::StatusOr<v1::GenerateResponse>> GenerateQuietly(
    RolloutStub* stub, const std::vector<v1::GenerateRequest>& requests) {
  std::vector<absl::StatusOr<v1::GenerateResponse>> answers;
  for (v1::GenerateRequest request : requests) {
    request.set_disable_prefix_cache(true);
    answers.push_back(GenerateAll(stub, {request})[0]);
  }
  return answers;
}

ManyAnswers GenerateManyNow(RolloutStub* stub,
                            const std::vector<v1::GenerateManyRequest>& messages) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  const auto stream = stub->GenerateMany(&context);
  for (const v1::GenerateManyRequest& message : messages) {
    if (!stream->Write(message)) break;
  }
  stream->WritesDone();
  ManyAnswers answers;
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
    if (response.has_error()) {
      answers.errors.push_back(response.error());
    } else {
      answers.by_id[response.request_id()].MergeFrom(response);
    }
  }
  answers.status = stream->Finish();
  return answers;
}

std::string Bits(const v1::Sample& sample) {
  v1::Sample bits = sample;
  bits.clear_usage();
  return bits.SerializeAsString();
}

std::string Bits(const v1::GenerateResponse& response) {
  std::string bits;
  for (const v1::Sample& sample : response.samples()) bits += Bits(sample);
  return bits;
}

}  // namespace lockstep::testing
