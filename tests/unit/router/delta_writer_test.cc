#include "services/router/delta_writer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/packed_array.h"
#include "gtest/gtest.h"

namespace lockstep::router {
namespace {

// Takes as many frames as it has room for.
class FakeStream {
 public:
  rpc::WriteResult Write(v1::RouteFrame&& frame) {
    if (room == 0) return rpc::WriteResult::kFull;
    --room;
    frames.push_back(std::move(frame));
    return rpc::WriteResult::kAccepted;
  }

  int room = 0;
  std::vector<v1::RouteFrame> frames;
};

class DeltaWriterTest : public ::testing::Test {
 protected:
  static SequenceDelta Token(uint64_t handle, int64_t position) {
    SequenceDelta delta;
    delta.handle = handle;
    delta.token_begin = position;
    delta.token_ids = std::string(4, static_cast<char>('a' + position % 26));
    delta.logprobs.raw = std::string(4, static_cast<char>('A' + position % 26));
    delta.weight_version = 1;
    return delta;
  }
  void Add(SequenceDelta delta) {
    writer_.Add(std::move(delta));
    writer_.Flush();
  }
  // Everything that waits leaves.
  void Drain() {
    stream_->room = 1000;
    writer_.Flush();
  }
  std::vector<v1::SequenceDelta> Sent(uint64_t handle) const {
    std::vector<v1::SequenceDelta> sent;
    for (const v1::RouteFrame& frame : stream_->frames) {
      for (const v1::SequenceDelta& delta : frame.deltas()) {
        if (delta.handle() == handle) sent.push_back(delta);
      }
    }
    return sent;
  }

  const std::shared_ptr<FakeStream> stream_ = std::make_shared<FakeStream>();
  DeltaWriter<FakeStream> writer_{stream_};
};

TEST_F(DeltaWriterTest, AStreamThatTakesGetsEachDeltaAsItIs) {
  stream_->room = 10;
  for (int64_t position = 0; position < 3; ++position) Add(Token(7, position));
  ASSERT_EQ(stream_->frames.size(), 3u);
  EXPECT_EQ(Sent(7)[2].token_begin(), 2);
}

TEST_F(DeltaWriterTest, WhatWaitsIsJoinedInOrderWithItsEnd) {
  constexpr int64_t kTokens = 1000;
  for (int64_t position = 0; position < kTokens; ++position) {
    for (uint64_t handle = 1; handle <= 3; ++handle) {
      SequenceDelta delta = Token(handle, position);
      if (position + 1 == kTokens) delta.end = SequenceEnd{.reason = EndReason::kLength};
      Add(std::move(delta));
    }
  }
  Drain();
  for (uint64_t handle = 1; handle <= 3; ++handle) {
    const std::vector<v1::SequenceDelta> sent = Sent(handle);
    // The first one found nothing that was stuck yet.
    ASSERT_LE(sent.size(), 2u);
    std::string ids;
    std::string raw;
    int64_t next = 0;
    for (const v1::SequenceDelta& delta : sent) {
      EXPECT_EQ(delta.token_begin(), next);
      next += base::PackedCount(delta.token_ids());
      ids += delta.token_ids();
      raw += delta.logprobs().raw();
    }
    ASSERT_EQ(next, kTokens);
    EXPECT_EQ(raw.size(), ids.size());
    for (int64_t position = 0; position < kTokens; ++position) {
      EXPECT_EQ(ids.substr(4 * position, 4), Token(handle, position).token_ids);
      EXPECT_EQ(raw.substr(4 * position, 4), Token(handle, position).logprobs.raw);
    }
    EXPECT_EQ(sent.back().end().reason(), v1::FINISH_REASON_LENGTH);
  }
}

TEST_F(DeltaWriterTest, WhatOneDeltaCannotSayStaysApart) {
  Add(Token(7, 0));
  Add(Token(7, 1));
  SequenceDelta other_weights = Token(7, 2);
  other_weights.weight_version = 2;
  Add(std::move(other_weights));
  SequenceDelta prompt = Token(7, 3);
  prompt.weight_version = 2;
  prompt.prompt_count = 1;
  Add(std::move(prompt));
  SequenceDelta end;
  end.handle = 7;
  end.end = SequenceEnd{.reason = EndReason::kAbort};
  Add(std::move(end));
  Drain();
  const std::vector<v1::SequenceDelta> sent = Sent(7);
  ASSERT_EQ(sent.size(), 5u);
  EXPECT_EQ(sent[2].weight_version(), 2);
  EXPECT_EQ(sent[3].prompt_count(), 1);
  EXPECT_TRUE(sent[4].has_end());
}

TEST_F(DeltaWriterTest, NoJoinedFrameIsLargerThanAMessageMayBe) {
  constexpr int64_t kTokens = 2000;
  constexpr size_t kTokenBytes = 4096;
  for (int64_t position = 0; position < kTokens; ++position) {
    SequenceDelta delta = Token(7, position);
    delta.logprobs.top_logprobs = std::string(kTokenBytes, 'x');
    Add(std::move(delta));
  }
  Drain();
  EXPECT_GT(stream_->frames.size(), 7u);
  for (const v1::RouteFrame& frame : stream_->frames) {
    EXPECT_LE(frame.ByteSizeLong(), (size_t{1} << 20) + kTokenBytes);
  }
}

TEST_F(DeltaWriterTest, AfterADrainNothingIsAddedToWhatHasLeft) {
  Add(Token(7, 0));
  Add(Token(7, 1));
  Drain();
  const size_t frames = stream_->frames.size();
  Add(Token(7, 2));
  ASSERT_EQ(stream_->frames.size(), frames + 1);
  EXPECT_EQ(Sent(7).back().token_begin(), 2);
}

}  // namespace
}  // namespace lockstep::router
