#include "services/router/scheduler_link.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/rpc/status_conversion.h"
#include "services/router/wire.h"

namespace lockstep::router {

class SchedulerLink::AdmitStream final
    : public rpc::ClientBidiStream<v1::AdmitCommand, v1::AdmitEvent> {
 public:
  explicit AdmitStream(SchedulerLink* owner) : ClientBidiStream(rpc::CallScope{}), owner_(owner) {}

 private:
  void OnMessage(v1::AdmitEvent& event) override {
    owner_->driver_->Apply([&](RouterCore* core) {
      // Losses first: a ticket of this event was granted with them in mind.
      for (const v1::WorkerIdentity& worker : event.lost_workers()) {
        core->WorkerLost(DecodeWorker(worker));
      }
      for (const v1::AdmitOutcome& outcome : event.outcomes()) {
        if (outcome.has_ticket()) {
          core->TicketGranted(outcome.handle(), DecodeTicket(outcome.ticket()));
        } else {
          core->AdmissionFailed(outcome.handle(), rpc::FromErrorDetail(outcome.error()));
        }
      }
      for (const v1::AdvanceTicket& ticket : event.advance_tickets()) {
        core->TicketGrantedAhead({DecodeTicket(ticket.ticket()), ticket.tokens_max()});
      }
      core->EpochSeen(base::Epoch(event.admission_epoch()));
    });
    RequestRead();
  }
  void OnClosed(const absl::Status& status) override { owner_->OnAdmitClosed(this, status); }
  void OnOutboxDrained() override { owner_->driver_->RequestFlush(); }

  SchedulerLink* const owner_;
};

class SchedulerLink::WatchStream final : public rpc::ClientReadStream<v1::WorkerSnapshot> {
 public:
  explicit WatchStream(SchedulerLink* owner) : ClientReadStream(rpc::CallScope{}), owner_(owner) {}

  // Read while the call is opened, so it lives as long as the stream.
  v1::WatchWorkersRequest request;

 private:
  void OnMessage(v1::WorkerSnapshot& snapshot) override {
    std::vector<WorkerState> workers;
    for (const v1::WorkerState& state : snapshot.workers()) {
      workers.push_back(DecodeWorkerState(state));
    }
    owner_->driver_->Apply([&](RouterCore* core) { core->ApplySnapshot(workers); });
    RequestRead();
  }
  void OnClosed(const absl::Status& status) override { owner_->OnWatchClosed(status); }

  SchedulerLink* const owner_;
};

SchedulerLink::SchedulerLink(Options options, std::shared_ptr<grpc::Channel> channel,
                             const base::Clock* clock, log::Logger logger)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      stub_(v1::SchedulerService::NewStub(channel_)),
      clock_(clock),
      outage_("scheduler", clock, std::move(logger)) {}

void SchedulerLink::Tick() {
  const absl::Time now = clock_->Now();
  const bool connected = channel_->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY;
  bool open_admit;
  bool open_watch;
  bool settled;
  {
    base::MutexLock lock(&mutex_);
    settled = admit_ != nullptr && watch_ != nullptr && now >= opened_at_ + options_.settled_after;
    if (settled) admit_reopening_.pause = watch_reopening_.pause = absl::ZeroDuration();
    open_admit = connected && admit_ == nullptr && now >= admit_reopening_.at;
    open_watch = connected && watch_ == nullptr && now >= watch_reopening_.at;
    if (open_admit || open_watch) opened_at_ = now;
  }
  if (settled) {
    outage_.Works();
  } else {
    outage_.Still();
  }
  if (open_watch) OpenWatch();
  if (open_admit) OpenAdmit();
}

void SchedulerLink::OpenAdmit() {
  live_.Add();
  auto stream = std::make_shared<AdmitStream>(this);
  auto writer = std::make_shared<Writer>(stream);
  v1::AdmitCommand* hello = writer->Next(0);
  hello->set_router_id(options_.router_id);
  hello->set_cluster_id(options_.cluster_id);
  {
    // Held over the start: a stream that closes at once must find itself here.
    base::MutexLock lock(&mutex_);
    stream->StartOwned([&](grpc::ClientContext* context, auto* reactor) {
      stub_->async()->Admit(context, reactor);
    });
    admit_ = writer;
  }
  stream->RequestRead();
  driver_->Apply([&](RouterCore* core) {
    base::MutexLock lock(&mutex_);
    if (admit_ == writer) core->SchedulerConnected();  // Else it has closed meanwhile.
  });
  driver_->RequestFlush();
}

void SchedulerLink::OpenWatch() {
  live_.Add();
  auto stream = std::make_shared<WatchStream>(this);
  stream->request.set_cluster_id(options_.cluster_id);
  {
    base::MutexLock lock(&mutex_);
    watch_ = stream;
  }
  stream->StartOwned([&](grpc::ClientContext* context, auto* reactor) {
    stub_->async()->WatchWorkers(context, &stream->request, reactor);
  });
  stream->RequestRead();
}

void SchedulerLink::OnAdmitClosed(const AdmitStream* stream, const absl::Status& status) {
  outage_.Failed(status);
  driver_->Apply([&](RouterCore* core) {
    base::MutexLock lock(&mutex_);
    if (admit_ == nullptr || admit_->stream() != stream) return;
    admit_ = nullptr;
    PostponeLocked(&admit_reopening_);
    core->SchedulerLost();
  });
  live_.Remove();
}

void SchedulerLink::OnWatchClosed(const absl::Status& status) {
  outage_.Failed(status);
  {
    base::MutexLock lock(&mutex_);
    watch_ = nullptr;
    PostponeLocked(&watch_reopening_);
  }
  live_.Remove();
}

void SchedulerLink::PostponeLocked(Reopening* reopening) {
  reopening->at = clock_->Now() + reopening->pause;
  reopening->pause = std::clamp(2 * reopening->pause, options_.pause_first, options_.pause_last);
}

std::shared_ptr<SchedulerLink::Writer> SchedulerLink::writer() {
  base::MutexLock lock(&mutex_);
  return admit_;
}

void SchedulerLink::Send(const RouterActions& actions) {
  const std::shared_ptr<Writer> writer = this->writer();
  if (writer == nullptr) return;
  constexpr size_t kIdBytes = 10;
  for (const AdmitRequest& request : actions.used) {
    EncodeAdmit(options_.cluster_id, request, writer->Next(WireBytes(request))->add_used());
  }
  // What makes room goes first.
  for (const base::TicketId ticket : actions.released_tickets) {
    writer->Next(kIdBytes)->add_released_tickets(ticket.value());
  }
  for (const uint64_t handle : actions.withdrawn_handles) {
    writer->Next(kIdBytes)->add_withdrawn_handles(handle);
  }
  for (const AdmitRequest& request : actions.admits) {
    EncodeAdmit(options_.cluster_id, request, writer->Next(WireBytes(request))->add_requests());
  }
  writer->Flush();
}

void SchedulerLink::Flush() {
  if (const std::shared_ptr<Writer> writer = this->writer()) writer->Flush();
}

void SchedulerLink::Shutdown() {
  std::shared_ptr<Writer> admit;
  std::shared_ptr<WatchStream> watch;
  {
    base::MutexLock lock(&mutex_);
    admit = admit_;
    watch = watch_;
  }
  if (admit != nullptr) admit->stream()->Cancel();
  if (watch != nullptr) watch->Cancel();
  live_.WaitNone();
}

}  // namespace lockstep::router
