#pragma once

#include "absl/status/statusor.h"
#include "kernels/api/certification.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/worker_options.h"

namespace lockstep::worker {

// The part of a worker's options that its model is loaded with.
ModelOptions ModelOptionsOf(const WorkerOptions& options);

// What a worker with these options certifies when it starts, without its weights: the certificates
// it would run by, and what was refused. Takes a device and much of its memory while it lasts.
absl::StatusOr<kernels::CertificationReport> CertifyModel(const WorkerOptions& options);

}  // namespace lockstep::worker
