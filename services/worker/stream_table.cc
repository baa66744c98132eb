#include "services/worker/stream_table.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "services/worker/codec.h"

namespace lockstep::worker {

StreamTable::StreamTable(LeaseFence* fence, StepReport* report, std::string weights_digest)
    : fence_(fence), report_(report), weights_digest_(std::move(weights_digest)) {}

bool StreamTable::Bind(base::TicketId ticket, std::weak_ptr<FrameStream> stream) {
  const FrameStream* key = stream.lock().get();
  base::MutexLock lock(&mutex_);
  return streams_.try_emplace(ticket, Entry{std::move(stream), key}).second;
}

void StreamTable::Unbind(base::TicketId ticket) {
  base::MutexLock lock(&mutex_);
  streams_.erase(ticket);
}

std::vector<base::TicketId> StreamTable::Drop(const FrameStream* stream) {
  std::vector<base::TicketId> tickets;
  base::MutexLock lock(&mutex_);
  for (const auto& [ticket, entry] : streams_) {
    if (entry.key == stream) tickets.push_back(ticket);
  }
  for (const base::TicketId ticket : tickets) streams_.erase(ticket);
  return tickets;
}

v1::WorkerFrame* StreamTable::FrameFor(base::TicketId ticket, Frames* frames) {
  const auto found = streams_.find(ticket);
  if (found == streams_.end()) return nullptr;
  std::shared_ptr<FrameStream> stream = found->second.stream.lock();
  return stream == nullptr ? nullptr : &(*frames)[std::move(stream)];
}

void StreamTable::Deliver(StepOutput output) {
  const Identity identity = fence_->identity();
  Frames frames;
  std::vector<base::TicketId> ended = output.hand_offs;
  {
    base::MutexLock lock(&mutex_);
    for (const SequenceOutput& sequence : output.outputs) {
      if (v1::WorkerFrame* frame = FrameFor(sequence.ticket, &frames)) {
        *frame->add_deltas() = EncodeOutput(sequence, identity.worker.value(), weights_digest_);
      }
      if (sequence.end.has_value()) ended.push_back(sequence.ticket);
    }
    for (const base::TicketId ticket : output.hand_offs) {
      if (v1::WorkerFrame* frame = FrameFor(ticket, &frames)) {
        frame->add_hand_offs()->set_ticket_id(ticket.value());
      }
    }
    for (const base::TicketId ticket : ended) streams_.erase(ticket);
  }
  report_->Add(output.cuts, ended);
  // Asked after everything slow, right before the frames leave.
  if (!fence_->MaySend()) return;
  for (auto& [stream, frame] : frames) {
    *frame.mutable_worker() = EncodeIdentity(identity);
    frame.set_step(output.step);
    stream->SendFrame(std::move(frame));
  }
}

void StreamTable::CloseAll(const absl::Status& status) {
  absl::flat_hash_set<std::shared_ptr<FrameStream>> streams;
  {
    base::MutexLock lock(&mutex_);
    for (const auto& [ticket, entry] : streams_) {
      if (auto stream = entry.stream.lock()) streams.insert(std::move(stream));
    }
    streams_.clear();
  }
  for (const auto& stream : streams) stream->Close(status);
}

}  // namespace lockstep::worker
