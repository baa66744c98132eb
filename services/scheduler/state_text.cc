#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "services/scheduler/epoch_store.h"

namespace lockstep::scheduler {
namespace {

constexpr char kHeader[] = "lockstep scheduler state 1";

const char* PauseName(const std::optional<PauseMode>& pause) {
  if (!pause.has_value()) return "none";
  switch (*pause) {
    case PauseMode::kWait:
      return "wait";
    case PauseMode::kAbort:
      return "abort";
    case PauseMode::kKeep:
      return "keep";
  }
  return "none";
}

bool ParsePause(absl::string_view text, std::optional<PauseMode>* pause) {
  if (text == "none") return pause->reset(), true;
  for (const PauseMode mode : {PauseMode::kWait, PauseMode::kAbort, PauseMode::kKeep}) {
    if (text == PauseName(mode)) return *pause = mode, true;
  }
  return false;
}

std::string Checksum(absl::string_view body) {
  return base::Hasher().Bytes({body.data(), body.size()}).Finish().ToString();
}

bool ParseEpoch(absl::string_view text, base::Epoch* epoch) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return false;
  *epoch = base::Epoch(value);
  return true;
}

bool ParseField(absl::string_view text, Contract* contract) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  ContractField field;
  if (parts.size() != 2 || !absl::CUnescape(parts[1], &field.value)) return false;
  field.name = parts[0];
  contract->fields.push_back(std::move(field));
  return true;
}

// One line "key value" of the body. Contract lines come after "weight_version".
bool ParseLine(absl::string_view key, absl::string_view value, PersistentState* state) {
  if (key == "scheduler_epoch") return absl::SimpleAtoi(value, &state->scheduler_epoch);
  if (key == "admission_epoch") return ParseEpoch(value, &state->admission_epoch);
  if (key == "abort_epoch") return ParseEpoch(value, &state->abort_epoch);
  if (key == "pause") return ParsePause(value, &state->pause);
  if (key == "weight_version") {
    int64_t version = 0;
    if (!absl::SimpleAtoi(value, &version)) return false;
    state->contract.emplace().weight_version = base::WeightVersion(version);
    return true;
  }
  if (!state->contract.has_value()) return false;
  if (key == "weights_digest") return absl::CUnescape(value, &state->contract->weights_digest);
  if (key == "field") return ParseField(value, &*state->contract);
  return false;
}

}  // namespace

std::string EncodeState(const PersistentState& state) {
  std::string body =
      absl::StrCat(kHeader, "\nscheduler_epoch ", state.scheduler_epoch, "\nadmission_epoch ",
                   state.admission_epoch.value(), "\nabort_epoch ", state.abort_epoch.value(),
                   "\npause ", PauseName(state.pause), "\n");
  if (state.contract.has_value()) {
    absl::StrAppend(&body, "weight_version ", state.contract->weight_version.value(),
                    "\nweights_digest ", absl::CEscape(state.contract->weights_digest), "\n");
    for (const ContractField& field : state.contract->fields) {
      absl::StrAppend(&body, "field ", field.name, " ", absl::CEscape(field.value), "\n");
    }
  }
  return absl::StrCat(body, "checksum ", Checksum(body), "\n");
}

absl::StatusOr<PersistentState> DecodeState(const std::string& text) {
  const size_t checksum_begin = text.rfind("checksum ");
  if (checksum_begin == std::string::npos) {
    return absl::DataLossError("the checksum line is missing");
  }
  const std::string body = text.substr(0, checksum_begin);
  if (text.substr(checksum_begin) != absl::StrCat("checksum ", Checksum(body), "\n")) {
    return absl::DataLossError("the checksum does not match");
  }
  std::vector<std::string> lines = absl::StrSplit(body, '\n');
  lines.pop_back();
  if (lines.empty() || lines[0] != kHeader) {
    return absl::DataLossError(absl::StrCat("line 1 is not \"", kHeader, "\""));
  }
  PersistentState state;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    if (parts.size() != 2 || !ParseLine(parts[0], parts[1], &state)) {
      return absl::DataLossError(absl::StrCat("line ", i + 1, " is not understood"));
    }
  }
  return state;
}

}  // namespace lockstep::scheduler
