#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/in_process_group.h"
#include "kernels/order/tree.h"
#include "tests/support/philox_data.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatient = absl::Seconds(60);

std::unique_ptr<CollectiveGroup> Group(int ranks, absl::Duration patience = kPatient) {
  return CreateInProcessGroup(ranks, patience).value();
}

// Each rank on a thread of its own.
void OnRanks(CollectiveGroup* group, const std::function<void(Collective*)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    threads.emplace_back([&, rank] { body(group->End(rank).get()); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of wide exponents, so that another order shows.
std::vector<float> Part(int rank, size_t count) {
  return testing::WideData(static_cast<uint32_t>(rank + 1), count);
}

TEST(InProcessGroupTest, AllReduceIsTheTreeOverRanksForEverySize) {
  for (const int ranks : {1, 2, 4, 8}) {
    const auto group = Group(ranks);
    for (const size_t count : {1u, 2u, 63u, 64u, 1023u, 1024u, 1025u, 4097u}) {
      std::vector<std::vector<float>> sums(static_cast<size_t>(ranks));
      OnRanks(group.get(), [&](Collective* end) {
        std::vector<float> x = Part(end->rank(), count);
        end->AllReduce(x.data(), count, x.data());
        sums[static_cast<size_t>(end->rank())] = x;
      });
      std::vector<std::vector<float>> parts;
      for (int rank = 0; rank < ranks; ++rank) parts.push_back(Part(rank, count));
      std::vector<float> expected(count);
      for (size_t i = 0; i < count; ++i) {
        std::vector<float> values;
        for (const std::vector<float>& part : parts) values.push_back(part[i]);
        expected[i] = TreeSum(values);
      }
      for (const std::vector<float>& sum : sums) {
        EXPECT_EQ(sum, expected) << ranks << " ranks, " << count << " elements";
      }
      EXPECT_TRUE(group->status().ok());
    }
  }
}

TEST(InProcessGroupTest, AnElementKeepsItsBitsInAMessageOfAnySize) {
  constexpr size_t kAll = 3000;
  const auto sums_of = [](size_t count) {
    const auto group = Group(4);
    std::vector<float> sums;
    OnRanks(group.get(), [&](Collective* end) {
      std::vector<float> x = Part(end->rank(), kAll);
      end->AllReduce(x.data(), count, x.data());
      if (end->rank() == 0) sums.assign(x.begin(), x.begin() + static_cast<int64_t>(count));
    });
    return sums;
  };
  const std::vector<float> all = sums_of(kAll);
  for (const size_t count : {1u, 7u, 1000u, 2048u}) {
    EXPECT_EQ(sums_of(count), std::vector<float>(all.begin(), all.begin() + count));
  }
}

// As tests/gpu has it for the other implementations.
TEST(InProcessGroupTest, AnElementKeepsItsBitsInMessagesOfUpTo8192Tokens) {
  constexpr size_t kDistinct = 256;  // Of a narrow model: memory is what takes time.
  const auto group = Group(2);
  const std::vector<std::vector<float>> parts = {Part(0, kDistinct), Part(1, kDistinct)};
  std::vector<float> expected(kDistinct);
  for (size_t i = 0; i < kDistinct; ++i) {
    expected[i] = TreeSum(std::vector<float>{parts[0][i], parts[1][i]});
  }
  for (const size_t tokens : {1u, 2u, 63u, 64u, 65u, 511u, 512u, 513u, 8191u, 8192u}) {
    OnRanks(group.get(), [&](Collective* end) {
      const std::vector<float>& part = parts[static_cast<size_t>(end->rank())];
      std::vector<float> x;
      for (size_t token = 0; token < tokens; ++token) x.insert(x.end(), part.begin(), part.end());
      end->AllReduce(x.data(), x.size(), x.data());
      size_t differing = 0;
      for (size_t i = 0; i < x.size(); ++i) differing += x[i] != expected[i % kDistinct] ? 1 : 0;
      EXPECT_EQ(differing, 0u) << tokens << " tokens, rank " << end->rank();
    });
  }
}

TEST(InProcessGroupTest, AllGatherPutsUnequalSharesSideBySide) {
  constexpr int kRows = 3;
  const std::vector<int> widths = {5, 1, 2, 16};
  const auto group = Group(4);
  std::vector<std::vector<float>> gathered(4);
  OnRanks(group.get(), [&](Collective* end) {
    const size_t rank = static_cast<size_t>(end->rank());
    int first = 0;
    for (size_t before = 0; before < rank; ++before) first += widths[before];
    const size_t width = static_cast<size_t>(widths[rank]);
    std::vector<float> own(kRows * width);
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = static_cast<float>(100 * (i / width) + static_cast<size_t>(first) + i % width);
    }
    gathered[rank].assign(kRows * 30, -1);
    end->AllGather({.rows = kRows, .first_column = first, .columns = widths[rank], .x = own.data()},
                   gathered[rank].data(), 30);
  });
  std::vector<float> expected(kRows * 30, -1);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t c = 0; c < 24; ++c) expected[row * 30 + c] = static_cast<float>(100 * row + c);
  }
  for (const std::vector<float>& matrix : gathered) EXPECT_EQ(matrix, expected);
}

TEST(InProcessGroupTest, ARankThatStaysAwayIsNamedAndNobodyWaitsLonger) {
  const auto group = Group(4, absl::Milliseconds(50));
  OnRanks(group.get(), [&](Collective* end) {
    if (end->rank() == 2) return;
    float x = 1;
    end->AllReduce(&x, 1, &x);
    EXPECT_EQ(x, 1) << "a sum without rank 2";
  });
  EXPECT_EQ(group->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(group->status().message()), HasSubstr("rank 2 of 4"));
}

// In a child process, whose rank 1 stops it while rank 0 waits. Says how the child ended.
int StatusOfAChildThatIsStopped(absl::Duration patience) {
  const pid_t child = fork();
  if (child == 0) {
    const auto group = Group(2, patience);
    OnRanks(group.get(), [&](Collective* end) {
      if (end->rank() == 1) {
        absl::SleepFor(patience / 20);
        raise(SIGSTOP);
        absl::SleepFor(patience / 4);
      }
      float x = 1;
      end->AllReduce(&x, 1, &x);
    });
    _exit(group->status().ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  absl::SleepFor(2 * patience);
  kill(child, SIGCONT);
  waitpid(child, &status, 0);
  return status;
}

TEST(InProcessGroupTest, TimeForWhichTheProcessWasStoppedIsNotWaited) {
  EXPECT_EQ(StatusOfAChildThatIsStopped(absl::Seconds(2)), 0);
}

TEST(InProcessGroupTest, AnAbandonedGroupLetsWaitingRanksGo) {
  const auto group = Group(2);
  std::thread waiting([&] {
    float x = 1;
    group->End(0)->AllReduce(&x, 1, &x);
    EXPECT_EQ(x, 1);
  });
  group->Abandon(absl::InternalError("the device of rank 1 is lost"));
  waiting.join();
  group->Abandon(absl::InternalError("a later reason"));
  EXPECT_THAT(std::string(group->status().message()), HasSubstr("rank 1 is lost"));
}

TEST(InProcessGroupTest, RefusesWhatIsNoPowerOfTwo) {
  for (const int ranks : {-1, 0, 3, 6, 128}) {
    EXPECT_THAT(std::string(CreateInProcessGroup(ranks, kPatient).status().message()),
                HasSubstr("ranks = " + std::to_string(ranks)));
  }
}

}  // namespace
}  // namespace lockstep::kernels
