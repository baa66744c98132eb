#include "services/gateway/request_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/retry_advice.h"
#include "common/base/status_macros.h"

namespace lockstep::gateway {

RequestTable::RequestTable(Options options, const base::Clock* clock, GatewayMetrics* metrics,
                           log::Logger logger)
    : options_(options), clock_(clock), metrics_(metrics), logger_(std::move(logger)) {}

absl::StatusOr<RequestTable::Found> RequestTable::FindOrMake(const std::string& request_id,
                                                             const std::string& body_digest,
                                                             Size size, absl::Time deadline,
                                                             Make make) {
  while (true) {
    absl::StatusOr<Found> found = FindOrMakeOnce(request_id, body_digest, size, make);
    if (!found.ok() || !found->attached) return found;
    if (found->generation->Join(deadline)) {
      metrics_->attached.Increment();
      return found;
    }
    // It has ended this moment, or those who wait have no time left: the next sweep would end it.
    found->generation->EndEarly(v1::FINISH_REASON_ABORT);
    Settle(*found->generation);
  }
}

absl::StatusOr<RequestTable::Found> RequestTable::FindOrMakeOnce(const std::string& request_id,
                                                                 const std::string& body_digest,
                                                                 Size size, Make make) {
  base::MutexLock lock(&mutex_);
  // One that has ended since the last sweep, cut short, must not answer for the next one.
  if (in_work_.contains(request_id) && entries_[request_id].generation->finished()) {
    KeepFinishedLocked(request_id, clock_->Now());
  }
  const auto found = entries_.find(request_id);
  if (found != entries_.end()) {
    if (found->second.body_digest != body_digest) {
      return absl::AlreadyExistsError(absl::StrCat("request_id: \"", request_id,
                                                   "\" is in use for a request with another body"));
    }
    return Found{found->second.generation, true};
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRoomLocked(size));
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Generation> generation, make());
  in_work_size_.samples += size.samples;
  in_work_size_.prompt_bytes += size.prompt_bytes;
  metrics_->prompt_bytes.Set(static_cast<double>(in_work_size_.prompt_bytes));
  entries_[request_id] = {generation, body_digest, size, clock_->Now()};
  in_work_.insert(request_id);
  return Found{std::move(generation), false};
}

absl::Status RequestTable::CheckRoomLocked(Size size) const {
  std::string full;
  if (in_work_size_.samples + size.samples > options_.sequences_max) {
    full = absl::StrCat("n: ", size.samples, " more samples, ", in_work_size_.samples,
                        " are in work, at most ", options_.sequences_max);
  } else if (in_work_size_.prompt_bytes > 0 &&  // One that is larger than all there is runs alone.
             in_work_size_.prompt_bytes + size.prompt_bytes > options_.prompt_bytes_max) {
    full = absl::StrCat("prompt: ", size.prompt_bytes, " more bytes, ", in_work_size_.prompt_bytes,
                        " are in work, at most ", options_.prompt_bytes_max);
  }
  if (full.empty()) return absl::OkStatus();
  return base::WithRetryAdvice(absl::ResourceExhaustedError(full),
                               {.retryable = true, .delay = absl::Seconds(1)});
}

std::shared_ptr<Generation> RequestTable::Find(const std::string& request_id) const {
  base::MutexLock lock(&mutex_);
  const auto found = entries_.find(request_id);
  return found == entries_.end() ? nullptr : found->second.generation;
}

std::vector<std::shared_ptr<Generation>> RequestTable::Running() const {
  std::vector<std::shared_ptr<Generation>> running;
  base::MutexLock lock(&mutex_);
  running.reserve(in_work_.size());
  for (const std::string& id : in_work_) running.push_back(entries_.find(id)->second.generation);
  return running;
}

void RequestTable::Settle(const Generation& generation) {
  base::MutexLock lock(&mutex_);
  const std::string& request_id = generation.context().request.request_id;
  const auto found = entries_.find(request_id);
  // Another one may have the id by now.
  if (found == entries_.end() || found->second.generation.get() != &generation) return;
  if (in_work_.contains(request_id) && generation.finished()) {
    KeepFinishedLocked(request_id, clock_->Now());
  }
}

void RequestTable::Sweep() {
  const absl::Time now = clock_->Now();
  for (const std::shared_ptr<Generation>& generation : Running()) {
    generation->EndLate(options_.orphan_grace);
    Settle(*generation);
  }
  base::MutexLock lock(&mutex_);
  while (!finished_order_.empty() &&
         (kept_bytes_ > options_.result_bytes_max ||
          now - entries_[finished_order_.front()].finished > options_.result_ttl)) {
    const auto oldest = entries_.find(finished_order_.front());
    kept_bytes_ -= oldest->second.bytes;
    entries_.erase(oldest);
    finished_order_.pop_front();
  }
  metrics_->kept_bytes.Set(static_cast<double>(kept_bytes_));
}

void RequestTable::KeepFinishedLocked(const std::string& request_id, absl::Time now) {
  const auto found = entries_.find(request_id);
  Entry& entry = found->second;
  in_work_.erase(request_id);
  in_work_size_.samples -= entry.size.samples;
  in_work_size_.prompt_bytes -= entry.size.prompt_bytes;
  metrics_->prompt_bytes.Set(static_cast<double>(in_work_size_.prompt_bytes));
  const RequestContext& context = entry.generation->context();
  logger_.ForRequest(context.trace_id, request_id)
      .Step("request_ended", {{"request", request_id},
                              {"samples", entry.size.samples},
                              {"completed", entry.generation->completed_sample_count()},
                              {"seconds", now - entry.started}});
  // Nobody knows a minted id, so nobody can ask again; and a retry of what failed or was cut short
  // must run.
  const ValidRequest& request = context.request;
  if (request.request_id_minted || entry.generation->completed_sample_count() < request.n) {
    entries_.erase(found);
    return;
  }
  entry.finished = now;
  entry.bytes = entry.generation->memory_bytes();
  kept_bytes_ += entry.bytes;
  finished_order_.push_back(request_id);
}

}  // namespace lockstep::gateway
