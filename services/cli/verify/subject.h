#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"
#include "nlohmann/json.hpp"
#include "services/client/metrics_page.h"
#include "services/client/rollout_client.h"

namespace lockstep::cli {

// Counters of all workers at one moment. A worker that began a new life since then counts from 0.
class MetricsSnapshot {
 public:
  void Add(std::string worker, uint64_t incarnation, client::MetricsPage page) {
    workers_.push_back({std::move(worker), incarnation, std::move(page)});
  }
  // By how much a counter grew from `before` to this snapshot, over all workers.
  double Growth(const MetricsSnapshot& before, std::string_view counter) const;
  // The same for the observations of a histogram above one of its bounds.
  double GrowthAbove(const MetricsSnapshot& before, std::string_view histogram, double bound) const;
  // A gauge of one worker, 0 for one that is not there.
  double Gauge(std::string_view worker, std::string_view name) const;

 private:
  struct Worker {
    std::string name;
    uint64_t incarnation;
    client::MetricsPage page;
  };
  const client::MetricsPage* Find(const Worker& worker) const;

  std::vector<Worker> workers_;
};

// The cluster whose determinism is to be proved: its facts, prompts for its tokenizer, its metrics,
// and a way to each worker. One thread.
class Subject {
 public:
  // Waits until the gateway answers; asks it for the facts.
  // `metrics` is the way to the workers' metrics.
  static absl::StatusOr<Subject> Connect(client::RolloutClient* cluster,
                                         client::MetricsAccess metrics = {});

  client::RolloutClient* cluster() const { return cluster_; }
  const v1::GetServerInfoResponse& info() const { return info_; }
  // What is shared and evicted as one.
  int64_t block_tokens() const { return info_.workers(0).kv_block_tokens(); }
  // What attention adds as one: a block or several.
  int64_t key_block_tokens() const { return info_.fingerprint().kv_block_tokens(); }
  int64_t split_tokens() const { return info_.fingerprint().split_kv_size(); }
  // Without one, requests with text or stop strings are refused.
  bool has_tokenizer() const { return has_tokenizer_; }
  // KV of the smallest worker.
  int64_t kv_tokens() const;
  std::vector<std::string> workers() const;
  // Workers by the number of ranks that share their model, at the time of Connect.
  const std::map<int64_t, int>& workers_by_ranks() const { return workers_by_ranks_; }
  // Sequences with this routing key go to this worker while the cluster is idle.
  const std::string& KeyOf(size_t worker) const { return keys_[worker]; }

  // `text` as ids; without a tokenizer, ids made from its bytes.
  absl::StatusOr<std::vector<int64_t>> Ids(const std::string& text) const;
  // Exactly `tokens` ids of solved examples; another variation shares no block of KV.
  absl::StatusOr<std::vector<int64_t>> LongIds(int64_t tokens, int64_t variation) const;

  // What the modes that ended have found, for a file.
  void AddRecord(nlohmann::ordered_json record) { records_.push_back(std::move(record)); }
  const nlohmann::ordered_json& records() const { return records_; }

  absl::StatusOr<MetricsSnapshot> ReadMetrics() const;
  // Asks for the facts again; after a worker was restarted they are others.
  absl::Status Refresh();

 private:
  Subject(client::RolloutClient* cluster, client::MetricsAccess metrics)
      : cluster_(cluster), metrics_(std::move(metrics)) {}
  absl::Status FindKeys();
  absl::Status TryKeys();
  // Who answers a request with this routing key now.
  absl::StatusOr<std::string> WorkerOf(const std::string& key);

  client::RolloutClient* cluster_;
  client::MetricsAccess metrics_;
  v1::GetServerInfoResponse info_;
  bool has_tokenizer_ = true;
  std::map<int64_t, int> workers_by_ranks_;
  nlohmann::ordered_json records_ = nlohmann::ordered_json::array();
  std::vector<std::string> keys_;  // By position of the worker in info_.
};

}  // namespace lockstep::cli
