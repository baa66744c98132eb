#include "common/base/strong_id.h"

#include <sstream>
#include <string>
#include <type_traits>

#include "absl/container/flat_hash_set.h"
#include "common/base/ids.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

static_assert(!std::is_convertible_v<std::string, WorkerId>, "a raw value is not an id");
static_assert(!std::is_convertible_v<WorkerId, RequestId>, "kinds do not mix");
static_assert(!std::is_constructible_v<RequestId, WorkerId>, "not even when asked to");

TEST(StrongIdTest, ComparesHashesAndPrintsAsItsValue) {
  EXPECT_EQ(TicketId(4), TicketId(4));
  EXPECT_NE(TicketId(4), TicketId(5));
  EXPECT_LT(Epoch(1), Epoch(2));
  const absl::flat_hash_set<WorkerId> workers = {WorkerId("a"), WorkerId("b"), WorkerId("a")};
  EXPECT_EQ(workers.size(), 2u);
  std::ostringstream out;
  out << WorkerId("worker-0");
  EXPECT_EQ(out.str(), "worker-0");
}

TEST(StrongIdTest, DefaultIsTheZeroValue) {
  EXPECT_EQ(TicketId().value(), 0u);
  EXPECT_EQ(RequestId().value(), "");
}

}  // namespace
}  // namespace lockstep::base
