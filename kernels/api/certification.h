#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::kernels {

// A linear layer of a model, as far as the choice of its kernel depends on it.
struct LinearLayer {
  std::string name;  // "down"
  int outputs = 0;
  int inputs = 0;
  int segments = 1;
  bool bias = false;
  bool output_f32 = false;
  int rows_max = 0;  // Of one call.
};

// The fastest algorithm that gave the reference's bits, at one number of rows.
struct CertifiedAlgorithm {
  std::string layer;
  int rows = 0;
  std::string algorithm;
  double microseconds = 0;  // As timed when it was chosen.
  int offered = 0;          // Algorithms tried.
};

// One whose bits differed.
struct RefusedAlgorithm {
  std::string layer;
  int rows = 0;
  std::string algorithm;
  uint64_t differing = 0;  // Elements, of `compared`.
  uint64_t compared = 0;
};

struct CertificationReport {
  std::string environment;  // GPU and library that the certificates are bound to.
  std::vector<CertifiedAlgorithm> certified;
  std::vector<RefusedAlgorithm> refused;
};

}  // namespace lockstep::kernels
