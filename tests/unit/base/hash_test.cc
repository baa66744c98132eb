#include "common/base/hash.h"

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

TEST(HashTest, EmptyInputHasTheDigestThatXxhashDocuments) {
  EXPECT_EQ(Hasher().Finish().ToString(), "99aa06d3014798d86001c324468d497f");
}

// Digests are stored in receipts and fingerprints, so the framing may not change unseen.
TEST(HashTest, DigestOfFramedInputStaysWhatItWas) {
  const std::vector<uint32_t> ids = {1, 2, 3};
  Hasher hasher;
  hasher.Number(7).Bytes("lockstep").Array(std::span<const uint32_t>(ids));
  EXPECT_EQ(hasher.Finish().ToString(), "a0090dc6b23d1197351be6bbee2c4355");
}

TEST(HashTest, NoTwoCallSequencesAbsorbTheSameBytes) {
  std::set<Digest128> digests;
  digests.insert(Hasher().Bytes("ab").Bytes("c").Finish());
  digests.insert(Hasher().Bytes("a").Bytes("bc").Finish());
  digests.insert(Hasher().Bytes("abc").Finish());
  digests.insert(Hasher().Bytes("abc").Bytes("").Finish());
  digests.insert(Hasher().Finish());
  digests.insert(Hasher().Bytes("").Finish());
  digests.insert(Hasher().Number(0).Finish());
  // A string of eight bytes against the two numbers that look like its length and its content.
  digests.insert(Hasher().Bytes(std::string("\x05\0\0\0\0\0\0\0", 8)).Finish());
  digests.insert(Hasher().Number(8).Number(5).Finish());
  EXPECT_EQ(digests.size(), 9u);
}

TEST(HashTest, FinishCanBeFollowedByMore) {
  Hasher hasher;
  hasher.Bytes("a");
  const Digest128 first = hasher.Finish();
  EXPECT_EQ(hasher.Finish(), first);
  hasher.Bytes("b");
  EXPECT_EQ(hasher.Finish(), Hasher().Bytes("a").Bytes("b").Finish());
}

TEST(HashTest, DigestPrintsHighHalfFirstWithLeadingZeros) {
  EXPECT_EQ((Digest128{.high = 0x1, .low = 0xab}).ToString(), "000000000000000100000000000000ab");
}

}  // namespace
}  // namespace lockstep::base
