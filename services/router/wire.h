#pragma once

#include <cstddef>
#include <string>

#include "lockstep/v1/router.pb.h"
#include "lockstep/v1/scheduler.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "services/router/router_actions.h"
#include "services/router/sequence_types.h"

// Between the messages of the wire and the values of the core. Decoding moves what it can out of
// its argument.
namespace lockstep::router {

// `last_prompt` is that of the sequence before, or null, and becomes this one's.
OpenSequence DecodeOpen(v1::RouteOpen* open,
                        std::shared_ptr<const std::vector<uint32_t>>* last_prompt);
WorkerFrame DecodeFrame(v1::WorkerFrame* frame);
Ticket DecodeTicket(const v1::Ticket& ticket);
WorkerKey DecodeWorker(const v1::WorkerIdentity& worker);
WorkerState DecodeWorkerState(const v1::WorkerState& state);

void EncodeWorker(const std::string& cluster_id, const WorkerKey& key, v1::WorkerIdentity* worker);
void EncodeDelta(SequenceDelta delta, v1::SequenceDelta* message);
// Adds `delta` to the one encoded before it, of the same sequence. False, with nothing changed,
// where one message cannot say both.
bool JoinDelta(const SequenceDelta& delta, v1::SequenceDelta* message);
void EncodeAdmit(const std::string& cluster_id, const AdmitRequest& request,
                 v1::AdmitRequest* message);
void EncodeStart(const std::string& cluster_id, const WorkerStart& start, v1::WorkerStart* message);

// About the size of the encoded item.
size_t WireBytes(const SequenceDelta& delta);
// Of its arrays alone: what another delta grows by that it is joined to.
size_t ArrayBytes(const SequenceDelta& delta);
size_t WireBytes(const AdmitRequest& request);
size_t WireBytes(const WorkerStart& start);

}  // namespace lockstep::router
