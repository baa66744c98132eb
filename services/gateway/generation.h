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
  // Every sample has ended; the last call.
  virtual void OnFinished() = 0;
  // False: only the end is wanted, no deltas are built.
  virtual bool wants_deltas() const = 0;
};

// One request in work: its samples, whoever waits for them, and what is asked of the routers.
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
    absl::Time deadline;
    Credit credit = Credit::kLedger;
    int64_t retry_budget = 8;
  };

  Generation(std::shared_ptr<const RequestContext> context, Options options, Deps deps);
  // Sends the samples to a router, together.
  void Start();

  void Subscribe(std::shared_ptr<GenerationObserver> observer);
  // The waiting client is gone. With the last one, a generation that nobody can ask for again ends;
  // another one goes on, for a retry to attach to.
  void Unsubscribe(const GenerationObserver* observer);
  // Since when nobody waits; InfiniteFuture while somebody does.
  absl::Time orphaned_since() const;
  // More of one sample may come; position counts from 0. Nothing where the ledger gives credit.
  void Grant(int64_t sample, int64_t tokens);
  // From now on the ledger gives credit, whoever did so far.
  void LetLedgerGrant();
  // Ends all samples that run, or one of them, with what they have.
  void EndEarly(v1::FinishReason reason);
  void EndSampleEarly(int64_t sample, v1::FinishReason reason);
  // Ends those that no router has at present, since nobody else can; returns how many.
  int64_t EndStranded(v1::FinishReason reason);

  bool finished() const;
  // Once finished: OK, or the error of its only sample, which is the request's own. Of several
  // samples each has its own error, and the request is OK.
  absl::Status Outcome() const;
  // Samples that ended by themselves, not early.
  int64_t completed_sample_count() const;
  absl::Time deadline() const { return options_.deadline; }
  // Its deadline has come, or is so near that hops further in have ended it already.
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
    struct Position {
      int64_t tokens = 0;
      int64_t prompt = 0;
      size_t text_bytes = 0;
      bool ended = false;
    };
    std::vector<Position> positions;  // One a sample.
  };

  std::optional<v1::RouteOpen> Reopen(int64_t sample);
  void Enter(int64_t sample, uint64_t epoch);
  v1::RouteOpen OpenLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(int64_t sample, const v1::SequenceDelta& delta);
  int64_t TakeCredit(int64_t sample);
  // What the ledger grants anew: nothing before a sample has used half of its window.
  int64_t RefillLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(int64_t sample, v1::FinishReason reason, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAllLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellLocked(int64_t sample, Subscriber* subscriber) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those to call OnFinished on, once the lock is released.
  std::vector<Subscriber> TakeFinishedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountEndLocked(int64_t sample) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const RequestContext> context_;
  const Options options_;
  const Deps deps_;
  const absl::Time started_;
  const int64_t window_;  // Tokens of a sample that may be under way.

  mutable base::Mutex mutex_;
  std::vector<SampleLedger> ledgers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> granted_ ABSL_GUARDED_BY(mutex_);  // Credit a sample, in all.
  bool ledger_grants_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> entry_epochs_ ABSL_GUARDED_BY(mutex_);  // 0 until a router says.
  std::vector<int64_t> reopens_ ABSL_GUARDED_BY(mutex_);        // Routers that a sample lost.
  std::vector<Subscriber> subscribers_ ABSL_GUARDED_BY(mutex_);
  absl::Time orphaned_since_ ABSL_GUARDED_BY(mutex_);
  int64_t ended_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t completed_count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t first_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool started_routes_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::gateway
