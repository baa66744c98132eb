#include "services/cli/record.h"

#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/files.h"
#include "services/cli/json_text.h"
#include "services/client/sample_bits.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;

std::string TempPath(const char* name) { return ::testing::TempDir() + name; }

TEST(RecordTest, KeepsEveryBitOfRequestAndAnswer) {
  Record record;
  record.request.set_prompt_text(std::string("broken \xff\0 utf8", 14));
  record.request.set_exact_seed(std::numeric_limits<uint64_t>::max());
  record.request.mutable_sampling()->set_temperature(0.1f);
  record.request.mutable_sampling()->set_top_p(1.0f / 3);
  v1::LogitBias* bias = record.request.mutable_sampling()->add_logit_bias();
  bias->set_bias(-std::numeric_limits<float>::infinity());
  v1::Sample* sample = record.response.add_samples();
  sample->set_token_ids(std::string("\x01\0\0\0\xff\xff\xff\xff", 8));
  sample->mutable_logprobs()->set_raw(std::string("\x01\0\0\x80\0\0\xc0\x7f", 8));
  sample->set_text("🐸");
  const std::string path = TempPath("record.json");
  ASSERT_TRUE(WriteRecord(path, record).ok());
  const auto read = ReadRecord(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->request.SerializeAsString(), record.request.SerializeAsString());
  EXPECT_EQ(read->response.SerializeAsString(), record.response.SerializeAsString());
}

TEST(RecordTest, NamesAFileThatIsNoRecord) {
  const std::string path = TempPath("not_a_record.json");
  for (const char* text : {"", "{", "[]", "{\"request\": {}}",
                           "{\"request\": {\"no_such_field\": 1}, \"response\": {}}"}) {
    ASSERT_TRUE(WriteFile(path, text).ok());
    const auto read = ReadRecord(path);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(read.status().message().find(path), absl::string_view::npos) << read.status();
  }
  EXPECT_EQ(ReadRecord(TempPath("absent")).status().code(), absl::StatusCode::kInvalidArgument);
}

// A parser that recurses would take the whole stack.
TEST(RecordTest, RefusesWhatIsNestedWithoutEnd) {
  const std::string path = TempPath("deep.json");
  std::string text = "{\"response\": {}, \"request\": ";
  for (int i = 0; i < 200'000; ++i) text += "{\"a\":";
  text += "1" + std::string(200'001, '}');
  ASSERT_TRUE(WriteFile(path, text).ok());
  const absl::Status status = ReadRecord(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": nested deeper than 32"));
}

TEST(RecordTest, RefusesAnAnswerWithoutSamples) {
  const std::string path = TempPath("empty.json");
  for (const char* text :
       {"{\"request\": {}, \"response\": {}}",
        "{\"request\": {\"prompt_text\": \"MQ==\"}, \"response\": {\"samples\": []}}"}) {
    ASSERT_TRUE(WriteFile(path, text).ok());
    EXPECT_EQ(ReadRecord(path).status(),
              absl::InvalidArgumentError(path + ": the answer in it has no sample"));
  }
}

TEST(JsonTextTest, ShowsBytesThatAreNoText) {
  const nlohmann::json json = {{"prompt", "caf\xe9 au lait"}};
  EXPECT_EQ(JsonText(json), "{\"prompt\":\"caf\uFFFD au lait\"}");
  nlohmann::ordered_json report;
  report["command"] = "--out=\xff.json";
  const std::string path = TempPath("\xff.json");
  EXPECT_TRUE(WriteReport(path, report).ok());
  EXPECT_EQ(ReadFile(path).value(), "{\n \"command\": \"--out=\uFFFD.json\"\n}\n");
}

TEST(FilesTest, AreReadWholeOrRefused) {
  const std::string path = TempPath("bytes");
  const std::string bytes(200'000, '\xa5');
  ASSERT_TRUE(WriteFile(path, bytes).ok());
  EXPECT_EQ(ReadFile(path, bytes.size()).value(), bytes);
  EXPECT_EQ(ReadFile(path, bytes.size() - 1).status(),
            absl::InvalidArgumentError(
                path + ": is longer than 199999 bytes, which is what is read at most"));
  EXPECT_GT(ReadFile("/proc/self/status").value().size(), 100u);
}

TEST(FilesTest, MayBePipesAndNoDevices) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "from a pipe", 11), 11);
  ASSERT_EQ(close(ends[1]), 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(ReadFile(path).value(), "from a pipe");
  close(ends[0]);
  for (const char* device : {"/dev/zero", "/dev/null", "/dev/urandom"}) {
    EXPECT_EQ(ReadFile(device).status(),
              absl::InvalidArgumentError(std::string(device) + ": is neither a file nor a pipe"));
  }
}

TEST(FilesTest, SayBeforehandWhereNothingCanBeWritten) {
  EXPECT_TRUE(CheckWritable(TempPath("fresh.json")).ok());
  EXPECT_TRUE(CheckWritable("fresh.json").ok());
  ASSERT_TRUE(WriteFile(TempPath("old.json"), "old").ok());
  EXPECT_TRUE(CheckWritable(TempPath("old.json")).ok());
  for (const auto& [path, error] : std::vector<std::pair<std::string, std::string>>{
           {"/no/such/x.json", "/no/such: is no directory"},
           {TempPath("old.json/x"), "old.json: is no directory"},
           {TempPath("absent/"), "absent: is no directory"},
           {"/tmp", "/tmp: is a directory"},
           {"/dev/null", "/dev/null: is no regular file"}}) {
    const absl::Status status = CheckWritable(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_NE(status.message().find(error), absl::string_view::npos) << status;
  }
  EXPECT_FALSE(std::filesystem::exists(TempPath("fresh.json")));
}

}  // namespace
}  // namespace lockstep::cli
