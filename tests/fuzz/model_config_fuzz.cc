#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "services/worker/model/model_config.h"

// Input: config.json, and after a zero byte generation_config.json. Whatever is accepted must be
// usable: sizes whose products fit and whose rows exist.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view generation =
      zero == std::string_view::npos ? std::string_view() : input.substr(zero + 1);
  const auto config = lockstep::worker::ParseModelConfig(input.substr(0, zero), generation);
  if (!config.ok()) {
    LOCKSTEP_CHECK(config.status().code() == absl::StatusCode::kInvalidArgument);
    LOCKSTEP_CHECK(!config.status().message().empty());
    return 0;
  }
  LOCKSTEP_CHECK(config->layers > 0 && config->hidden > 0 && config->ffn > 0);
  LOCKSTEP_CHECK_EQ(config->q_heads % config->kv_heads, 0);
  LOCKSTEP_CHECK_GT(config->qkv_width(), 0);
  LOCKSTEP_CHECK(config->rms_norm_epsilon > 0 && config->rope_theta >= 1);
  for (const int32_t id : config->eos_ids) LOCKSTEP_CHECK(id >= 0 && id < config->vocabulary);
  LOCKSTEP_CHECK(config->Digest() == config->Digest());
  return 0;
}
