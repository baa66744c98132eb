#include "services/gateway/slot_pool.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::gateway {
namespace {

// A stream with as many prompts as one likes.
class Stream final : public SlotOwner {
 public:
  void OnSlot() override { ++slots; }
  int slots = 0;
};

// Asks for another slot; true if it came at once.
bool Ask(SlotPool* pool, const std::shared_ptr<Stream>& stream) {
  const bool now = pool->Ask(stream);
  stream->slots += now;
  return now;
}

// One of its prompts is answered.
void Answer(SlotPool* pool, Stream* stream) {
  --stream->slots;
  pool->Give(stream);
}

TEST(SlotPoolTest, OneStreamAloneHasAllSlots) {
  SlotPool pool(3);
  const auto stream = std::make_shared<Stream>();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask(&pool, stream));
  EXPECT_FALSE(Ask(&pool, stream));
  Answer(&pool, stream.get());
  EXPECT_EQ(stream->slots, 3) << "the one that waited has it";
  EXPECT_EQ(pool.used(), 3);
}

TEST(SlotPoolTest, ALateStreamHasHalfAfterHalfOfTheAnswers) {
  SlotPool pool(8);
  const auto greedy = std::make_shared<Stream>();
  const auto late = std::make_shared<Stream>();
  while (Ask(&pool, greedy)) {
  }
  EXPECT_FALSE(Ask(&pool, late));
  // Both always want more, and only the first one has answers.
  for (int answers = 1; answers <= 4; ++answers) {
    Answer(&pool, greedy.get());
    EXPECT_EQ(late->slots, answers);
    Ask(&pool, late);
  }
  // From then on neither gains on the other.
  for (int i = 0; i < 20; ++i) {
    Stream* const answered = i % 2 == 0 ? greedy.get() : late.get();
    Answer(&pool, answered);
    EXPECT_EQ(answered->slots, 4) << "an equal share is kept";
    Ask(&pool, i % 2 == 0 ? greedy : late);
  }
}

TEST(SlotPoolTest, AmongEqualsTheOneThatAskedFirstIsNext) {
  SlotPool pool(1);
  const auto holder = std::make_shared<Stream>();
  const auto first = std::make_shared<Stream>();
  const auto second = std::make_shared<Stream>();
  ASSERT_TRUE(Ask(&pool, holder));
  EXPECT_FALSE(Ask(&pool, first));
  EXPECT_FALSE(Ask(&pool, second));
  EXPECT_EQ(pool.waiting(), 2);
  Answer(&pool, holder.get());
  EXPECT_EQ(first->slots, 1);
  EXPECT_EQ(second->slots, 0);
}

TEST(SlotPoolTest, AStreamThatLeavesGivesEverythingBackOnce) {
  SlotPool pool(2);
  const auto gone = std::make_shared<Stream>();
  const auto waiting = std::make_shared<Stream>();
  while (Ask(&pool, gone)) {
  }
  EXPECT_FALSE(Ask(&pool, waiting));
  pool.Leave(gone.get());
  EXPECT_EQ(waiting->slots, 1);
  EXPECT_EQ(gone->slots, 2) << "its wish went with it";
  // An answer of it that leaves later changes nothing.
  pool.Give(gone.get());
  EXPECT_EQ(pool.used(), 1);
  pool.Leave(waiting.get());
  EXPECT_EQ(pool.used(), 0);
}

// A stream whose prompts are all refused as soon as they are started.
class Refused final : public SlotOwner {
 public:
  Refused(SlotPool* pool, int* depth, int* deepest)
      : pool_(pool), depth_(depth), deepest_(deepest) {}
  void OnSlot() override {
    *deepest_ = std::max(*deepest_, ++*depth_);
    ++refused;
    pool_->Give(this);
    --*depth_;
  }
  int refused = 0;

 private:
  SlotPool* const pool_;
  int* const depth_;
  int* const deepest_;
};

// Thousands of streams can wait for one slot; nested calls would end the process.
TEST(SlotPoolTest, StreamsThatGiveTheirSlotBackAtOnceAreCalledInTurn) {
  SlotPool pool(1);
  const auto holder = std::make_shared<Stream>();
  ASSERT_TRUE(Ask(&pool, holder));
  int depth = 0;
  int deepest = 0;
  std::vector<std::shared_ptr<Refused>> streams;
  for (int i = 0; i < 100; ++i) {
    streams.push_back(std::make_shared<Refused>(&pool, &depth, &deepest));
    EXPECT_FALSE(pool.Ask(streams.back()));
  }
  Answer(&pool, holder.get());
  for (const auto& stream : streams) EXPECT_EQ(stream->refused, 1);
  EXPECT_EQ(deepest, 1);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.waiting(), 0);
  EXPECT_TRUE(Ask(&pool, holder)) << "nobody is left who waits";
}

}  // namespace
}  // namespace lockstep::gateway
