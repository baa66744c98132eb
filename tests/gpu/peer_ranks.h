#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/cuda/runtime/stream.h"
#include "tests/gpu/gpu_test.h"

// Ranks on devices of their own where there are enough, else on shared ones: what they compute is
// the same, only how fast is not.
namespace lockstep::testing {

inline std::vector<int> DevicesOf(int ranks) {
  int count = 0;
  Must(cudaGetDeviceCount(&count));
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank % count);
  return devices;
}

inline std::shared_ptr<kernels::CollectiveGroup> PeersOf(
    int ranks, absl::Duration patience = absl::Seconds(60)) {
  auto group = kernels::cuda::CreatePeerGroup(DevicesOf(ranks), patience);
  LOCKSTEP_CHECK(group.ok()) << group.status().ToString();
  return *std::move(group);
}

struct PeerBounds {
  size_t bytes = size_t{64} << 20;
  // Columns that each rank gathers.
  std::function<kernels::ColumnShare(int rank)> share = [](int) { return kernels::ColumnShare(); };
};

// Each rank on a thread and a stream of its own.
inline void OnPeers(kernels::CollectiveGroup* group, const PeerBounds& bounds,
                    const std::function<void(kernels::cuda::PeerEnd*, cudaStream_t stream)>& body) {
  std::vector<std::thread> threads;
  const std::vector<int> devices = DevicesOf(group->ranks());
  for (int rank = 0; rank < group->ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      Must(cudaSetDevice(devices[static_cast<size_t>(rank)]));
      const auto stream = kernels::cuda::CreateStream().value();
      const auto end = group->End(rank);
      auto* const peer = static_cast<kernels::cuda::PeerEnd*>(end.get());
      absl::Status status = peer->Open(stream.get());
      LOCKSTEP_CHECK(status.ok()) << status.ToString();
      status = peer->Reserve(bounds.bytes, bounds.share(rank));
      LOCKSTEP_CHECK(status.ok()) << status.ToString();
      body(peer, stream.get());
      Must(cudaStreamSynchronize(stream.get()));
      // Nobody frees what others may still write to.
      LOCKSTEP_CHECK(peer->InTurn([] { return absl::OkStatus(); }).ok() || !group->status().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::testing
