#include "common/base/packed_array.h"

#include <bit>
#include <limits>

#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(PackedArrayTest, NumbersAreFourLittleEndianBytes) {
  EXPECT_EQ(PackArray(std::vector<uint32_t>{0x04030201u, 0xffu}),
            std::string("\x01\x02\x03\x04\xff\0\0\0", 8));
  EXPECT_EQ(PackArray(std::vector<int32_t>{-2}), std::string("\xfe\xff\xff\xff", 4));
  EXPECT_EQ(PackArray(std::vector<float>{1.0f}), std::string("\0\0\x80\x3f", 4));
}

TEST(PackedArrayTest, EveryBitOfAFloatComesBack) {
  const std::vector<float> values = {-0.0f, std::numeric_limits<float>::denorm_min(),
                                     std::bit_cast<float>(0x7fc12345u)};
  const std::string bytes = PackArray(values);
  ASSERT_EQ(PackedCount(bytes), 3);
  const std::vector<float> back = UnpackArray<float>(bytes);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(values[i]));
    EXPECT_EQ(std::bit_cast<uint32_t>(PackedAt<float>(bytes, i)),
              std::bit_cast<uint32_t>(values[i]));
  }
}

TEST(PackedArrayTest, NumbersAreReadFromAnyAddress) {
  const std::string bytes = "x" + PackArray(std::vector<uint32_t>{7, 8, 9});
  EXPECT_EQ(PackedAt<uint32_t>(std::string_view(bytes).substr(1), 2), 9u);
  EXPECT_EQ(UnpackArray<uint32_t>(std::string_view(bytes).substr(1)),
            (std::vector<uint32_t>{7, 8, 9}));
}

TEST(PackedArrayTest, EmptyArraysAndBrokenTailsHoldNothing) {
  EXPECT_EQ(PackArray(std::vector<float>{}), "");
  EXPECT_TRUE(UnpackArray<float>("").empty());
  EXPECT_EQ(PackedCount("1234567"), 1);
  EXPECT_EQ(UnpackArray<uint32_t>("1234567").size(), 1u);
}

}  // namespace
}  // namespace lockstep::base
