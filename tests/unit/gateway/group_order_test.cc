#include "services/gateway/group_order.h"

#include <gtest/gtest.h>

namespace lockstep::gateway {
namespace {

TEST(GroupOrderTest, AQuickGroupCountsInOrderOnlyOnceAllBeforeItHaveTheirAnswers) {
  GroupOrder order;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(order.Add(), i);
  order.Finish(2);
  order.Finish(1);
  EXPECT_EQ(order.finished_count(), 2);
  EXPECT_EQ(order.finished_in_order_count(), 0);
  order.Finish(0);
  EXPECT_EQ(order.finished_in_order_count(), 3);
  EXPECT_EQ(order.Add(), 4);
  order.Finish(4);
  EXPECT_EQ(order.finished_in_order_count(), 3);
  order.Finish(3);
  EXPECT_EQ(order.finished_in_order_count(), 5);
}

TEST(GroupOrderTest, ARefusedOneIsPassedOver) {
  GroupOrder order;
  for (int i = 0; i < 3; ++i) order.Add();
  order.Refuse(1);
  order.Finish(2);
  EXPECT_EQ(order.finished_in_order_count(), 0);
  order.Refuse(0);
  EXPECT_EQ(order.finished_in_order_count(), 1);
  EXPECT_EQ(order.finished_count(), 1);
}

}  // namespace
}  // namespace lockstep::gateway
