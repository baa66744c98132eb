#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lockstep/v1/rollout.pb.h"
#include "lockstep/v1/scheduler.pb.h"
#include "services/scheduler/decisions.h"
#include "services/scheduler/types.h"

// Between lockstep.v1 messages and the core's values. Errors are INVALID_ARGUMENT and name the
// field.
namespace lockstep::scheduler {

WorkerName DecodeWorker(const v1::WorkerIdentity& worker);
LeaseEnd DecodeFault(v1::WorkerFault fault);
v1::WorkerIdentity EncodeWorker(const std::string& cluster_id, const WorkerName& name);

// Every field of the fingerprint by its name, so that a field added later is compared as well.
Contract DecodeContract(const v1::RegisterRequest& request);
WorkerRegistration DecodeRegistration(const v1::RegisterRequest& request);
WorkerReport DecodeReport(const v1::HeartbeatRequest& request);

// `now` turns the seconds that the request may wait into a deadline.
AdmissionRequest DecodeAdmission(const v1::AdmitRequest& request, RouterStream stream,
                                 absl::Time now);
v1::AdmitOutcome EncodeOutcome(const std::string& cluster_id, const AdmitOutcome& outcome);
v1::AdvanceTicket EncodeAdvance(const std::string& cluster_id, const AdvanceGrant& grant);

absl::StatusOr<PauseMode> DecodePauseMode(v1::PauseMode mode);
v1::PauseMode EncodePauseMode(PauseMode mode);

v1::WorkerState EncodeView(const std::string& cluster_id, const WorkerView& view);
v1::ControlRequest EncodeControl(const std::string& cluster_id, const ControlCall& call);
ControlReply DecodeControlReply(const v1::ControlResponse& response);

}  // namespace lockstep::scheduler
