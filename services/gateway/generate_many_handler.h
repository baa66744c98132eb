#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/rpc/handler.h"
#include "common/rpc/received.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/group_order.h"
#include "services/gateway/long_work_thread.h"
#include "services/gateway/request_starter.h"
#include "services/gateway/slot_pool.h"

namespace lockstep::gateway {

class GenerateManyHandler;

// Streams that need a look at the clock now and then. Thread-safe.
class ManyStreams {
 public:
  void Add(std::weak_ptr<GenerateManyHandler> handler);
  // Calls Tick of each stream that lives.
  void Tick(absl::Time now, bool draining);

 private:
  base::Mutex mutex_;
  std::vector<std::weak_ptr<GenerateManyHandler>> handlers_ ABSL_GUARDED_BY(mutex_);
};

// Many prompts over one stream. A prompt is read when the stream has a slot free, and starts when
// the pool of all streams has one too; until then nothing more is read. The pool has its slot back
// when the answer is there, the stream when it has left: a client that does not read stops being
// read from, and keeps nobody else out.
class GenerateManyHandler final
    : public rpc::BidiHandler<rpc::Received<v1::GenerateManyRequest>, v1::GenerateManyResponse>,
      public SlotOwner {
 public:
  struct Limits {
    int64_t slots_max = 0;
    absl::Duration idle_timeout;
  };
  GenerateManyHandler(const RequestStarter* starter, LongWorkThread* long_work, Limits limits,
                      const base::Clock* clock, ManyStreams* streams, SlotPool* pool,
                      grpc::CallbackServerContext* context)
      : BidiHandler(context, rpc::kBoundedByCredit),
        starter_(starter),
        long_work_(long_work),
        clock_(clock),
        streams_(streams),
        pool_(pool),
        limits_(limits) {}

  // Ends groups that have what was asked for, and the stream when its client does not read, or
  // when the gateway drains and nothing is in work.
  void Tick(absl::Time now, bool draining);

 private:
  class Observer;
  struct Item {
    std::shared_ptr<Generation> generation;
    std::shared_ptr<Observer> observer;
    int64_t place = 0;         // In order_.
    int64_t samples_done = 0;  // Ended by themselves.
    std::vector<bool> done;    // One a sample.
    bool enough = false;       // The group may end early.
    RequestMeter::Arrival arrival;
  };
  // A message that was read, and waits for a slot of the pool.
  struct Pending {
    v1::GenerateManyRequest request;
    absl::Status fault;  // Of a message that is no prompt, and so has no request_id and no place.
    int64_t place = 0;   // In order_.
    RequestMeter::Arrival arrival;
  };
  // A message under way; the last one of an answer frees the slot.
  struct Sent {
    std::optional<RequestEnd> last_of;  // The request that ends with this message.
    absl::Time since;
  };

  void Start() override;
  void OnMessage(rpc::Received<v1::GenerateManyRequest>& received) override;
  void OnHalfClose() override;
  void OnCancelled() override { LeaveItems(absl::CancelledError()); }
  void OnClosed(const absl::Status& status) override;
  void OnWritten() override;
  void OnSlot() override;

  // Nobody waits here for what is in work; to its client it ended with `status`.
  void LeaveItems(const absl::Status& status);
  absl::Status TakeOptions(const v1::GenerateManyOptions& options);
  // Asks the pool for the next prompt that waits, and starts those that have a slot at once.
  void AskForSlots();
  // The prompt that waits longest has a slot.
  void StartPending();
  // After StartItem, where nothing else follows it.
  void ItemStarted();
  // Its id is in work from now on, unless it is refused.
  absl::Status TakeIdLocked(const v1::GenerateManyRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(items_mutex_);
  void StartItem(const Pending& pending);
  void Refuse(const Pending& item, const absl::Status& why);
  void SampleEnded(const std::string& request_id, const v1::Sample& sample);
  void ItemFinished(const std::string& request_id, const std::shared_ptr<const Generation>& ended);
  void SendAnswer(const Generation& generation, const AnswerBytes& bytes,
                  const RequestMeter::Arrival& arrival);
  void SendError(const std::string& request_id, const absl::Status& status,
                 const RequestMeter::Arrival& arrival);
  // The last message of a request says how that one ended, and frees its slot.
  void Send(v1::GenerateManyResponse message, std::optional<RequestEnd> last_of);
  bool EnoughLocked(const Item& item) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(items_mutex_);
  bool EnoughGroupsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(items_mutex_);
  // Reads on when a slot is free, finishes when nothing is left to do.
  void Proceed();

  const RequestStarter* const starter_;
  LongWorkThread* const long_work_;
  const base::Clock* const clock_;
  ManyStreams* const streams_;
  SlotPool* const pool_;

  base::Mutex items_mutex_;
  Limits limits_ ABSL_GUARDED_BY(items_mutex_);
  v1::GenerateManyOptions options_ ABSL_GUARDED_BY(items_mutex_);
  absl::flat_hash_map<std::string, Item> items_ ABSL_GUARDED_BY(items_mutex_);
  std::deque<Sent> sent_ ABSL_GUARDED_BY(items_mutex_);
  // More than one only when a read was wanted while a message was on its way.
  std::deque<Pending> pending_ ABSL_GUARDED_BY(items_mutex_);
  bool asked_ ABSL_GUARDED_BY(items_mutex_) = false;  // The pool has a wish of this stream.
  int64_t slots_used_ ABSL_GUARDED_BY(items_mutex_) = 0;
  GroupOrder order_ ABSL_GUARDED_BY(items_mutex_);
  int64_t messages_ ABSL_GUARDED_BY(items_mutex_) = 0;  // Read.
  bool draining_ ABSL_GUARDED_BY(items_mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(items_mutex_) = false;
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(items_mutex_);  // How the stream ended.
};

}  // namespace lockstep::gateway
