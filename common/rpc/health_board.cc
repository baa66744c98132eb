#include "common/rpc/health_board.h"

#include <utility>

namespace lockstep::rpc {

HealthBoard::HealthBoard(grpc::HealthCheckServiceInterface* service,
                         std::function<void(bool ready)> on_ready)
    : service_(service), on_ready_(std::move(on_ready)) {
  base::MutexLock lock(&mutex_);
  PublishLocked();
}

void HealthBoard::SetLive(bool live) {
  base::MutexLock lock(&mutex_);
  live_ = live;
  PublishLocked();
}

void HealthBoard::SetStarted(bool started) {
  base::MutexLock lock(&mutex_);
  started_ = started;
  PublishLocked();
}

void HealthBoard::SetReady(bool ready) {
  base::MutexLock lock(&mutex_);
  ready_ = ready && !draining_;
  PublishLocked();
}

void HealthBoard::BeginDrain() {
  base::MutexLock lock(&mutex_);
  draining_ = true;
  ready_ = false;
  PublishLocked();
}

bool HealthBoard::live() const {
  base::MutexLock lock(&mutex_);
  return live_;
}

bool HealthBoard::started() const {
  base::MutexLock lock(&mutex_);
  return started_;
}

bool HealthBoard::ready() const {
  base::MutexLock lock(&mutex_);
  return ready_;
}

void HealthBoard::PublishLocked() {
  if (on_ready_) on_ready_(ready_);
  if (service_ == nullptr) return;
  // By name, never by the call that sets all: a probe must not see one name's value under another.
  service_->SetServingStatus("", ready_);
  service_->SetServingStatus("ready", ready_);
  service_->SetServingStatus("live", live_);
  service_->SetServingStatus("started", started_);
}

}  // namespace lockstep::rpc
