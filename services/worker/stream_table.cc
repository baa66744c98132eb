#include "services/worker/stream_table.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "services/worker/codec.h"

namespace lockstep::worker {

StreamTable::StreamTable(LeaseFence* fence, StepReport* report, std::string weights_digest,
                         log::Logger logger)
    : fence_(fence),
      report_(report),
      weights_digest_(std::move(weights_digest)),
      logger_(std::move(logger)) {}

bool StreamTable::Bind(const SequenceStart& start, std::weak_ptr<FrameStream> stream) {
  const FrameStream* key = stream.lock().get();
  const log::Logger logger = logger_.ForRequest(start.trace_id, start.request.value());
  base::MutexLock lock(&mutex_);
  if (!streams_.try_emplace(start.ticket, Entry{std::move(stream), key, start.sequence, logger})
           .second) {
    return false;
  }
  logger.Step("sequence_starts", {{"sequence", start.sequence},
                                  {"attempt", start.attempt},
                                  {"prompt_tokens", start.prompt_ids.size()},
                                  {"generated_tokens", start.generated_ids.size()}});
  return true;
}

void StreamTable::Unbind(base::TicketId ticket, const absl::Status& why) {
  base::MutexLock lock(&mutex_);
  const auto found = streams_.find(ticket);
  if (found == streams_.end()) return;
  found->second.logger.Step("sequence_refused",
                            {{"sequence", found->second.sequence}, {"error", why}});
  streams_.erase(found);
}

void StreamTable::LogEnd(base::TicketId ticket, const SequenceEnd& end) {
  const auto found = streams_.find(ticket);
  if (found == streams_.end()) return;
  const Entry& entry = found->second;
  if (end.reason == EndReason::kError) {
    entry.logger.Warning("sequence_failed", {{"sequence", entry.sequence}, {"error", end.error}});
  } else {
    entry.logger.Step("sequence_ended", {{"sequence", entry.sequence},
                                         {"reason", EndReasonName(end.reason)},
                                         {"decode_seconds", end.usage.decode_seconds},
                                         {"preemptions", end.usage.preemptions}});
  }
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
      if (!sequence.end.has_value()) continue;
      ended.push_back(sequence.ticket);
      LogEnd(sequence.ticket, *sequence.end);
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
