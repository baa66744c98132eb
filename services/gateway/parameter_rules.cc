#include "services/gateway/parameter_rules.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"
#include "services/gateway/request_validator.h"

namespace lockstep::gateway {
namespace {

constexpr float kTemperatureMin = 1e-6f;
constexpr float kTemperatureMax = 1e6f;
constexpr float kPenaltyMax = 100;
constexpr float kRepetitionMin = 1 / kPenaltyMax;
constexpr int kLogitBiasMax = 1024;
// No overflow, also after the strongest penalty and the lowest temperature.
constexpr float kLogitBiasValueMax = 1e30f;
constexpr int kStopIdsMax = 256;
constexpr int kStopStringsMax = 32;
constexpr size_t kStopStringBytesMax = 1024;
constexpr int64_t kTopLogprobsMax = 64;
constexpr int kChosenIdsMax = 1024;

// Shows all digits: a value next to the limit must not look like the limit.
template <typename T>
absl::Status OutOfRange(absl::string_view field, T value, absl::string_view range) {
  std::array<char, 32> text;
  char* const end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", std::string(text.data(), end), " is outside ", range));
}

absl::Status TooMany(absl::string_view field, int64_t count, int64_t limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", count, " entries, at most ", limit));
}

void FillUnset(v1::SamplingParams* s) {
  if (!s->has_temperature()) s->set_temperature(1);
  if (!s->has_top_k()) s->set_top_k(0);
  if (!s->has_top_p()) s->set_top_p(1);
  if (!s->has_min_p()) s->set_min_p(0);
  if (!s->has_repetition_penalty()) s->set_repetition_penalty(1);
  if (!s->has_frequency_penalty()) s->set_frequency_penalty(0);
  if (!s->has_presence_penalty()) s->set_presence_penalty(0);
}

// All but the biases. Comparisons are written so that NaN fails them.
absl::Status CheckRanges(const v1::SamplingParams& s) {
  const float t = s.temperature();
  if (!(t == 0 || (t >= kTemperatureMin && t <= kTemperatureMax))) {
    return OutOfRange("sampling.temperature", t, "{0} and [1e-06, 1e+06]");
  }
  if (s.top_k() < -1) return OutOfRange("sampling.top_k", s.top_k(), "[-1, 2^63 - 1]");
  if (!(s.top_p() > 0 && s.top_p() <= 1)) {
    return OutOfRange("sampling.top_p", s.top_p(), "(0, 1]");
  }
  if (!(s.min_p() >= 0 && s.min_p() <= 1)) {
    return OutOfRange("sampling.min_p", s.min_p(), "[0, 1]");
  }
  if (!(s.repetition_penalty() >= kRepetitionMin && s.repetition_penalty() <= kPenaltyMax)) {
    return OutOfRange("sampling.repetition_penalty", s.repetition_penalty(), "[0.01, 100]");
  }
  if (!(std::fabs(s.frequency_penalty()) <= kPenaltyMax)) {
    return OutOfRange("sampling.frequency_penalty", s.frequency_penalty(), "[-100, 100]");
  }
  if (!(std::fabs(s.presence_penalty()) <= kPenaltyMax)) {
    return OutOfRange("sampling.presence_penalty", s.presence_penalty(), "[-100, 100]");
  }
  return absl::OkStatus();
}

// Every float in it, whatever its name.
void MakeZerosPositive(google::protobuf::Message* message) {
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  const google::protobuf::Reflection& fields = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type.field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int j = 0; j < fields.FieldSize(*message, field); ++j) {
        MakeZerosPositive(fields.MutableRepeatedMessage(message, field, j));
      }
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_FLOAT) {
      if (fields.GetFloat(*message, field) == 0) fields.SetFloat(message, field, 0);
    }
  }
}

// As static_cast, which is undefined for what is larger than any float.
float ToFloat(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return std::fabs(value) <= kMax ? static_cast<float>(value)
                                  : std::copysign(std::numeric_limits<float>::infinity(), value);
}

bool IsInt64(const nlohmann::json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() &&
           value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
}

absl::Status WrongDefault(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("use_model_defaults: the model's generation_config.json: ", what));
}

// The numbers of generation_config.json that `asked` leaves open. Its worker refuses such a file
// too; this is for what a peer may send.
absl::StatusOr<v1::SamplingParams> ReadModelDefaults(const std::string& text,
                                                     const v1::SamplingParams& asked) {
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return WrongDefault("is no JSON object");
  v1::SamplingParams defaults;
  const google::protobuf::Reflection& fields = *asked.GetReflection();
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) {
    const google::protobuf::FieldDescriptor* field = asked.GetDescriptor()->FindFieldByName(key);
    const auto found = config.find(key);
    if (found == config.end() || found->is_null() || fields.HasField(asked, field)) continue;
    const bool whole = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT64;
    if (!(whole ? IsInt64(*found) : found->is_number())) {
      return WrongDefault(absl::StrCat(key, " is no ", whole ? "integer of 64 bits" : "number"));
    }
    if (whole) {
      fields.SetInt64(&defaults, field, found->get<int64_t>());
    } else {
      fields.SetFloat(&defaults, field, ToFloat(found->get<double>()));
    }
  }
  const auto samples = config.find("do_sample");
  if (!asked.has_temperature() && samples != config.end() && !samples->is_null()) {
    if (!samples->is_boolean()) return WrongDefault("do_sample is neither true nor false");
    if (!samples->get<bool>()) defaults.set_temperature(0);
  }
  v1::SamplingParams filled = defaults;
  FillUnset(&filled);
  const absl::Status ranges = CheckRanges(filled);
  if (!ranges.ok()) return WrongDefault(ranges.message());
  return defaults;
}

absl::Status CheckLogitBias(const v1::SamplingParams& sampling, int64_t vocabulary) {
  if (sampling.logit_bias_size() > kLogitBiasMax) {
    return TooMany("sampling.logit_bias", sampling.logit_bias_size(), kLogitBiasMax);
  }
  absl::flat_hash_set<int64_t> seen;
  for (int i = 0; i < sampling.logit_bias_size(); ++i) {
    const v1::LogitBias& bias = sampling.logit_bias(i);
    const std::string field = absl::StrCat("sampling.logit_bias[", i, "]");
    if (bias.id() < 0 || bias.id() >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".id: ", bias.id(), " is outside [0, ", vocabulary, ")"));
    }
    if (!seen.insert(bias.id()).second) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".id: ", bias.id(), " is given twice"));
    }
    const bool banned = bias.bias() == -std::numeric_limits<float>::infinity();
    if (!banned && !(std::fabs(bias.bias()) <= kLogitBiasValueMax)) {
      return OutOfRange(absl::StrCat(field, ".bias"), bias.bias(),
                        "{-infinity} and [-1e+30, 1e+30]");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplySamplingRules(const std::string& model_defaults, const ModelLimits& limits,
                                v1::SamplingParams* s) {
  if (!model_defaults.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const v1::SamplingParams defaults,
                              ReadModelDefaults(model_defaults, *s));
    s->MergeFrom(defaults);
  }
  FillUnset(s);
  MakeZerosPositive(s);
  LOCKSTEP_RETURN_IF_ERROR(CheckRanges(*s));
  if (s->top_k() == -1 || s->top_k() >= limits.vocabulary) s->set_top_k(0);
  return CheckLogitBias(*s, limits.vocabulary);
}

absl::Status ApplyStopRules(const TokenRoom& room, int64_t generated, bool has_tokenizer,
                            const ModelLimits& limits, v1::StopOptions* stop) {
  if (!stop->has_min_new_tokens()) stop->set_min_new_tokens(0);
  if (!stop->has_max_new_tokens()) {
    stop->set_max_new_tokens(
        room.is_limit ? room.tokens : std::max({room.tokens, stop->min_new_tokens(), generated}));
  }
  if (stop->max_new_tokens() < 0 || (room.is_limit && stop->max_new_tokens() > room.tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.max_new_tokens: ", stop->max_new_tokens(), " is outside [0, ",
                     room.tokens, "]: the context holds ", limits.context_tokens_max,
                     " tokens and the prompt takes ", limits.context_tokens_max - room.tokens));
  }
  if (stop->min_new_tokens() < 0 || stop->min_new_tokens() > stop->max_new_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("stop.min_new_tokens: ", stop->min_new_tokens(),
                                                   " is outside [0, ", stop->max_new_tokens(),
                                                   "], the upper end being max_new_tokens"));
  }
  if (generated > stop->max_new_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "generated_ids: ", generated, " ids, but stop.max_new_tokens is ", stop->max_new_tokens()));
  }
  if (stop->stop_ids_size() > kStopIdsMax) {
    return TooMany("stop.stop_ids", stop->stop_ids_size(), kStopIdsMax);
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckIds(stop->stop_ids(), "stop.stop_ids", limits.vocabulary));
  if (stop->stop_strings_size() > kStopStringsMax) {
    return TooMany("stop.stop_strings", stop->stop_strings_size(), kStopStringsMax);
  }
  for (int i = 0; i < stop->stop_strings_size(); ++i) {
    const std::string& text = stop->stop_strings(i);
    const size_t bytes = text.size();
    if (bytes < 1 || bytes > kStopStringBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop.stop_strings[", i, "]: ", bytes, " bytes, outside [1, ", kStopStringBytesMax, "]"));
    }
    if (base::ToValidUtf8(text) != text) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop.stop_strings[", i, "]: not valid UTF-8"));
    }
  }
  if (stop->stop_strings_size() > 0 && !has_tokenizer) {
    return absl::FailedPreconditionError(
        "stop.stop_strings: this gateway has no tokenizer (tokenizer_dir is not set)");
  }
  if (!stop->ignore_eos()) {
    for (const int64_t id : limits.eos_ids) stop->add_stop_ids(id);
  }
  return absl::OkStatus();
}

absl::Status CheckAnIdIsLeft(const v1::SamplingParams& sampling, const v1::StopOptions& stop,
                             int64_t generated, const ModelLimits& limits) {
  if (generated >= stop.max_new_tokens()) return absl::OkStatus();
  // The rows of lm_head from there on have no token and are never drawn.
  const int64_t sampled = limits.fingerprint.vocabulary_sampled();
  const int64_t drawn_end = sampled > 0 ? std::min(sampled, limits.vocabulary) : limits.vocabulary;
  absl::flat_hash_set<int64_t> banned;
  for (const v1::LogitBias& bias : sampling.logit_bias()) {
    if (bias.id() < drawn_end && bias.bias() == -std::numeric_limits<float>::infinity()) {
      banned.insert(bias.id());
    }
  }
  const auto none_is_left = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logit_bias: ", why, "bans all ",
                                                   drawn_end, " ids that can be drawn, [0, ",
                                                   drawn_end, ")"));
  };
  const auto is_left = [&] { return static_cast<int64_t>(banned.size()) < drawn_end; };
  if (!is_left()) return none_is_left("");
  if (generated >= stop.min_new_tokens()) return absl::OkStatus();
  // Until then stop ids are banned too.
  for (const int64_t id : stop.stop_ids()) {
    if (id < drawn_end) banned.insert(id);
  }
  if (is_left()) return absl::OkStatus();
  return none_is_left("with the stop ids, which stop.min_new_tokens keeps out, it ");
}

absl::Status ApplyLogprobRules(int64_t prompt_tokens, const ModelLimits& limits,
                               v1::LogprobOptions* logprobs) {
  if (!logprobs->has_generated()) logprobs->set_generated(true);
  if (logprobs->top_count() < 0 || logprobs->top_count() > kTopLogprobsMax) {
    return OutOfRange("logprobs.top_count", logprobs->top_count(), "[0, 64]");
  }
  if (logprobs->top_count() > limits.vocabulary) {
    return OutOfRange("logprobs.top_count", logprobs->top_count(),
                      absl::StrCat("[0, ", limits.vocabulary, "], the vocabulary"));
  }
  if (logprobs->chosen_ids_size() > kChosenIdsMax) {
    return TooMany("logprobs.chosen_ids", logprobs->chosen_ids_size(), kChosenIdsMax);
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckIds(logprobs->chosen_ids(), "logprobs.chosen_ids", limits.vocabulary));
  if (logprobs->has_prompt_from() &&
      (logprobs->prompt_from() < 1 || logprobs->prompt_from() > prompt_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs.prompt_from: ", logprobs->prompt_from(), " is outside [1, ",
                     prompt_tokens, "], the prompt's length"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::gateway
