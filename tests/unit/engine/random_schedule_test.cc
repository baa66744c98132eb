// Goal: whatever happens around a sequence, its outputs are those of a quiet run. Method: seeded
// random schedules on a tiny KV pool, with groups, shared prefixes, credit, cancels, holds, flushes
// and hand-offs to a second engine; then every transcript is compared with a lone run.

#include <algorithm>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/engine/logprob_block.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::IsEmpty;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 7) {}
  int64_t operator()(int64_t range) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(range));
  }

 private:
  uint64_t state_;
};

SequenceStart RandomStart(uint64_t ticket, Random* random) {
  // Few prefixes, cut anywhere, so that many share and many diverge.
  std::vector<int32_t> ids = RandomIds((*random)(3), 1 + (*random)(100));
  const std::vector<int32_t> own = RandomIds(1000 + ticket, (*random)(20));
  if ((*random)(2) == 0) ids.insert(ids.end(), own.begin(), own.end());
  SequenceStart start = MakeStart(ticket, ids, (*random)(40));
  SequenceParameters& parameters = start.parameters;
  parameters.temperature = static_cast<float>((*random)(3)) / 2;
  if ((*random)(3) == 0) parameters.frequency_penalty = 0.5f;
  if ((*random)(3) == 0) parameters.repetition_penalty = 1.3f;
  if ((*random)(2) == 0) parameters.stop_ids = {5, 6};
  if ((*random)(4) == 0) parameters.stop_strings = {"ab", "c"};
  if ((*random)(4) == 0)
    parameters.min_new_tokens = std::min<int64_t>(10, parameters.max_new_tokens);
  if ((*random)(3) == 0) parameters.top_count = 2;
  if ((*random)(4) == 0) parameters.logprobs = false;
  if ((*random)(3) == 0) start.deliver_prompt_from = 1 + (*random)(start.prompt_ids.size());
  if ((*random)(8) == 0) start.score_only = true;
  if ((*random)(6) == 0) start.disable_prefix_cache = true;
  if ((*random)(6) == 0) start.cache_namespace = "other";
  start.credit_tokens = (*random)(3) == 0 ? (*random)(8) : 1000;
  // Given ids to score, where none of them can end the sequence.
  const bool has_stops = !parameters.stop_ids.empty() || !parameters.stop_strings.empty();
  if (!has_stops && parameters.max_new_tokens > 1 && (*random)(2) == 0) {
    start.generated_ids = RandomIds(2000 + ticket, (*random)(parameters.max_new_tokens));
    start.deliver_output_from = (*random)(static_cast<int64_t>(start.generated_ids.size()) + 1);
  }
  return WithPlan(std::move(start), 32);
}

bool IsPrefixOf(const Transcript& part, const Transcript& whole) {
  return part.ids.size() <= whole.ids.size() &&
         std::equal(part.ids.begin(), part.ids.end(), whole.ids.begin()) &&
         part.logprobs.raw.size() <= whole.logprobs.raw.size() &&
         std::equal(part.logprobs.raw.begin(), part.logprobs.raw.end(), whole.logprobs.raw.begin());
}

struct Totals {
  double preemptions = 0;
  double hits = 0;
  double cuts = 0;
  double waits = 0;
  double dropped = 0;
};

void RunSchedule(uint64_t seed, bool ahead, Totals* totals) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << (ahead ? " ahead" : ""));
  Random random(seed);
  EngineHarness harness({.block_count = static_cast<int>(12 + random(20)),
                         .split = 32,
                         .chunk_tokens = 32 * (1 + random(3)),
                         .sequences_max = 1 + random(12),
                         .executor = {.asynchronous = ahead}});
  const int64_t blocks = harness.blocks_free();
  std::map<uint64_t, SequenceStart> starts;
  uint64_t ticket = 0;
  for (int64_t event = 0; event < 200; ++event) {
    const int64_t kind = random(20);
    if (kind < 6 && ticket < 40) {
      const SequenceStart start = RandomStart(++ticket, &random);
      const int64_t samples = 1 + (random(4) == 0 ? random(4) : 0);
      for (int64_t i = 0; i < samples; ++i, ++ticket) {
        SequenceStart sample = start;
        sample.ticket = base::TicketId(ticket);
        sample.sub_seed = ticket;
        ASSERT_TRUE(harness.core().Start(sample).ok());
        starts.emplace(ticket, sample);
      }
    } else if (kind == 6 && ticket > 0 && random(4) == 0) {
      harness.core().Cancel(base::TicketId(1 + random(static_cast<int64_t>(ticket))));
    } else if (kind == 7 && ticket > 0) {
      harness.core().AddCredit(base::TicketId(1 + random(static_cast<int64_t>(ticket))), 5);
    } else if (kind == 8) {
      harness.core().SetHold(random(2) == 0);
    } else if (kind == 9 && random(4) == 0) {
      harness.core().FlushCache(random(2) == 0 ? std::nullopt : std::optional<std::string>(""));
    } else if (kind == 10) {
      harness.clock().Advance(absl::Seconds(2));
    } else {
      for (int64_t i = random(6); i > 0; --i) harness.RunStep();
    }
  }
  harness.core().SetHold(false);
  for (const auto& [id, start] : starts) harness.core().AddCredit(start.ticket, 1000);
  ASSERT_TRUE(harness.RunAll());
  ASSERT_THAT(harness.violations(), IsEmpty());
  for (const auto& [id, start] : starts) {
    const Transcript& out = harness.transcript(id);
    ASSERT_TRUE(out.end.has_value()) << "ticket " << id;
    const Transcript alone = RunAlone(start);
    if (out.end->reason == EndReason::kAbort) {
      ASSERT_TRUE(IsPrefixOf(out, alone)) << "ticket " << id;
    } else {
      ASSERT_EQ(Describe(out), Describe(alone)) << "ticket " << id;
    }
  }
  EXPECT_EQ(harness.blocks_free(), blocks);
  EXPECT_THAT(harness.core().Snapshot().held, IsEmpty());
  harness.core().FlushCache(std::nullopt);
  EXPECT_EQ(harness.metrics().kv_blocks_cached.value(), 0);
  totals->preemptions += harness.metrics().preemptions.value();
  totals->hits += harness.metrics().prefix_hit_tokens.value();
  totals->cuts += harness.metrics().prefill_cuts.value();
  totals->waits += harness.metrics().prefix_waits.value();
  totals->dropped +=
      static_cast<double>(harness.executor().draws()) - harness.metrics().tokens_generated.value();
}

// Over a device that is waited for, and over one that the engine runs ahead of.
class RandomScheduleTest : public ::testing::TestWithParam<bool> {};

TEST_P(RandomScheduleTest, EverySequenceGivesWhatItGivesAlone) {
  Totals totals;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunSchedule(seed, GetParam(), &totals));
  }
  // What the schedules claim to exercise did occur.
  EXPECT_GT(totals.preemptions, 100);
  EXPECT_GT(totals.hits, 1000);
  EXPECT_GT(totals.cuts, 100);
  EXPECT_GT(totals.waits, 20);
  if (GetParam()) {
    EXPECT_GT(totals.dropped, 100);
  } else {
    EXPECT_EQ(totals.dropped, 0);
  }
}

// A group moves to another engine in the middle of everything, several times.
TEST_P(RandomScheduleTest, HandOffsToAnotherEngineKeepEveryBit) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed + 1000);
    std::map<uint64_t, SequenceStart> starts;
    std::map<uint64_t, Transcript> joined;
    for (uint64_t ticket = 1; ticket <= 12; ++ticket) {
      SequenceStart start = RandomStart(ticket, &random);
      start.credit_tokens = 1000;
      starts.emplace(ticket, start);
    }
    std::map<uint64_t, SequenceStart> left = starts;
    int64_t hops = 0;
    while (!left.empty()) {
      EngineHarness harness(
          {.block_count = 16, .sequences_max = 5, .executor = {.asynchronous = GetParam()}});
      for (const auto& [ticket, start] : left) {
        ASSERT_TRUE(harness.core().Start(WithPlan(start, 32)).ok());
      }
      if (++hops < 20) {
        for (int64_t i = random(30); i > 0; --i) harness.RunStep();
        harness.core().HandOffAll();
      }
      ASSERT_TRUE(harness.RunAll());
      ASSERT_THAT(harness.violations(), IsEmpty());
      for (auto it = left.begin(); it != left.end();) {
        const Transcript& part = harness.transcript(it->first);
        Transcript& all = joined[it->first];
        if (all.token_begin < 0) all.token_begin = part.token_begin;
        all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
        const int64_t count = static_cast<int64_t>(part.ids.size());
        AppendLogprobs(part.logprobs, {.begin = 0, .end = count, .count = count}, &all.logprobs);
        if (part.prompt_count > 0) {
          if (all.prompt_begin < 0) all.prompt_begin = part.prompt_begin;
          all.prompt_count += part.prompt_count;
          AppendLogprobs(part.prompt_logprobs,
                         {.begin = 0, .end = part.prompt_count, .count = part.prompt_count},
                         &all.prompt_logprobs);
        }
        all.end = part.end;
        SequenceStart& next = it->second;
        // Given ids stay given, whether or not they were scored yet.
        const SequenceStart& original = starts.at(it->first);
        next.deliver_output_from =
            original.deliver_output_from + static_cast<int64_t>(all.ids.size());
        for (int64_t at = static_cast<int64_t>(next.generated_ids.size());
             at < next.deliver_output_from; ++at) {
          next.generated_ids.push_back(all.ids[at - original.deliver_output_from]);
        }
        if (next.deliver_prompt_from > 0 && all.prompt_begin > 0) {
          const int64_t from = all.prompt_begin + all.prompt_count;
          const bool is_done = from == static_cast<int64_t>(next.prompt_ids.size());
          next.deliver_prompt_from = is_done ? 0 : from;
        }
        it = part.end.has_value() ? left.erase(it) : std::next(it);
      }
    }
    for (const auto& [ticket, start] : starts) {
      Transcript expected = RunAlone(start);
      joined[ticket].token_begin = expected.token_begin;
      ASSERT_EQ(Describe(joined[ticket]), Describe(expected)) << "ticket " << ticket;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RandomScheduleTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Ahead" : "InTurn"; });

}  // namespace
}  // namespace lockstep::worker
