// Runs the kept corpus of one fuzz target through the target's own entry, so that what a fuzzer
// once found stays found in builds without one.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace lockstep {
namespace {

TEST(FuzzCorpusTest, EveryKeptInputIsHandled) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_FUZZ_CORPUS_DIR)) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
              0);
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace lockstep
