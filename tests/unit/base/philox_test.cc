#include "common/base/philox.h"

#include <array>
#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

using Counter = std::array<uint32_t, 4>;

// The known answers that the Random123 distribution gives for philox4x32 with ten rounds.
TEST(PhiloxTest, GivesTheKnownAnswersOfItsAuthors) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryCounterAndKeyWordMatters) {
  std::set<Counter> outputs = {Philox4x32({1, 2, 3, 4}, {5, 6})};
  for (int word = 0; word < 6; ++word) {
    Counter counter = {1, 2, 3, 4};
    std::array<uint32_t, 2> key = {5, 6};
    (word < 4 ? counter[word] : key[word - 4]) ^= 1;
    outputs.insert(Philox4x32(counter, key));
  }
  EXPECT_EQ(outputs.size(), 7u);
}

}  // namespace
}  // namespace lockstep::base
