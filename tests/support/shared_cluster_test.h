#pragma once

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/cluster_harness.h"

namespace lockstep::testing {

// Tests that share one cluster, started before the first of a suite and stopped after the last.
// `Suite` is the class that derives; it may have a public ClusterOptions() of its own.
//
//   class ScoreTest : public SharedClusterTest<ScoreTest> {};
//   TEST_F(ScoreTest, …) { … stub() … }
template <typename Suite>
class SharedClusterTest : public ::testing::Test {
 public:
  static ClusterHarness::Options ClusterOptions() { return {.model = "deploy/demo-model"}; }

 protected:
  static void SetUpTestSuite() {
    cluster_ = std::make_unique<ClusterHarness>(Suite::ClusterOptions());
    const absl::Status status = cluster_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  static v1::RolloutService::StubInterface* stub() { return cluster_->stub(); }

  static inline std::unique_ptr<ClusterHarness> cluster_;
};

}  // namespace lockstep::testing
