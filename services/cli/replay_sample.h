#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/cli/record.h"

// One sample of a record, asked for again and compared. Pure.
namespace lockstep::cli {

// Asks for `sample` alone: the record's prompt as ids and the sample's own sub-seed decide
// everything. Of a sample that was cut short, no more than was there.
v1::GenerateRequest ReplayRequest(const Record& record, const v1::Sample& sample);

struct Replayed {
  int64_t positions = 0;  // Compared, generated and of the prompt. 0: nothing is proved.
  bool prefix = false;    // The record's sample was cut short.
  // Of two whole samples; a prefix has another receipt than its whole.
  bool same_receipt = true;
  std::optional<std::string> difference;

  bool held() const { return positions > 0 && !difference.has_value() && same_receipt; }
  // For people: "equal in every bit; receipt equal".
  std::string Text() const;
};

// Compares with the answer to ReplayRequest(). An error when the answer itself was cut short: that
// says nothing about bits.
absl::StatusOr<Replayed> CompareReplay(const v1::Sample& expected,
                                       const absl::StatusOr<v1::GenerateResponse>& answer);

}  // namespace lockstep::cli
