#pragma once

#include "absl/status/status.h"
#include "common/metrics/buckets.h"
#include "common/metrics/metric.h"
#include "lockstep/v1/types.pb.h"

namespace lockstep::gateway {

struct GatewayMetrics {
  explicit GatewayMetrics(metrics::Registry* registry)
      : requests(registry, "lockstep_gateway_requests_total",
                 "Requests that ended, by the status that the client got: calls of Generate, "
                 "GenerateStream and Score, each prompt of GenerateMany, and calls of any method "
                 "that access control refused. A request whose only sample failed has its status. "
                 "Messages larger than server.message_bytes_max are not counted: gRPC refuses them "
                 "before they are read.",
                 "code", metrics::StatusCodeLabels()),
        samples(registry, "lockstep_gateway_samples_total", "Samples that ended, by reason.",
                "reason", {"unspecified", "stop", "length", "abort", "error", "partial"}),
        prompt_tokens(registry, "lockstep_gateway_prompt_tokens_total",
                      "Prompt tokens of accepted requests."),
        generated_tokens(registry, "lockstep_gateway_generated_tokens_total",
                         "Tokens delivered to the ledger."),
        resubmissions(registry, "lockstep_gateway_resubmissions_total",
                      "Sequences given to another router because theirs was lost."),
        bit_mismatches(registry, "lockstep_gateway_bit_mismatches_total",
                       "Positions that came twice with other bits. Must stay 0."),
        attached(registry, "lockstep_gateway_attached_total",
                 "Calls that attached to a running or kept answer of the same request id."),
        long_work(registry, "lockstep_gateway_long_work_total",
                  "Long texts and long answers that were taken off the callback threads."),
        samples_open(registry, "lockstep_gateway_samples_open", "Samples in work now."),
        kept_bytes(registry, "lockstep_gateway_kept_result_bytes",
                   "Memory of finished answers kept for a retry, bytes."),
        prompt_bytes(registry, "lockstep_gateway_prompt_bytes",
                     "Bytes of token ids and parameters of the requests in work, once for all "
                     "samples of a request. At most prompt_bytes_max."),
        stream_slots_used(registry, "lockstep_gateway_stream_slots_used",
                          "Prompts of GenerateMany streams in work now."),
        streams_waiting(registry, "lockstep_gateway_streams_waiting",
                        "GenerateMany streams with a prompt that waits for a slot."),
        routers_connected(registry, "lockstep_gateway_routers_connected",
                          "Routers with an open stream."),
        request_seconds(registry, "lockstep_gateway_request_seconds",
                        "Time from the arrival of a request to its answer, of requests that "
                        "ended OK.",
                        metrics::RequestSecondsBuckets()),
        first_token_seconds(registry, "lockstep_gateway_first_token_seconds",
                            "Time from acceptance of a request to the first token of a sample.",
                            metrics::LatencySecondsBuckets()) {}

  metrics::CounterBy<absl::StatusCode> requests;
  metrics::CounterBy<v1::FinishReason> samples;
  metrics::Counter prompt_tokens;
  metrics::Counter generated_tokens;
  metrics::Counter resubmissions;
  metrics::Counter bit_mismatches;
  metrics::Counter attached;
  metrics::Counter long_work;
  metrics::Gauge samples_open;
  metrics::Gauge kept_bytes;
  metrics::Gauge prompt_bytes;
  metrics::Gauge stream_slots_used;
  metrics::Gauge streams_waiting;
  metrics::Gauge routers_connected;
  metrics::Histogram request_seconds;
  metrics::Histogram first_token_seconds;
};

}  // namespace lockstep::gateway
