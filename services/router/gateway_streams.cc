#include "services/router/gateway_streams.h"

#include <utility>

#include "services/router/wire.h"

namespace lockstep::router {

void GatewayStreams::Send(const std::vector<GatewayEntry>& entries,
                          std::vector<GatewayDelta> deltas) {
  for (const GatewayEntry& item : entries) {
    if (const std::shared_ptr<Writer> writer = Find(item.gateway)) writer->Add(item);
  }
  absl::flat_hash_map<GatewayId, std::shared_ptr<Writer>> used;
  for (GatewayDelta& item : deltas) {
    const auto [it, added] = used.try_emplace(item.gateway);
    if (added) it->second = Find(item.gateway);
    if (it->second != nullptr) it->second->Add(std::move(item.delta));  // Else it went meanwhile.
  }
  for (const auto& [gateway, writer] : used) {
    if (writer != nullptr) writer->Flush();
  }
}

void GatewayStreams::Flush() {
  for (const std::shared_ptr<Writer>& writer : All()) writer->Flush();
}

GatewayId GatewayStreams::Add(std::shared_ptr<RouteHandler> handler) {
  base::MutexLock lock(&mutex_);
  const GatewayId gateway(++last_gateway_);
  writers_[gateway] = std::make_shared<Writer>(std::move(handler));
  return gateway;
}

void GatewayStreams::Remove(GatewayId gateway) {
  base::MutexLock lock(&mutex_);
  writers_.erase(gateway);
}

std::vector<std::shared_ptr<GatewayStreams::Writer>> GatewayStreams::All() {
  base::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Writer>> all;
  for (const auto& [gateway, writer] : writers_) all.push_back(writer);
  return all;
}

std::shared_ptr<GatewayStreams::Writer> GatewayStreams::Find(GatewayId gateway) {
  base::MutexLock lock(&mutex_);
  const auto it = writers_.find(gateway);
  return it == writers_.end() ? nullptr : it->second;
}

void GatewayStreams::FinishAll() {
  for (const std::shared_ptr<Writer>& writer : All()) {
    writer->stream()->Finish(absl::OkStatus());
  }
}

void RouteHandler::Start() {
  gateway_ = streams_->Add(rpc::SharedFrom(this));
  RequestRead();
}

void RouteHandler::OnMessage(v1::RouteCommand& command) {
  if (!command.open().empty() && streams_->draining()) {
    return Finish(absl::UnavailableError("this router is draining"));
  }
  std::vector<OpenSequence> opens;
  opens.reserve(static_cast<size_t>(command.open_size()));
  for (v1::RouteOpen& open : *command.mutable_open()) {
    opens.push_back(DecodeOpen(&open, &last_prompt_));
  }
  streams_->driver()->Apply([&](RouterCore* core) {
    if (!opens.empty()) core->Open(gateway_, std::move(opens));
    for (const v1::RouteCancel& cancel : command.cancel()) {
      core->Cancel(gateway_, cancel.handle());
    }
    for (const v1::Credit& credit : command.credit()) {
      core->AddCredit(gateway_, credit.handle(), credit.tokens());
    }
  });
  RequestRead();
}

void RouteHandler::OnHalfClose() {
  // Nobody will read on: a gateway closes its stream only when it goes.
  Finish(absl::OkStatus());
}

void RouteHandler::OnClosed(const absl::Status& /*status*/) {
  streams_->Remove(gateway_);
  streams_->driver()->Apply([&](RouterCore* core) { core->GatewayLost(gateway_); });
}

}  // namespace lockstep::router
