#include "services/router/worker_streams.h"

#include <utility>

#include "services/router/wire.h"

namespace lockstep::router {

class WorkerStreams::Stream final
    : public rpc::ClientBidiStream<v1::WorkerCommand, v1::WorkerFrame> {
 public:
  Stream(WorkerStreams* owner, StreamId id, std::string address)
      : ClientBidiStream(rpc::CallScope{}), owner_(owner), id_(id), address_(std::move(address)) {}

 private:
  void OnMessage(v1::WorkerFrame& message) override {
    WorkerFrame frame = DecodeFrame(&message);
    owner_->driver_->Apply([&](RouterCore* core) { core->FrameCame(id_, std::move(frame)); });
    RequestRead();
  }
  void OnClosed(const absl::Status& status) override { owner_->OnClosed(id_, address_, status); }
  void OnOutboxDrained() override { owner_->driver_->RequestFlush(); }

  WorkerStreams* const owner_;
  const StreamId id_;
  const std::string address_;
};

WorkerStreams::WorkerStreams(std::string cluster_id, rpc::ChannelOptions channel)
    : cluster_id_(std::move(cluster_id)), channels_({.channel = channel}) {}

void WorkerStreams::Send(const std::vector<WorkerBatch>& batches) {
  for (const WorkerBatch& batch : batches) {
    const std::shared_ptr<Writer> writer = FindOrOpen(batch);
    if (writer == nullptr) continue;
    Append(batch, writer.get());
    writer->Flush();
  }
}

std::shared_ptr<WorkerStreams::Writer> WorkerStreams::FindOrOpen(const WorkerBatch& batch) {
  if (batch.stream <= last_opened_) {
    base::MutexLock lock(&mutex_);
    const auto it = writers_.find(batch.stream);
    return it == writers_.end() ? nullptr : it->second;
  }
  last_opened_ = batch.stream;
  live_.Add();
  auto stream = std::make_shared<Stream>(this, batch.stream, batch.address);
  auto writer = std::make_shared<Writer>(stream);
  {
    // Before the stream starts: it may close at once.
    base::MutexLock lock(&mutex_);
    writers_[batch.stream] = writer;
  }
  const auto stub = v1::WorkerService::NewStub(channels_.Get(batch.address));
  stream->StartOwned(
      [&](grpc::ClientContext* context, auto* reactor) { stub->async()->Run(context, reactor); });
  stream->RequestRead();
  return writer;
}

v1::WorkerCommand* WorkerStreams::NextCommand(const WorkerBatch& batch, size_t bytes,
                                              Writer* writer) {
  v1::WorkerCommand* command = writer->Next(bytes);
  if (!command->has_worker()) {
    EncodeWorker(cluster_id_, batch.worker, command->mutable_worker());
  }
  return command;
}

void WorkerStreams::Append(const WorkerBatch& batch, Writer* writer) {
  constexpr size_t kSmallBytes = 32;
  for (const WorkerStart& start : batch.starts) {
    EncodeStart(cluster_id_, start, NextCommand(batch, WireBytes(start), writer)->add_start());
  }
  for (const base::TicketId ticket : batch.cancels) {
    NextCommand(batch, kSmallBytes, writer)->add_cancel()->set_ticket_id(ticket.value());
  }
  for (const WorkerCredit& credit : batch.credits) {
    v1::Credit* message = NextCommand(batch, kSmallBytes, writer)->add_credit();
    message->set_handle(credit.ticket.value());
    message->set_tokens(credit.tokens);
  }
}

void WorkerStreams::Flush() {
  std::vector<std::shared_ptr<Writer>> all;
  {
    base::MutexLock lock(&mutex_);
    for (const auto& [stream, writer] : writers_) all.push_back(writer);
  }
  for (const std::shared_ptr<Writer>& writer : all) writer->Flush();
}

void WorkerStreams::Close(StreamId stream) {
  std::shared_ptr<Writer> writer;
  {
    base::MutexLock lock(&mutex_);
    const auto it = writers_.find(stream);
    if (it == writers_.end()) return;
    writer = std::move(it->second);
    writers_.erase(it);
  }
  writer->stream()->Cancel();
}

void WorkerStreams::OnClosed(StreamId stream, const std::string& address,
                             const absl::Status& status) {
  {
    base::MutexLock lock(&mutex_);
    writers_.erase(stream);
  }
  // A new connection is tried at once by the next stream, whatever this channel's pause is.
  channels_.Forget(address);
  driver_->Apply([&](RouterCore* core) { core->StreamClosed(stream, status); });
  live_.Remove();
}

void WorkerStreams::Shutdown() {
  std::vector<std::shared_ptr<Writer>> all;
  {
    base::MutexLock lock(&mutex_);
    for (const auto& [stream, writer] : writers_) all.push_back(writer);
  }
  for (const std::shared_ptr<Writer>& writer : all) writer->stream()->Cancel();
  live_.WaitNone();
}

}  // namespace lockstep::router
