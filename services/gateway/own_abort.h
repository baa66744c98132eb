#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/generation.h"
#include "services/gateway/request_table.h"

namespace lockstep::gateway {

// What one call that aborts has to end at this gateway. The scheduler and the workers end what they
// know; a sequence whose router was lost is known here only. Used by one thread at a time.
class OwnAbort {
 public:
  // What the call means, of what is here now: what comes later lives.
  static OwnAbort Of(const v1::AbortRequest& abort, const RequestTable& table);
  static OwnAbort OfAll(const RequestTable& table);

  // At once: what no router has. It ran when the call came, so it counts as aborted and as known.
  void EndStranded();
  // Once the scheduler has answered: what was on its way between two services and reached neither.
  void EndRest() const;
  // Adds what EndStranded ended.
  void AddTo(v1::AbortResponse* response) const;

 private:
  explicit OwnAbort(std::vector<std::shared_ptr<Generation>> generations);

  std::vector<std::shared_ptr<Generation>> generations_;
  int64_t stranded_sequences_ = 0;
  int64_t stranded_requests_ = 0;  // Those of which nothing was left for anybody else.
};

}  // namespace lockstep::gateway
