#include "services/gateway/own_abort.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::gateway {

OwnAbort::OwnAbort(std::vector<std::shared_ptr<Generation>> generations)
    : generations_(std::move(generations)) {}

OwnAbort OwnAbort::OfAll(const RequestTable& table) { return OwnAbort(table.Running()); }

OwnAbort OwnAbort::Of(const v1::AbortRequest& abort, const RequestTable& table) {
  if (abort.all()) return OfAll(table);
  std::vector<std::shared_ptr<Generation>> named;
  for (const std::string& id : abort.request_ids()) {
    if (auto generation = table.Find(id)) named.push_back(std::move(generation));
  }
  return OwnAbort(std::move(named));
}

void OwnAbort::EndStranded() {
  for (const std::shared_ptr<Generation>& generation : generations_) {
    const int64_t ended = generation->EndStranded(v1::FINISH_REASON_ABORT);
    stranded_sequences_ += ended;
    if (ended > 0 && generation->finished()) ++stranded_requests_;
  }
}

void OwnAbort::EndRest() const {
  for (const auto& generation : generations_) generation->EndEarly(v1::FINISH_REASON_ABORT);
}

void OwnAbort::AddTo(v1::AbortResponse* response) const {
  response->set_aborted_sequences(response->aborted_sequences() + stranded_sequences_);
  // Of an abort of everything nothing is unknown.
  response->set_unknown_requests(
      std::max<int64_t>(0, response->unknown_requests() - stranded_requests_));
}

}  // namespace lockstep::gateway
