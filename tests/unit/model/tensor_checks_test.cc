#include "services/worker/model/tensor_checks.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/checkpoint_writer.h"

namespace lockstep::worker {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

class TensorChecksTest : public ::testing::Test {
 protected:
  TensorChecksTest() {
    std::vector<testing::NamedTensor> tensors = testing::MakeTensors({});
    tensors[kBad].values[5] = std::numeric_limits<float>::quiet_NaN();
    bad_ = tensors[kBad].name;
    testing::WriteBytes(directory_.File("model.safetensors"),
                        testing::SafetensorsBytes(tensors, testing::StoredType::kBf16));
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(directory_.path());
    LOCKSTEP_CHECK(checkpoint.ok()) << checkpoint.status().ToString();
    checkpoint_.emplace(*std::move(checkpoint));
  }
  void ExpectTheResultsOfOneThread(TensorChecks* checks) {
    for (const auto& [name, tensor] : checkpoint_->tensors()) {
      const auto taken = checks->Take(tensor, DType::kBf16);
      const auto alone = CheckAndDigest(tensor, DType::kBf16);
      ASSERT_EQ(taken.ok(), name != bad_) << taken.status();
      EXPECT_EQ(taken.status(), alone.status());
      if (!taken.ok()) continue;
      EXPECT_EQ(*taken, *alone) << name;
    }
  }

  static constexpr size_t kBad = 4;
  testing::TemporaryDirectory directory_;
  std::string bad_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(TensorChecksTest, GiveTheResultsOfOneThreadHoweverManyThereAre) {
  for (const int threads : {0, 1, 3, 8}) {
    TensorChecks checks(threads);
    for (const auto& [name, tensor] : checkpoint_->tensors()) {
      checks.Begin(tensor, DType::kBf16);
      checks.Begin(tensor, DType::kBf16);
    }
    ExpectTheResultsOfOneThread(&checks);
  }
}

TEST_F(TensorChecksTest, TensorsNeedNotBeAskedForNorTaken) {
  TensorChecks asked(2);
  ExpectTheResultsOfOneThread(&asked);
  for (const auto& [name, tensor] : checkpoint_->tensors()) asked.Begin(tensor, DType::kBf16);
}

TEST_F(TensorChecksTest, AnErrorNamesFileTensorAndElement) {
  TensorChecks checks(1);
  const Checkpoint::Tensor& tensor = *checkpoint_->Find(bad_);
  checks.Begin(tensor, DType::kBf16);
  const auto taken = checks.Take(tensor, DType::kBf16);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part :
       {std::string("model.safetensors"), bad_, std::string("element 5")}) {
    EXPECT_THAT(std::string(taken.status().message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace lockstep::worker
