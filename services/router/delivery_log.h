#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/router/sequence_types.h"

namespace lockstep::router {

// What became known of one sequence, by absolute position: the one place that decides what a
// gateway may see. Results come in order within an attempt; a new attempt may say again what an old
// one said, and then has to say it with the same bits.
//
//   DeliveryLog log(*spec);
//   auto accepted = log.Accept(&delta);  // what was delivered before is cut from `delta`
class DeliveryLog {
 public:
  explicit DeliveryLog(const SequenceSpec& spec);

  struct Accepted {
    int64_t new_tokens = 0;  // Output positions left in the delta.
    int64_t new_prompt_positions = 0;
    int64_t duplicate_positions = 0;  // Cut from it.
  };
  // Takes the delta's results, and leaves in it what nobody has seen yet. On an error the log is as
  // before:
  //   kInvalidArgument  arrays that do not fit the positions
  //   kOutOfRange       a gap, or prompt positions that were not asked for
  //   kDataLoss         other bits than before: the promise is broken
  absl::StatusOr<Accepted> Accept(SequenceDelta* delta);

  // All output tokens that are known: those given with the request, then those generated.
  const std::vector<uint32_t>& output_ids() const { return output_ids_; }
  // Output positions below this went to the gateway.
  int64_t delivered_outputs() const { return next_output_; }
  // First prompt position still to be delivered; 0 when none is.
  int64_t deliver_prompt_from() const { return next_prompt_ < prompt_end_ ? next_prompt_ : 0; }

 private:
  absl::Status CompareOutputs(SequenceDelta* delta, int64_t count) const;
  absl::Status ComparePrompt(SequenceDelta* delta) const;
  void TakeOutputs(SequenceDelta* delta, int64_t count, int64_t cut);
  void TakePrompt(SequenceDelta* delta, int64_t cut);

  std::vector<uint32_t> output_ids_;
  // One digest of all arrays a position, for [begin, next).
  std::vector<uint32_t> output_digests_;
  std::vector<uint32_t> prompt_digests_;
  const int64_t output_begin_;
  const int64_t prompt_begin_;
  const int64_t prompt_end_;
  int64_t next_output_;
  int64_t next_prompt_;
};

}  // namespace lockstep::router
