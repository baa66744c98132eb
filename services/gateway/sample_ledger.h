#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lockstep/v1/rollout.pb.h"
#include "lockstep/v1/sequence.pb.h"
#include "services/gateway/logprob_runs.h"
#include "services/gateway/model_limits.h"
#include "services/gateway/request_validator.h"
#include "services/text/text_assembler.h"

namespace lockstep::gateway {

// What a request's samples have in common. Immutable.
struct RequestContext {
  ValidRequest request;
  std::shared_ptr<const ModelLimits> limits;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // Null: no text.
  std::shared_ptr<const text::StopSet> stops;        // Set with a tokenizer.
  std::string trace_id;                              // Empty unless the client sent one.
};

// The ledger of record of one sample: results in order of absolute index, whoever computed them and
// however often they were sent. Ids that the request gave come again as results; those that have
// not when the sample ends are added to it as unscored. A copy is another sample that has come as
// far. Not thread-safe.
class SampleLedger {
 public:
  SampleLedger(std::shared_ptr<const RequestContext> context, int64_t sample);

  // Takes over what is new in `delta`. DATA_LOSS: bits that came twice differ. INTERNAL: a gap, a
  // wrong size, an end that our own stop matcher does not see, or one before all given ids came.
  absl::Status Apply(const v1::SequenceDelta& delta);
  // Ends the sample from this side; does nothing after its end.
  void End(v1::FinishReason reason, const absl::Status& error = absl::OkStatus());

  bool ended() const { return ended_; }
  // Tokens that workers brought: all but the unscored ones.
  int64_t token_count() const { return token_count_; }
  int64_t prompt_position_count() const { return prompt_count_; }
  const std::string& text() const { return sample_.text(); }
  int64_t index() const { return sample_.index(); }

  // The sequence as it has to be run from here: also after a failover, which `resumptions` counts.
  v1::SequenceSpec Spec() const;
  void CountResumption() { ++resumptions_; }

  // Tokens [token_begin, …), prompt logprobs [prompt_begin, …) and text [text_begin, …) that came
  // since a subscriber was last told; positions count from 0.
  v1::GenerateDelta Since(int64_t token_begin, int64_t prompt_begin, size_t text_begin) const;
  // The whole sample, once ended.
  const v1::Sample& sample() const { return sample_; }
  // OK unless it ended with FINISH_REASON_ERROR.
  absl::Status error() const;

 private:
  absl::Status ApplyTokens(const v1::SequenceDelta& delta);
  absl::Status ApplyPrompt(const v1::SequenceDelta& delta);
  absl::Status ApplyEnd(const v1::SequenceEnd& end);
  absl::Status CheckStop(const v1::SequenceEnd& end) const;
  void FeedText(int64_t first_new_token);
  void Finish();
  void KeepGivenIds();
  void AddVersion(const v1::SequenceDelta& delta, int64_t added);

  const std::shared_ptr<const RequestContext> context_;
  const LogprobWidths widths_;
  const LogprobWidths prompt_widths_;
  v1::Sample sample_;
  std::optional<text::TextAssembler> assembler_;  // Until the sample ends; none without text.
  std::vector<std::string> weights_digests_;      // Parallel to sample_.weight_versions().
  int64_t token_count_ = 0;
  int64_t prompt_count_ = 0;
  int64_t resumptions_ = 0;
  bool ended_ = false;
};

}  // namespace lockstep::gateway
