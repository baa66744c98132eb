#include "services/scheduler/admission_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/retry_advice.h"

namespace lockstep::scheduler {
namespace {

constexpr absl::Duration kRetryDelayMin = absl::Milliseconds(100);
constexpr absl::Duration kRetryDelayMax = absl::Seconds(10);

int64_t RankOf(int64_t attempt) { return attempt > 0 ? 0 : 1; }

}  // namespace

std::string AdmissionQueue::GroupKey(const AdmissionRequest& request) {
  // Members that ran before are ahead of those that did not, so they count as a group of their own.
  return absl::StrCat(RankOf(request.attempt), "/", request.group);
}

absl::Status AdmissionQueue::Push(AdmissionRequest&& request, absl::Time now) {
  if (requests_.size() >= options_.requests_max) {
    // One that came now would wait about as long as the oldest has.
    const absl::Duration delay = std::clamp(OldestWait(now), kRetryDelayMin, kRetryDelayMax);
    return base::WithRetryAdvice(
        absl::ResourceExhaustedError(absl::StrCat("the admission queue is full (", requests_.size(),
                                                  " of ", options_.requests_max, ")")),
        {.retryable = true, .delay = delay});
  }
  const Handle handle{request.stream, request.handle};
  if (by_handle_.contains(handle)) {
    return absl::AlreadyExistsError(
        absl::StrCat("handle ", request.handle, " waits on this stream already"));
  }
  const uint64_t number = ++arrival_count_;
  Place place{.rank = RankOf(request.attempt),
              .turn = turn_ + 1,
              .group_number = number,
              .request_number = number};
  Group& group = groups_.try_emplace(GroupKey(request), Group{place, now}).first->second;
  // By those that wait, not by those that ever did: members are asked for again and again.
  place.turn = group.first.turn + group.waiting_count++ / options_.turn_members;
  place.group_number = group.first.group_number;
  by_handle_.emplace(handle, place);
  for (const WorkerName& worker : request.candidates) waiters_[worker].insert(place);
  if (request.deadline != absl::InfiniteFuture()) deadlines_.emplace(request.deadline, place);
  const absl::Time group_arrived = group.arrived;
  requests_.emplace(
      place,
      Waiting{.request = std::move(request), .arrived = now, .group_arrived = group_arrived});
  return absl::OkStatus();
}

AdmissionQueue::Waiting AdmissionQueue::Take(const Place& place) {
  const auto it = requests_.find(place);
  LOCKSTEP_CHECK(it != requests_.end());
  Waiting waiting = std::move(it->second);
  requests_.erase(it);
  const AdmissionRequest& request = waiting.request;
  by_handle_.erase({request.stream, request.handle});
  deadlines_.erase({request.deadline, place});
  for (const WorkerName& worker : request.candidates) {
    const auto line = waiters_.find(worker);
    if (line == waiters_.end()) continue;
    line->second.erase(place);
    if (line->second.empty()) waiters_.erase(line);
  }
  const auto group = groups_.find(GroupKey(request));
  if (--group->second.waiting_count == 0) groups_.erase(group);
  return waiting;
}

std::optional<AdmissionQueue::Waiting> AdmissionQueue::Withdraw(RouterStream stream,
                                                                uint64_t handle) {
  const auto it = by_handle_.find({stream, handle});
  if (it == by_handle_.end()) return std::nullopt;
  return Take(Place(it->second));
}

std::vector<AdmissionQueue::Waiting> AdmissionQueue::TakeIf(
    const std::function<bool(const AdmissionRequest&)>& unwanted) {
  std::vector<Place> places;
  for (const auto& [place, waiting] : requests_) {
    if (unwanted(waiting.request)) places.push_back(place);
  }
  std::vector<Waiting> taken;
  taken.reserve(places.size());
  for (const Place& place : places) taken.push_back(Take(place));
  return taken;
}

std::vector<AdmissionQueue::Waiting> AdmissionQueue::TakeExpired(absl::Time now) {
  std::vector<Waiting> taken;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    taken.push_back(Take(Place(deadlines_.begin()->second)));
  }
  return taken;
}

std::vector<AdmissionQueue::Waiting> AdmissionQueue::RemoveCandidate(const WorkerName& worker) {
  const auto line = waiters_.find(worker);
  if (line == waiters_.end()) return {};
  const std::vector<Place> places(line->second.begin(), line->second.end());
  waiters_.erase(line);
  std::vector<Waiting> taken;
  for (const Place& place : places) {
    std::vector<WorkerName>& candidates = requests_.find(place)->second.request.candidates;
    candidates.erase(std::remove(candidates.begin(), candidates.end(), worker), candidates.end());
    if (candidates.empty()) taken.push_back(Take(place));
  }
  return taken;
}

bool AdmissionQueue::MayPass(const WorkerName& worker, int64_t attempt, absl::Time now) const {
  const auto line = waiters_.find(worker);
  if (line == waiters_.end()) return true;
  // Those at the head of the line were tried when the worker's room last changed, and did not fit.
  int passed = 0;
  for (const Place& place : line->second) {
    if (place.rank > RankOf(attempt)) return true;
    if (++passed > options_.overtake_max) return false;
    if (Aged(requests_.find(place)->second, now)) return false;
  }
  return true;
}

void AdmissionQueue::Offer(const WorkerName& worker, absl::Time now,
                           const std::function<bool(const Waiting&)>& grant) {
  int overtaken = 0;
  std::optional<Place> last;
  while (true) {
    // Granting takes the request out of this line, so the line is looked up again each time.
    const auto line = waiters_.find(worker);
    if (line == waiters_.end()) return;
    const auto next = last.has_value() ? line->second.upper_bound(*last) : line->second.begin();
    if (next == line->second.end()) return;
    const Place place = *next;
    const Waiting& waiting = requests_.find(place)->second;
    if (grant(waiting)) {
      turn_ = std::max(turn_, place.turn);
      Take(place);
      continue;
    }
    if (Aged(waiting, now) || ++overtaken > options_.overtake_max) return;
    last = place;
  }
}

absl::Duration AdmissionQueue::OldestWait(absl::Time now) const {
  if (requests_.empty()) return absl::ZeroDuration();
  return now - requests_.begin()->second.arrived;
}

}  // namespace lockstep::scheduler
