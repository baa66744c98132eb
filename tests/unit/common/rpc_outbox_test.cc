#include "common/rpc/outbox.h"

#include <cstddef>
#include <string>
#include <utility>

#include "common/rpc/read_gate.h"
#include "gtest/gtest.h"

namespace lockstep::rpc {
namespace {

struct Message {
  std::string text;
  size_t ByteSizeLong() const { return text.size(); }
};

WriteResult Push(Outbox<Message>& outbox, const std::string& text) {
  return outbox.Push(Message{text});
}

TEST(OutboxTest, OneMessageIsInFlightAndStaysWhereItIs) {
  Outbox<Message> outbox({});
  EXPECT_EQ(outbox.StartNext(), nullptr);
  ASSERT_EQ(Push(outbox, "a"), WriteResult::kAccepted);
  const Message* in_flight = outbox.StartNext();
  ASSERT_NE(in_flight, nullptr);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(Push(outbox, "b"), WriteResult::kAccepted);
  EXPECT_EQ(outbox.StartNext(), nullptr);
  outbox.DropWaiting();
  EXPECT_EQ(in_flight->text, "a");
  EXPECT_EQ(outbox.size(), 1u);
  EXPECT_FALSE(outbox.WriteDone());
  EXPECT_TRUE(outbox.empty());
}

TEST(OutboxTest, RefusesBeyondEitherLimitAndTellsOnceWhenHalfIsFree) {
  Outbox<Message> outbox({.messages_max = 4, .bytes_max = 100});
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Push(outbox, "a"), WriteResult::kAccepted);
  Message refused{"kept"};
  EXPECT_EQ(outbox.Push(std::move(refused)), WriteResult::kFull);
  EXPECT_EQ(refused.text, "kept");
  outbox.StartNext();
  EXPECT_FALSE(outbox.WriteDone());
  outbox.StartNext();
  EXPECT_TRUE(outbox.WriteDone());
  outbox.StartNext();
  EXPECT_FALSE(outbox.WriteDone()) << "told already";
  ASSERT_EQ(Push(outbox, std::string(90, 'b')), WriteResult::kAccepted);
  EXPECT_EQ(Push(outbox, std::string(20, 'c')), WriteResult::kFull);
}

TEST(OutboxTest, EmptyOutboxTakesAMessageOfAnySize) {
  Outbox<Message> outbox({.messages_max = 4, .bytes_max = 10});
  EXPECT_EQ(Push(outbox, std::string(1000, 'a')), WriteResult::kAccepted);
  EXPECT_EQ(Push(outbox, "b"), WriteResult::kFull);
  outbox.StartNext();
  EXPECT_TRUE(outbox.WriteDone());
  EXPECT_EQ(Push(outbox, "b"), WriteResult::kAccepted);
}

TEST(ReadGateTest, OneReadInFlightAndNoneDuringADelivery) {
  ReadGate gate;
  EXPECT_TRUE(gate.Request());
  EXPECT_FALSE(gate.Request());
  gate.Arrived();
  EXPECT_FALSE(gate.Request()) << "the message is being delivered";
  EXPECT_FALSE(gate.Request());
  EXPECT_TRUE(gate.Delivered()) << "asked for during the delivery";
  gate.Arrived();
  EXPECT_FALSE(gate.Delivered());
  EXPECT_TRUE(gate.Request());
  gate.End();
  EXPECT_FALSE(gate.Request());
}

}  // namespace
}  // namespace lockstep::rpc
