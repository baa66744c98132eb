#pragma once

#include <cstdio>
#include <string>

#include "benchmark/benchmark.h"
#include "tests/gpu/gpu_test.h"

namespace lockstep::bench {

// The main function of a bench on a device; its result is the exit status. `register_all` adds the
// cases.
inline int RunDeviceBench(int argc, char** argv, void (*register_all)()) {
  if (const std::string reason = testing::WhyNoDevice(); !reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace lockstep::bench
