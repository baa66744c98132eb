#include "services/cli/verify/subject.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "services/cli/sample_end.h"
#include "services/client/arrays.h"

namespace lockstep::cli {
namespace {

// Keys tried until every worker has one; with rendezvous hashing each has an equal chance.
constexpr int kKeysTried = 512;
constexpr int kKeyRounds = 5;
constexpr char kRanksGauge[] = "lockstep_worker_ranks";

// One line of solved arithmetic, as the demo model knows it; any model can read it.
std::string Example(uint64_t number) {
  const uint64_t a = 1 + number % 89;
  const uint64_t b = 2 + number / 89 % 83;
  const uint64_t c = 2 + number / 7387 % 8;
  const uint64_t product = b * c;
  return absl::StrCat(a, "+", b, "*", c, "= ", b, "*", c, "=", product, "; ", a, "+", product, "=",
                      a + product, "; answer ", a + product, "\n");
}

}  // namespace

const client::MetricsPage* MetricsSnapshot::Find(const Worker& worker) const {
  for (const Worker& mine : workers_) {
    if (mine.name == worker.name && mine.incarnation == worker.incarnation) return &mine.page;
  }
  return nullptr;
}

double MetricsSnapshot::Growth(const MetricsSnapshot& before, std::string_view counter) const {
  double growth = 0;
  for (const Worker& worker : workers_) {
    const client::MetricsPage* old = before.Find(worker);
    growth += worker.page.Sum(counter) - (old == nullptr ? 0 : old->Sum(counter));
  }
  return growth;
}

double MetricsSnapshot::GrowthAbove(const MetricsSnapshot& before, std::string_view histogram,
                                    double bound) const {
  double growth = 0;
  for (const Worker& worker : workers_) {
    const client::MetricsPage* old = before.Find(worker);
    growth += worker.page.CountAbove(histogram, bound) -
              (old == nullptr ? 0 : old->CountAbove(histogram, bound));
  }
  return growth;
}

double MetricsSnapshot::Gauge(std::string_view worker, std::string_view name) const {
  for (const Worker& mine : workers_) {
    if (mine.name == worker) return mine.page.Sum(name);
  }
  return 0;
}

absl::StatusOr<Subject> Subject::Connect(client::RolloutClient* cluster,
                                         client::MetricsAccess metrics_access) {
  Subject subject(cluster, std::move(metrics_access));
  LOCKSTEP_RETURN_IF_ERROR(subject.Refresh());
  if (subject.info_.workers_size() == 0) return absl::UnavailableError("no worker is there");
  for (const v1::WorkerInfo& worker : subject.info_.workers()) {
    if (worker.metrics_address().empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(worker.worker_id(),
                       " serves no metrics; without them nothing shows that a "
                       "mode exercised what it claims"));
    }
  }
  v1::TokenizeRequest probe;
  probe.set_text("1");
  subject.has_tokenizer_ = cluster->Tokenize(probe).ok();
  LOCKSTEP_ASSIGN_OR_RETURN(const MetricsSnapshot metrics, subject.ReadMetrics());
  for (const std::string& worker : subject.workers()) {
    ++subject.workers_by_ranks_[static_cast<int64_t>(metrics.Gauge(worker, kRanksGauge))];
  }
  LOCKSTEP_RETURN_IF_ERROR(subject.FindKeys());
  return subject;
}

absl::Status Subject::Refresh() {
  LOCKSTEP_ASSIGN_OR_RETURN(info_, cluster_->GetServerInfo());
  auto* workers = info_.mutable_workers();
  std::sort(workers->begin(), workers->end(),
            [](const auto& a, const auto& b) { return a.worker_id() < b.worker_id(); });
  return absl::OkStatus();
}

// While a worker is kept out, as one that has just come back is for a moment, keys that are its own
// go elsewhere: only keys that lead to the same workers once more are taken.
absl::Status Subject::FindKeys() {
  for (int round = 0; round < kKeyRounds; ++round) {
    LOCKSTEP_RETURN_IF_ERROR(TryKeys());
    bool same = true;
    for (size_t i = 0; i < keys_.size(); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::string worker, WorkerOf(keys_[i]));
      same = same && worker == info_.workers(static_cast<int>(i)).worker_id();
    }
    if (same) return absl::OkStatus();
  }
  return absl::UnavailableError("requests with one routing key go to one worker and then another");
}

absl::StatusOr<std::string> Subject::WorkerOf(const std::string& key) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(1);
  request.mutable_stop()->set_max_new_tokens(1);
  request.set_seed(1);
  request.set_routing_key(key);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::Sample sample, WholeSample(cluster_->Generate(request)));
  return sample.usage().worker_id();
}

absl::Status Subject::TryKeys() {
  const std::vector<std::string> names = workers();
  keys_.assign(names.size(), "");
  size_t missing = names.size();
  for (int i = 0; i < kKeysTried && missing > 0; ++i) {
    const std::string tried = absl::StrCat("verify-", i);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string worker, WorkerOf(tried));
    const auto it = std::find(names.begin(), names.end(), worker);
    if (it == names.end()) continue;
    std::string& key = keys_[static_cast<size_t>(it - names.begin())];
    if (!key.empty()) continue;
    key = tried;
    --missing;
  }
  if (missing == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(missing, " workers get no requests"));
}

int64_t Subject::kv_tokens() const {
  int64_t blocks = info_.workers(0).kv_blocks();
  for (const v1::WorkerInfo& worker : info_.workers()) {
    blocks = std::min(blocks, worker.kv_blocks());
  }
  return blocks * block_tokens();
}

std::vector<std::string> Subject::workers() const {
  std::vector<std::string> names;
  for (const v1::WorkerInfo& worker : info_.workers()) names.push_back(worker.worker_id());
  return names;
}

absl::StatusOr<std::vector<int64_t>> Subject::Ids(const std::string& text) const {
  std::vector<int64_t> ids;
  if (!has_tokenizer_) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) % info_.vocabulary());
    return ids;
  }
  v1::TokenizeRequest request;
  request.set_text(text);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::TokenizeResponse response, cluster_->Tokenize(request));
  const std::vector<uint32_t> wide = client::ReadIds(response.ids());
  ids.assign(wide.begin(), wide.end());
  return ids;
}

absl::StatusOr<std::vector<int64_t>> Subject::LongIds(int64_t tokens, int64_t variation) const {
  uint64_t state = base::Hash64("long prompt", static_cast<uint64_t>(variation));
  std::string text;
  std::vector<int64_t> ids;
  while (static_cast<int64_t>(ids.size()) < tokens) {
    // At least one token a character is too many, so this grows by what is missing or more.
    const size_t wanted = text.size() + static_cast<size_t>(tokens) - ids.size();
    while (text.size() <= wanted) {
      state = base::Hash64("next example", state);
      text += Example(state);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(ids, Ids(text));
  }
  ids.resize(static_cast<size_t>(tokens));
  return ids;
}

absl::StatusOr<MetricsSnapshot> Subject::ReadMetrics() const {
  MetricsSnapshot snapshot;
  for (const v1::WorkerInfo& worker : info_.workers()) {
    LOCKSTEP_ASSIGN_OR_RETURN(client::MetricsPage page,
                              client::MetricsPage::Fetch(worker.metrics_address(), metrics_));
    snapshot.Add(worker.worker_id(), worker.incarnation(), std::move(page));
  }
  return snapshot;
}

}  // namespace lockstep::cli
