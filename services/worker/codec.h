#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lockstep/v1/worker.pb.h"
#include "services/worker/engine/sequence_start.h"
#include "services/worker/engine/step_output.h"
#include "services/worker/lease_fence.h"

// Between the messages of the wire and the types of the engine. Every field survives both ways.
namespace lockstep::worker {

Identity DecodeIdentity(const v1::WorkerIdentity& message);
v1::WorkerIdentity EncodeIdentity(const Identity& identity);

// INVALID_ARGUMENT names the field that is missing or cannot be represented. Ranges that depend on
// the model are the engine's to check.
absl::StatusOr<SequenceStart> DecodeStart(const v1::WorkerStart& message, absl::Time now);

// `worker_id` goes into the end of the sequence.
v1::SequenceDelta EncodeOutput(const SequenceOutput& output, const std::string& worker_id,
                               const std::string& weights_digest);

}  // namespace lockstep::worker
