#pragma once

#include <cstdint>
#include <string>

#include "common/base/strong_id.h"

// Names of things that cross rooms.
namespace lockstep::base {

// What a trainer sent; chosen by the client or minted by the gateway.
using RequestId = StrongId<struct RequestIdTag, std::string>;
// One sample of a request: "<request id>/<sample index>". Unique in the cluster.
using SequenceId = StrongId<struct SequenceIdTag, std::string>;
// Configured name of a worker; survives restarts of its process.
using WorkerId = StrongId<struct WorkerIdTag, std::string>;
// One life of a worker process; drawn anew at each registration.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;
// Granted by the scheduler to one attempt of one sequence.
using TicketId = StrongId<struct TicketIdTag, uint64_t>;
// Version of the weights, counted up by each update.
using WeightVersion = StrongId<struct WeightVersionTag, int64_t>;
// Admission epoch: bumped by abort and pause, never goes down.
using Epoch = StrongId<struct EpochTag, uint64_t>;

}  // namespace lockstep::base
