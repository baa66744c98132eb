#include "services/worker/model/memory_plan.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kHostKvBytes = int64_t{256} << 20;
// Part of a device that stays free when the pool takes the rest: captured graphs, arrays that grow
// with what requests ask for, and what the driver takes behind our back.
constexpr int64_t kReserveDivisor = 32;

int64_t Signed(size_t bytes) { return static_cast<int64_t>(bytes); }

}  // namespace

int64_t WeightBytes(const ModelConfig& config, const RankPart& part) {
  const ModelConfig own = PartOf(config, part);
  const Run head = VocabularyRun(config.vocabulary, part);
  const int64_t hidden = own.hidden;
  const int64_t attention = hidden * (own.qkv_width() + own.q_width()) +
                            (own.qkv_bias ? own.qkv_width() : 0) +
                            (own.qk_norm ? 2 * own.head_dim : 0);
  const int64_t feed_forward = 3 * hidden * own.ffn;
  // Tied ones too: lm_head is packed apart from the table that ids are looked up in.
  const int64_t tables = (own.vocabulary + head.end - head.begin) * hidden;
  return kBf16Bytes * (own.layers * (attention + feed_forward + 2 * hidden) + tables + hidden);
}

absl::Status CheckWeightsFit(const ModelConfig& config, const RankPart& part,
                             const kernels::DeviceMemory& memory) {
  const int64_t needed = WeightBytes(config, part);
  const int64_t free = Signed(memory.free);
  if (memory.total == 0 || needed <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("model: its weights need ", needed, " bytes of device memory, ", free, " of ",
                   memory.total, " are free, ", needed - free,
                   " are missing; set model to a smaller one, or end what else uses the device"));
}

absl::StatusOr<int64_t> KvPoolBytes(int64_t asked, int64_t bytes_min,
                                    const kernels::DeviceMemory& memory) {
  if (memory.total == 0) return asked > 0 ? asked : kHostKvBytes;
  const int64_t free = Signed(memory.free);
  if (asked > 0) {
    if (asked <= free) return asked;
    return absl::ResourceExhaustedError(
        absl::StrCat("kv_bytes = ", asked, ": weights and scratch leave ", free, " of ",
                     memory.total, " bytes of device memory, ", asked - free,
                     " are missing; lower kv_bytes, or leave it out to take what is free"));
  }
  const int64_t room = free - Signed(memory.total) / kReserveDivisor;
  if (room >= bytes_min) return room;
  return absl::ResourceExhaustedError(absl::StrCat(
      "kv_bytes: weights and scratch leave ", std::max<int64_t>(room, 0), " of ", memory.total,
      " bytes of device memory for KV, one split of one sequence needs ", bytes_min, ", ",
      bytes_min - room,
      " are missing; lower chunk_tokens or sequences_max, or end what else uses the device"));
}

absl::Status WithAdvice(const absl::Status& status, std::string_view advice) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(status.message()), "; ", std::string(advice)));
}

}  // namespace lockstep::worker
