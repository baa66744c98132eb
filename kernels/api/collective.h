#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"

namespace lockstep::kernels {

// Ranks that can share a model at most.
inline constexpr int kRanksMax = 64;

// This rank's columns of a matrix that all ranks make together, fp32.
struct ColumnShare {
  int rows = 0;
  int first_column = 0;
  int columns = 0;
  const float* x = nullptr;  // [rows, columns], dense.
};

// One rank's end of a group. All ranks call the same ops with the same shapes in the same order;
// an op returns, or runs on the device, when it has met its counterparts. One thread drives an end.
//
// After a failure ops do nothing and `y` is not written: the owner asks for status() before it uses
// a result.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;  // A power of two.

  // y[i] = T over ranks of x_rank[i]: each element is added in the order of ranks, whatever
  // `count`. When rank r's x is a subtree of T, of the r-th of `ranks` equal runs of segments, y is
  // T of all. y may be x.
  virtual void AllReduce(const float* x, size_t count, float* y) = 0;
  // The shares side by side: y[row * y_stride + first_column + c], from every rank for every rank.
  virtual void AllGather(const ColumnShare& share, float* y, size_t y_stride) = 0;

  // Why the group was given up. Thread-safe.
  virtual absl::Status status() const = 0;
};

// The ranks of one model. Thread-safe.
class CollectiveGroup {
 public:
  virtual ~CollectiveGroup() = default;
  virtual int ranks() const = 0;
  // The end of one rank, made once each; it may outlive the group.
  virtual std::unique_ptr<Collective> End(int rank) = 0;
  // Lets every waiting rank go, and every later op do nothing. The first status stays.
  virtual void Abandon(const absl::Status& status) = 0;
  virtual absl::Status status() const = 0;
};

}  // namespace lockstep::kernels
