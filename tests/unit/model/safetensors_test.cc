#include "services/worker/model/safetensors.h"

#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/model/checkpoint.h"
#include "tests/support/checkpoint_writer.h"

namespace lockstep::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kValid[] = R"({"__metadata__":{"format":"pt"},)"
                          R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                          R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";
constexpr uint64_t kValidBytes = 22;

TEST(SafetensorsHeaderTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const auto entries = ParseSafetensorsHeader("file", kValid, kValidBytes);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), size_t{2});
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].dtype, "F32");
  EXPECT_THAT((*entries)[0].shape, ElementsAre(2, 2));
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].begin, uint64_t{16});
  EXPECT_EQ((*entries)[1].end, uint64_t{22});
}

TEST(SafetensorsHeaderTest, TakesScalarsAndEmptyTensors) {
  const auto entries =
      ParseSafetensorsHeader("file",
                             R"({"e":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)"
                             R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                             4);
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(entries->size(), size_t{2});
}

struct Corruption {
  std::string name;
  std::string entry;  // JSON of tensor "b", beside a valid "a" of bytes 0..16.
  std::string named;
};

void PrintTo(const Corruption& corruption, std::ostream* out) { *out << corruption.entry; }

class CorruptHeaderTest : public ::testing::TestWithParam<Corruption> {};

TEST_P(CorruptHeaderTest, NamesFileTensorAndReason) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":)" + GetParam().entry + "}";
  const absl::Status status = ParseSafetensorsHeader("x.safetensors", header, 24).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("x.safetensors"), HasSubstr("\"b\""), HasSubstr(GetParam().named)));
}

INSTANTIATE_TEST_SUITE_P(
    Entries, CorruptHeaderTest,
    ::testing::Values(
        Corruption{"BeyondTheFile", R"({"dtype":"F32","shape":[4],"data_offsets":[16,32]})",
                   "24 bytes of data"},
        Corruption{"Backwards", R"({"dtype":"F32","shape":[2],"data_offsets":[24,16]})",
                   "[24, 16]"},
        Corruption{"Overlap", R"({"dtype":"F32","shape":[4],"data_offsets":[8,24]})",
                   "begins at 8, inside the tensor before it"},
        Corruption{"Hole", R"({"dtype":"F32","shape":[1],"data_offsets":[20,24]})", "after a hole"},
        Corruption{"SizeOfShape", R"({"dtype":"F32","shape":[3],"data_offsets":[16,24]})",
                   "call for 12"},
        Corruption{"SizeOfDtype", R"({"dtype":"F64","shape":[2],"data_offsets":[16,24]})",
                   "call for 16"},
        Corruption{"UnknownDtype", R"({"dtype":"F31","shape":[2],"data_offsets":[16,24]})",
                   "unknown dtype \"F31\""},
        Corruption{"DtypeOfNumber", R"({"dtype":7,"shape":[2],"data_offsets":[16,24]})", "dtype"},
        Corruption{"NoDtype", R"({"shape":[2],"data_offsets":[16,24]})", "dtype"},
        Corruption{"NegativeExtent", R"({"dtype":"F32","shape":[-2],"data_offsets":[16,24]})",
                   "-2"},
        Corruption{"FractionalExtent", R"({"dtype":"F32","shape":[2.0],"data_offsets":[16,24]})",
                   "2.0"},
        Corruption{"OverflowingShape",
                   R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[16,24]})",
                   "2^64"},
        Corruption{"ManyDimensions",
                   R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[16,24]})",
                   "shape"},
        Corruption{"NoShape", R"({"dtype":"F32","data_offsets":[16,24]})", "shape"},
        Corruption{"NoOffsets", R"({"dtype":"F32","shape":[2]})", "data_offsets"},
        Corruption{"ThreeOffsets", R"({"dtype":"F32","shape":[2],"data_offsets":[16,24,24]})",
                   "data_offsets"},
        Corruption{"NegativeOffset", R"({"dtype":"F32","shape":[2],"data_offsets":[-16,24]})",
                   "-16"},
        Corruption{"HugeOffset",
                   R"({"dtype":"F32","shape":[2],"data_offsets":[16,18446744073709551615]})",
                   "18446744073709551615"},
        Corruption{"UnknownField",
                   R"({"dtype":"F32","shape":[2],"data_offsets":[16,24],"scale":1})", "scale"},
        Corruption{"NoObject", "[]", "an array"}),
    [](const ::testing::TestParamInfo<Corruption>& info) { return info.param.name; });

void ExpectHeaderRefused(const std::string& header, uint64_t data_bytes, const std::string& named) {
  const absl::Status status = ParseSafetensorsHeader("f", header, data_bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("f: "), HasSubstr(named)));
}

TEST(SafetensorsHeaderTest, RefusesWhatIsWrongWithTheWhole) {
  ExpectHeaderRefused(kValid, kValidBytes + 1, "1 bytes after the last tensor");
  ExpectHeaderRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                      1, "\"a\" occurs twice");
  ExpectHeaderRefused("", 0, "not valid JSON");
  ExpectHeaderRefused("[]", 0, "JSON object");
  ExpectHeaderRefused(std::string(kValid).substr(0, 60), kValidBytes, "not valid JSON");
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  absl::Status OpenBytes(const std::string& bytes) {
    testing::WriteBytes(directory_.File("t.safetensors"), bytes);
    return SafetensorsFile::Open(directory_.File("t.safetensors")).status();
  }
  void ExpectRefused(const std::string& bytes, const std::string& named) {
    const absl::Status status = OpenBytes(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("t.safetensors"), HasSubstr(named)));
  }

  testing::TemporaryDirectory directory_;
  const std::string valid_ = testing::SafetensorsBytes(
      {{"a", {2, 2}, {1, 2, 3, 4}}, {"b", {1}, {5}}}, testing::StoredType::kF32);
};

TEST_F(SafetensorsFileTest, GivesBytesAlsoAfterTheirPagesWereDropped) {
  ASSERT_TRUE(OpenBytes(valid_).ok());
  const auto file = SafetensorsFile::Open(directory_.File("t.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name(), "t.safetensors");
  for (int round = 0; round < 2; ++round) {
    const auto data = file->Data(file->entries()[1]);
    float value = 0;
    ASSERT_EQ(data.size(), sizeof(value));
    std::memcpy(&value, data.data(), sizeof(value));
    EXPECT_EQ(value, 5);
    for (const SafetensorsEntry& entry : file->entries()) file->DropPages(entry);
  }
}

TEST_F(SafetensorsFileTest, RefusesEveryTruncation) {
  for (size_t size = 0; size < valid_.size(); ++size) {
    EXPECT_EQ(OpenBytes(valid_.substr(0, size)).code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST_F(SafetensorsFileTest, RefusesAHeaderLengthBeyondTheFile) {
  for (const uint64_t length : {uint64_t{valid_.size()}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string bytes = valid_;
    std::memcpy(bytes.data(), &length, sizeof(length));
    ExpectRefused(bytes, "header length");
  }
}

TEST_F(SafetensorsFileTest, RefusesTrailingBytesAndDirectories) {
  ExpectRefused(valid_ + "x", "1 bytes after the last tensor");
  EXPECT_EQ(SafetensorsFile::Open(directory_.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::Open(directory_.File("none")).status().code(),
            absl::StatusCode::kNotFound);
}

class CheckpointTest : public ::testing::Test {
 protected:
  void WriteShard(const std::string& name, const std::string& tensor) {
    testing::WriteBytes(directory_.File(name),
                        testing::SafetensorsBytes({{tensor, {1}, {1}}}, testing::StoredType::kF32));
  }
  void WriteIndex(const std::string& weight_map) {
    testing::WriteBytes(directory_.File("model.safetensors.index.json"),
                        "{\"weight_map\":" + weight_map + "}");
  }
  void ExpectRefused(const std::vector<std::string>& named) {
    const absl::Status status = Checkpoint::Open(directory_.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& text : named) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(CheckpointTest, ReadsShards) {
  WriteShard("1.safetensors", "a");
  WriteShard("2.safetensors", "b");
  WriteIndex(R"({"a":"1.safetensors","b":"2.safetensors"})");
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_NE(checkpoint->Find("b"), nullptr);
  EXPECT_EQ(checkpoint->Find("b")->file->name(), "2.safetensors");
  EXPECT_EQ(checkpoint->Find("c"), nullptr);
}

TEST_F(CheckpointTest, NamesAMissingShardAndTensor) {
  WriteShard("1.safetensors", "a");
  WriteIndex(R"({"a":"1.safetensors","b":"2.safetensors"})");
  ExpectRefused({"index.json", "\"b\"", "\"2.safetensors\"", "missing"});
  WriteIndex(R"({"a":"1.safetensors","b":"1.safetensors"})");
  ExpectRefused({"index.json", "\"b\"", "\"1.safetensors\"", "lacks it"});
}

TEST_F(CheckpointTest, NamesATensorThatIsStoredTwiceOrNotListed) {
  WriteShard("1.safetensors", "a");
  WriteShard("2.safetensors", "a");
  WriteIndex(R"({"a":"1.safetensors","b":"2.safetensors"})");
  ExpectRefused({"\"a\"", "2.safetensors", "1.safetensors"});
  WriteShard("2.safetensors", "c");
  WriteIndex(R"({"a":"1.safetensors","b":"2.safetensors"})");
  ExpectRefused({"\"c\"", "2.safetensors", "nowhere"});
  WriteIndex(R"({"a":"1.safetensors","a":"1.safetensors"})");
  ExpectRefused({"\"a\"", "twice"});
}

TEST_F(CheckpointTest, RefusesAnIndexThatLeadsElsewhere) {
  WriteShard("1.safetensors", "a");
  for (const char* file : {"\"../1.safetensors\"", "\"/etc/passwd\"", "7", "\"1.bin\"", "null"}) {
    WriteIndex(std::string("{\"a\":") + file + "}");
    ExpectRefused({"index.json", "\"a\"", "beside the index"});
  }
  WriteIndex("{}");
  ExpectRefused({"weight_map"});
  WriteIndex("[]");
  ExpectRefused({"weight_map"});
}

TEST_F(CheckpointTest, NeedsExactlyOneForm) {
  EXPECT_EQ(Checkpoint::Open(directory_.path()).status().code(), absl::StatusCode::kNotFound);
  WriteShard("model.safetensors", "a");
  EXPECT_TRUE(Checkpoint::Open(directory_.path()).ok());
  WriteIndex(R"({"a":"model.safetensors"})");
  ExpectRefused({"both"});
}

}  // namespace
}  // namespace lockstep::worker
