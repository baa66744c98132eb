#include "services/scheduler/epoch_store.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using testing::HasSubstr;

PersistentState Full() {
  PersistentState state{.scheduler_epoch = 7,
                        .admission_epoch = base::Epoch(42),
                        .abort_epoch = base::Epoch(40),
                        .pause = PauseMode::kKeep,
                        .contract = ContractOf()};
  state.contract->fields.push_back({"odd", "two\nlines and \"quotes\""});
  state.contract->fields.push_back({"empty", ""});
  return state;
}

class EpochStoreTest : public testing::Test {
 protected:
  EpochStoreTest() : folder_(testing::TempDir() + "epoch_store_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~EpochStoreTest() override { std::filesystem::remove_all(folder_); }
  std::string ReadFile() const {
    std::ifstream file(path());
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string path() const { return folder_ + "/state"; }
  const std::string folder_;
};

TEST_F(EpochStoreTest, StateSurvivesReopening) {
  {
    auto store = EpochStore::Open(path());
    ASSERT_TRUE(store.ok());
    EXPECT_EQ((*store)->Load(), std::nullopt);
    ASSERT_TRUE((*store)->Save(PersistentState{}).ok());
    ASSERT_TRUE((*store)->Save(Full()).ok());
  }
  auto store = EpochStore::Open(path());
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->Load(), Full());
}

TEST_F(EpochStoreTest, EveryFlippedByteAndEveryTruncationIsRefused) {
  ASSERT_TRUE((*EpochStore::Open(path()))->Save(Full()).ok());
  const std::string good = ReadFile();
  ASSERT_TRUE(DecodeState(good).ok());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    EXPECT_EQ(DecodeState(bad).status().code(), absl::StatusCode::kDataLoss) << "byte " << i;
    EXPECT_FALSE(DecodeState(good.substr(0, i)).ok()) << "length " << i;
  }
}

TEST_F(EpochStoreTest, CorruptedFileIsRefusedByName) {
  std::ofstream(path()) << "scheduler_epoch 3\n";
  const auto store = EpochStore::Open(path());
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(path()));
}

// Nothing that could be read without an end, or waited for; and nothing is put in its place.
TEST_F(EpochStoreTest, OnlyARegularFileOfASaneSizeIsRead) {
  const auto refused = [](const std::string& file, const std::string& why) {
    const auto store = EpochStore::Open(file);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument) << store.status();
    EXPECT_THAT(std::string(store.status().message()),
                HasSubstr("state_file: " + file + ": " + why));
  };
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  refused(path(), "is no regular file");
  EXPECT_FALSE(std::filesystem::exists(path() + ".lock"));
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  refused(path(), "is no regular file");
  std::filesystem::remove(path());
  // A device without an end: what reads it needs all memory.
  std::filesystem::create_symlink("/dev/zero", path());
  refused(path(), "is no regular file");
  std::filesystem::remove(path());
  std::ofstream(path()).close();
  std::filesystem::resize_file(path(), 1 << 30);
  refused(path(), "has 1073741824 bytes; at most 1048576 are read");
}

TEST_F(EpochStoreTest, WhatLiesInTheWayOfASaveIsReplacedNotWrittenTo) {
  auto store = EpochStore::Open(path());
  ASSERT_EQ(mkfifo((path() + ".next").c_str(), 0600), 0);
  EXPECT_TRUE((*store)->Save(Full()).ok());
  std::ofstream(folder_ + "/other") << "not ours";
  std::filesystem::create_symlink("other", path() + ".next");
  EXPECT_TRUE((*store)->Save(Full()).ok());
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/other"), 8u);
  EXPECT_TRUE(DecodeState(ReadFile()).ok());
}

TEST_F(EpochStoreTest, AStateThatTheNextStartWouldRefuseIsNotSaved) {
  auto store = EpochStore::Open(path());
  ASSERT_TRUE((*store)->Save(Full()).ok());
  PersistentState large = Full();
  large.contract->fields.push_back({"large", std::string(1 << 20, 'x')});
  EXPECT_FALSE((*store)->Save(large).ok());
  EXPECT_EQ((*store)->Load(), Full());
  EXPECT_TRUE(DecodeState(ReadFile()).ok());
}

TEST_F(EpochStoreTest, SecondSchedulerOnTheSameFileIsRefused) {
  auto first = EpochStore::Open(path());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(EpochStore::Open(path()).status().code(), absl::StatusCode::kFailedPrecondition);
  first->reset();
  EXPECT_TRUE(EpochStore::Open(path()).ok());
}

// As after a lock that ended while its holder was cut off.
TEST_F(EpochStoreTest, OneThatWasReplacedSavesNothing) {
  auto store = EpochStore::Open(path());
  ASSERT_TRUE((*store)->Save(Full()).ok());
  PersistentState later = Full();
  ++later.scheduler_epoch;
  std::ofstream(path()) << EncodeState(later);
  const absl::Status refused = (*store)->Save(Full());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another scheduler has taken over"));
  EXPECT_EQ(DecodeState(ReadFile()).value(), later);
}

TEST_F(EpochStoreTest, FailedSaveKeepsTheOldState) {
  auto store = EpochStore::Open(path());
  ASSERT_TRUE((*store)->Save(Full()).ok());
  std::filesystem::create_directories(path() + ".next");  // In the way of the new file.
  EXPECT_FALSE((*store)->Save(PersistentState{}).ok());
  EXPECT_EQ((*store)->Load(), Full());
  EXPECT_TRUE(DecodeState(ReadFile()).ok());
}

}  // namespace
}  // namespace lockstep::scheduler
