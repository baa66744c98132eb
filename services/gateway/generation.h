#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/answer_size.h"
#include "services/gateway/gateway_metrics.h"
#include "services/gateway/route_sequence.h"
#include "services/gateway/sample_ledger.h"

namespace lockstep::gateway {

class Generation;

// Somebody who waits for a generation. Must not block.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  // New results of one sample; the first delta after Subscribe brings all that came before. Called
  // with the generation's lock held, so it must not call back into the generation.
  virtual void OnDelta(v1::GenerateDelta delta) = 0;
  // The last call: `ended` is the generation, or a copy of it that has ended for this one alone
  // while it goes on for others.
  virtual void OnFinished(const std::shared_ptr<const Generation>& ended) = 0;
  // False: only the end is wanted, no deltas are built.
  virtual bool wants_deltas() const = 0;
};

// One request in work: its samples, whoever waits for them, and what is asked of the routers. It
// goes on while anybody wants it; what ends it for one caller takes nothing from another.
// Thread-safe.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Deps {
    SequenceRoutes* routes = nullptr;
    const base::Clock* clock = nullptr;
    GatewayMetrics* metrics = nullptr;
    log::Logger logger;
  };
  // Who gives credit for more tokens. At first each sample has a CreditWindow.
  enum class Credit {
    kLedger,  // The ledger, as it takes tokens over: the answer is kept whole.
    kReader,  // Grant, as a client takes them.
  };
  struct Options {
    absl::Time deadline;  // Of the caller who starts it, and will Subscribe.
    Credit credit = Credit::kLedger;
    int64_t retry_budget = 8;
  };

  Generation(std::shared_ptr<const RequestContext> context, Options options, Deps deps);
  // Sends the samples to a router, together.
  void Start();

  // One more caller, who will Subscribe: until then nothing that others want ends it. False, and
  // nothing happens, when it was cut short, or is being cut since its time is up: what there is, is
  // no answer for a caller who has more time.
  bool Join(absl::Time deadline);
  // By whoever started or joined it. At `deadline` it ends for this one with what there is.
  void Subscribe(std::shared_ptr<GenerationObserver> observer, absl::Time deadline);
  // The waiting client is gone. With the last one, a generation that nobody can ask for again ends;
  // another one goes on, for a retry to attach to.
  void Unsubscribe(const GenerationObserver* observer);
  // Ends it for one who waits, with what there is; where nobody else does, altogether.
  void EndFor(const GenerationObserver* observer, v1::FinishReason reason);
  // Ends it for those whose deadline has passed; altogether when the latest has, or when nobody has
  // waited for longer than `orphan_grace`.
  void EndLate(absl::Duration orphan_grace);
  // More of one sample may come; position counts from 0. Nothing where the ledger gives credit.
  void Grant(int64_t sample, int64_t tokens);
  // From now on the ledger gives credit, whoever did so far.
  void LetLedgerGrant();
  // Ends all samples that run with what they have, for everybody.
  void EndEarly(v1::FinishReason reason);
  // Ends those that no router has at present, since nobody else can; returns how many.
  int64_t EndStranded(v1::FinishReason reason);

  bool finished() const;
  // Once finished: OK, or the error of its only sample, which is the request's own. Of several
  // samples each has its own error, and the request is OK.
  absl::Status Outcome() const;
  // Samples that ended by themselves, not early.
  int64_t completed_sample_count() const;
  // Once finished: what cut it short was the deadline, which hops further in see a little earlier.
  bool TimeIsUp() const;
  const RequestContext& context() const { return *context_; }
  // Everything but samples.
  v1::GenerateResponse Header() const;
  // What keeping it costs in memory, about: a short answer is the smallest part of its request.
  int64_t memory_bytes() const;
  // Of the answer, once finished; rounded up by a few bytes. ScoreResponse, where only scores are
  // wanted, has less around its sample.
  AnswerBytes MeasureAnswer() const;
  // The whole answer, once finished.
  v1::GenerateResponse Response() const;

 private:
  class Run;
  struct Subscriber {
    std::shared_ptr<GenerationObserver> observer;
    absl::Time deadline;
    struct Position {
      int64_t tokens = 0;
      int64_t prompt = 0;
      size_t text_bytes = 0;
      bool ended = false;
    };
    std::vector<Position> positions;  // One a sample.
  };
  // What the routers know of a sample.
  struct Route {
    uint64_t handle = 0;
    int64_t granted = 0;       // Credit, in all.
    uint64_t entry_epoch = 0;  // 0 until a router says.
    int64_t reopens = 0;       // Routers that it lost.
    absl::Time opened;         // The last time, and with which deadline.
    absl::Time deadline;
  };
  // Of one who waits no longer: to call OnFinished with, once the lock is released.
  struct Ended {
    std::shared_ptr<GenerationObserver> observer;
    std::shared_ptr<const Generation> answer;
  };

  // The answer of one for whom `running` ended for this reason, with its samples as they are then.
  Generation(const Generation& running, std::vector<SampleLedger> ended, v1::FinishReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(running.mutex_);

  std::optional<v1::RouteOpen> Reopen(int64_t sample);
  void Enter(int64_t sample, uint64_t epoch);
  v1::RouteOpen OpenLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends samples to one router, together.
  void RouteLocked(int64_t first, int64_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The routers ended it at a deadline that was the latest when they were told.
  bool GoesOnLocked(int64_t sample, const v1::SequenceDelta& delta) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(int64_t sample, const v1::SequenceDelta& delta);
  int64_t TakeCredit(int64_t sample);
  // What the ledger grants anew: nothing before a sample has used half of its window.
  int64_t RefillLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(int64_t sample, v1::FinishReason reason, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAllLocked(v1::FinishReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes out a subscriber, with all that there is, while the generation goes on.
  Ended CutLocked(size_t subscriber, v1::FinishReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAllLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Brings a subscriber who wants deltas to where `ledger` is.
  static void Tell(const SampleLedger& ledger, size_t sample, Subscriber* subscriber);
  static void Tell(const std::vector<Ended>& ended);
  void NoteOrphanedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FinishedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All subscribers, once every sample has ended.
  std::vector<Ended> TakeFinishedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountEndLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const RequestContext> context_;
  const Options options_;
  const Deps deps_;
  const absl::Time started_;
  const int64_t window_;  // Tokens of a sample that may be under way.

  mutable base::Mutex mutex_;
  std::vector<SampleLedger> ledgers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Route> routes_ ABSL_GUARDED_BY(mutex_);  // One a sample.
  bool ledger_grants_ ABSL_GUARDED_BY(mutex_);
  std::vector<Subscriber> subscribers_ ABSL_GUARDED_BY(mutex_);
  int64_t joining_ ABSL_GUARDED_BY(mutex_) = 1;  // Callers who will subscribe.
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);  // The latest that a caller had.
  absl::Time orphaned_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  int64_t ended_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t completed_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool time_is_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_routes_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::gateway
