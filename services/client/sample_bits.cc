#include "services/client/sample_bits.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "services/client/arrays.h"

namespace lockstep::client {
namespace {

void Absorb(const v1::LogprobArrays& arrays, base::Hasher* hasher) {
  hasher->Bytes(arrays.raw())
      .Bytes(arrays.scaled())
      .Bytes(arrays.entropy())
      .Bytes(arrays.top_ids())
      .Bytes(arrays.top_logprobs())
      .Bytes(arrays.chosen_logprobs());
}

// Index of the first element of `size` bytes that differs, also when one array is shorter.
template <typename T>
int64_t FirstDifferentIndex(const std::string& a, const std::string& b) {
  const std::vector<T> x = base::UnpackArray<T>(a);
  const std::vector<T> y = base::UnpackArray<T>(b);
  const size_t common = std::min(x.size(), y.size());
  for (size_t i = 0; i < common; ++i) {
    if (x[i] != y[i]) return static_cast<int64_t>(i);
  }
  return x.size() == y.size() ? -1 : static_cast<int64_t>(common);
}

std::optional<std::string> ArraysDifference(const std::string& what,
                                            const v1::LogprobArrays& expected,
                                            const v1::LogprobArrays& actual) {
  const std::pair<const char*, std::pair<const std::string*, const std::string*>> arrays[] = {
      {"raw", {&expected.raw(), &actual.raw()}},
      {"scaled", {&expected.scaled(), &actual.scaled()}},
      {"entropy", {&expected.entropy(), &actual.entropy()}},
      {"top", {&expected.top_logprobs(), &actual.top_logprobs()}},
      {"chosen", {&expected.chosen_logprobs(), &actual.chosen_logprobs()}},
  };
  for (const auto& [name, pair] : arrays) {
    if (auto difference = FirstFloatDifference(*pair.first, *pair.second)) {
      return absl::StrCat(what, " ", name, " logprobs differ at ", *difference);
    }
  }
  if (expected.top_ids() != actual.top_ids()) return absl::StrCat(what, " top ids differ");
  return std::nullopt;
}

}  // namespace

std::string BitsOf(const v1::Sample& sample) {
  base::Hasher hasher;
  hasher.Bytes(sample.token_ids()).Bytes(sample.text()).Bytes(sample.text_tail_bytes());
  Absorb(sample.logprobs(), &hasher);
  Absorb(sample.prompt_logprobs(), &hasher);
  hasher.Number(static_cast<uint64_t>(sample.finish_reason()));
  hasher.Bytes(sample.matched_stop().SerializeAsString());
  return hasher.Finish().ToString();
}

std::optional<std::string> FirstFloatDifference(const std::string& expected,
                                                const std::string& actual) {
  const int64_t index = FirstDifferentIndex<uint32_t>(expected, actual);
  if (index < 0) return std::nullopt;
  const std::vector<float> x = ReadFloats(expected);
  const std::vector<float> y = ReadFloats(actual);
  const auto shown = [index](const std::vector<float>& values) {
    const size_t i = static_cast<size_t>(index);
    if (i >= values.size()) return std::string("nothing");
    return absl::StrFormat("%.9g (%08x)", values[i], std::bit_cast<uint32_t>(values[i]));
  };
  return absl::StrCat("position ", index, ": ", shown(x), " and ", shown(y));
}

std::optional<std::string> FirstDifference(const v1::Sample& expected, const v1::Sample& actual) {
  if (BitsOf(expected) == BitsOf(actual)) return std::nullopt;
  if (const int64_t i = FirstDifferentIndex<uint32_t>(expected.token_ids(), actual.token_ids());
      i >= 0) {
    const std::vector<uint32_t> x = ReadIds(expected.token_ids());
    const std::vector<uint32_t> y = ReadIds(actual.token_ids());
    const auto shown = [i](const std::vector<uint32_t>& ids) {
      const size_t index = static_cast<size_t>(i);
      return index < ids.size() ? absl::StrCat(ids[index]) : std::string("nothing");
    };
    return absl::StrCat("ids differ at position ", i, ": ", shown(x), " and ", shown(y));
  }
  if (auto difference = ArraysDifference("generated", expected.logprobs(), actual.logprobs())) {
    return difference;
  }
  if (auto difference =
          ArraysDifference("prompt", expected.prompt_logprobs(), actual.prompt_logprobs())) {
    return difference;
  }
  if (expected.text() != actual.text()) {
    return absl::StrCat("text differs: \"", expected.text(), "\" and \"", actual.text(), "\"");
  }
  if (expected.finish_reason() != actual.finish_reason()) {
    return absl::StrCat("finish reason differs: ", v1::FinishReason_Name(expected.finish_reason()),
                        " and ", v1::FinishReason_Name(actual.finish_reason()));
  }
  return "matched stop or text tail differs";
}

}  // namespace lockstep::client
