#include "tests/unit/engine/engine_harness.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "gtest/gtest.h"
#include "services/worker/engine/logprob_block.h"

namespace lockstep::worker {
namespace {

std::string Bits(const std::vector<float>& values) {
  return absl::StrJoin(values, ",", [](std::string* out, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    absl::StrAppendFormat(out, "%08x", bits);
  });
}

std::string Describe(const LogprobBlock& block) {
  return absl::StrCat("raw ", Bits(block.raw), "\nscaled ", Bits(block.scaled), "\nentropy ",
                      Bits(block.entropy), "\ntop ", absl::StrJoin(block.top_ids, ","), "\ntop ",
                      Bits(block.top_logprobs), "\nchosen ", Bits(block.chosen_logprobs), "\n");
}

std::string Describe(const MatchedStop& stop) {
  if (std::holds_alternative<int32_t>(stop)) return absl::StrCat("id ", std::get<int32_t>(stop));
  if (std::holds_alternative<std::string>(stop)) return "string " + std::get<std::string>(stop);
  return "none";
}

HashExecutor::Options ExecutorOptions(const EngineHarness::Options& options) {
  HashExecutor::Options executor = options.executor;
  executor.block_count = options.block_count;
  executor.block_tokens = options.block_tokens;
  return executor;
}

void AppendAll(const LogprobBlock& from, int64_t count, LogprobBlock* to) {
  if (count > 0) AppendLogprobs(from, {.begin = 0, .end = count, .count = count}, to);
}

}  // namespace

std::string Describe(const Transcript& transcript) {
  std::string out =
      absl::StrCat("from ", transcript.token_begin, " ids ", absl::StrJoin(transcript.ids, ","),
                   "\n", Describe(transcript.logprobs), "prompt ", transcript.prompt_begin, " + ",
                   transcript.prompt_count, "\n", Describe(transcript.prompt_logprobs));
  if (transcript.end.has_value()) {
    absl::StrAppend(&out, "end ", static_cast<int>(transcript.end->reason), " ",
                    Describe(transcript.end->matched_stop), " ", transcript.end->error.ToString());
  }
  return out;
}

EngineHarness::EngineHarness(const Options& options)
    : options_(options), metrics_(&registry_), executor_(ExecutorOptions(options)) {
  auto core =
      EngineCore::Create({.split_kv_size = options.split,
                          .chunk_tokens = options.chunk_tokens,
                          .sequences_max = options.sequences_max,
                          .context_tokens_max = options.context_tokens_max,
                          .waiting_max = options.waiting_max,
                          .vocabulary = options.executor.vocabulary,
                          .prefix_cache = options.prefix_cache,
                          .shadow_every_steps = options.shadow_every_steps,
                          .weight_version = base::WeightVersion(1)},
                         {.executor = options.model != nullptr ? options.model : &executor_,
                          .tokenizer = LetterTokenizer(),
                          .clock = &clock_,
                          .metrics = &metrics_,
                          .on_step = [this](StepOutput output) { Collect(std::move(output)); }});
  LOCKSTEP_CHECK(core.ok()) << core.status();
  core_ = *std::move(core);
}

EngineHarness::~EngineHarness() = default;

const std::vector<std::string>& EngineHarness::violations() const {
  return executor_.violations().empty() ? violations_ : executor_.violations();
}

bool EngineHarness::RunStep() {
  clock_.Advance(absl::Milliseconds(1));
  return core_->RunStep();
}

bool EngineHarness::RunAll(int64_t steps_max) {
  for (int64_t step = 0; step < steps_max; ++step) {
    if (!RunStep()) return true;
  }
  return false;
}

void EngineHarness::Collect(StepOutput output) {
  for (SequenceOutput& one : output.outputs) {
    Transcript& all = transcripts_[one.ticket];
    if (all.end.has_value()) violations_.push_back("an output after the end");
    if (all.token_begin < 0) all.token_begin = one.token_begin;
    if (one.token_begin != all.token_begin + static_cast<int64_t>(all.ids.size())) {
      violations_.push_back(absl::StrFormat("ticket %d: output at %d after %d ids from %d",
                                            one.ticket.value(), one.token_begin, all.ids.size(),
                                            all.token_begin));
    }
    all.ids.insert(all.ids.end(), one.ids.begin(), one.ids.end());
    AppendAll(one.logprobs, static_cast<int64_t>(one.ids.size()), &all.logprobs);
    if (one.prompt_count > 0) {
      if (all.prompt_begin < 0) all.prompt_begin = one.prompt_begin;
      if (one.prompt_begin != all.prompt_begin + all.prompt_count) {
        violations_.push_back("a gap or repetition in prompt logprobs");
      }
      all.prompt_count += one.prompt_count;
      AppendAll(one.prompt_logprobs, one.prompt_count, &all.prompt_logprobs);
    }
    all.end = std::move(one.end);
  }
  for (const base::TicketId ticket : output.hand_offs) transcripts_[ticket].handed_off = true;
  for (const Cut& cut : output.cuts) CheckCut(cut);
}

void EngineHarness::CheckCut(const Cut& cut) {
  const bool begin_ok = cut.begin % options_.block_tokens == 0;
  const bool end_ok = cut.end == cut.length || cut.end % options_.split == 0;
  if (!begin_ok || !end_ok || cut.begin >= cut.end || cut.end > cut.length) {
    violations_.push_back(absl::StrFormat("cut [%d, %d) of %d", cut.begin, cut.end, cut.length));
  }
  cuts_.push_back(cut);
}

std::shared_ptr<const text::Tokenizer> LetterTokenizer() {
  std::vector<std::string> entries;
  for (int id = 0; id < 64; ++id) {
    std::string token(1, static_cast<char>('a' + id % 26));
    if (id >= 26) token += static_cast<char>('a' + (id / 26 - 1 + id) % 26);
    entries.push_back(absl::StrFormat("\"%s\":%d", token, id));
  }
  // A vocabulary has every byte, in GPT-2's alphabet; no test draws these.
  int next_id = 64;
  int next_stand_in = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool stands_for_itself =
        (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte != 173);
    const int code_point = stands_for_itself ? byte : next_stand_in++;
    if (byte >= 'a' && byte <= 'z') continue;
    entries.push_back(absl::StrFormat("\"\\u%04x\":%d", code_point, next_id++));
  }
  const std::string json = absl::StrCat(
      R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",)"
      R"("add_prefix_space":false,"trim_offsets":true,"use_regex":false},"post_processor":null,)"
      R"("decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
      R"("use_regex":false},"model":{"type":"BPE","vocab":{)",
      absl::StrJoin(entries, ","), R"(},"merges":[]}})");
  auto tokenizer = text::Tokenizer::Create(json);
  LOCKSTEP_CHECK(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

SequenceStart MakeStart(uint64_t ticket, std::vector<int32_t> prompt_ids, int64_t max_new_tokens) {
  SequenceStart start;
  start.ticket = base::TicketId(ticket);
  start.sequence = base::SequenceId(absl::StrCat("r/", ticket));
  start.request = base::RequestId("r");
  start.prompt_ids = std::move(prompt_ids);
  start.parameters.max_new_tokens = max_new_tokens;
  start.sub_seed = ticket;
  start.credit_tokens = 1 << 20;
  return WithPlan(std::move(start), 32);
}

SequenceStart WithPlan(SequenceStart start, int64_t split) {
  start.plan = {
      .split_kv_size = split,
      .length = static_cast<int64_t>(start.prompt_ids.size() + start.generated_ids.size())};
  return start;
}

std::vector<int32_t> RandomIds(uint64_t seed, int64_t count, int32_t vocabulary) {
  std::vector<int32_t> ids;
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocabulary)));
  }
  return ids;
}

Transcript RunAlone(SequenceStart start, int64_t split) {
  EngineHarness harness(
      {.block_count = 512, .split = split, .chunk_tokens = 128 * split, .prefix_cache = false});
  start.credit_tokens = 1 << 20;
  start.deadline = absl::InfiniteFuture();
  const base::TicketId ticket = start.ticket;
  const absl::Status status = harness.core().Start(WithPlan(std::move(start), split));
  LOCKSTEP_CHECK(status.ok()) << status;
  LOCKSTEP_CHECK(harness.RunAll());
  EXPECT_TRUE(harness.violations().empty()) << harness.violations().front();
  return harness.transcripts().at(ticket);
}

}  // namespace lockstep::worker
