#include "services/scheduler/scheduler_wire.h"

#include "common/rpc/status_conversion.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "services/scheduler/fingerprint_gate.h"

namespace lockstep::scheduler {
namespace {

using google::protobuf::FieldDescriptor;
using testing::HasSubstr;

// Gives every singular field of a message a value that is not its default.
void FillAll(google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      reflection.SetInt64(message, field, 7 + i);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection.SetString(message, field, "text");
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      reflection.SetEnumValue(message, field, 1);
    } else {
      FAIL() << field->full_name() << " has a type that this test does not fill";
    }
  }
}

TEST(SchedulerWireTest, EveryFieldOfTheFingerprintIsComparedByName) {
  v1::RegisterRequest request;
  FillAll(request.mutable_fingerprint());
  const FingerprintGate gate(DecodeContract(request));
  const google::protobuf::Descriptor* descriptor = v1::ContractFingerprint::descriptor();
  ASSERT_GE(descriptor->field_count(), 13);
  for (int i = 0; i < descriptor->field_count(); ++i) {
    v1::RegisterRequest other = request;
    const FieldDescriptor* field = descriptor->field(i);
    other.mutable_fingerprint()->GetReflection()->ClearField(other.mutable_fingerprint(), field);
    EXPECT_THAT(std::string(gate.Compare(DecodeContract(other)).message()),
                HasSubstr(std::string(field->name())));
  }
}

TEST(SchedulerWireTest, AdmissionRequestKeepsEveryField) {
  v1::AdmitRequest request;
  request.set_handle(1);
  request.set_sequence_id("r/0");
  request.set_request_id("r");
  request.set_attempt(2);
  request.set_length(30);
  request.set_prompt_tokens(20);
  request.set_new_tokens_max(40);
  request.set_prefix_hash(50);
  request.set_group_id("g");
  request.set_group_size(3);
  request.set_entry_epoch(60);
  request.set_deadline_seconds(1.5);
  request.set_trace_id("t");
  v1::WorkerIdentity* worker = request.add_candidates();
  worker->set_worker_id("w");
  worker->set_incarnation(70);
  const AdmissionRequest decoded = DecodeAdmission(request, RouterStream(9), absl::UnixEpoch());
  EXPECT_EQ(decoded.stream, RouterStream(9));
  EXPECT_EQ(decoded.handle, 1u);
  EXPECT_EQ(decoded.sequence.value(), "r/0");
  EXPECT_EQ(decoded.request.value(), "r");
  EXPECT_EQ(decoded.trace_id, "t");
  EXPECT_EQ(decoded.attempt, 2);
  EXPECT_EQ(decoded.demand.length, 30);
  EXPECT_EQ(decoded.demand.prompt_tokens, 20);
  EXPECT_EQ(decoded.demand.new_tokens_max, 40);
  EXPECT_EQ(decoded.demand.prefix_hash, 50u);
  EXPECT_EQ(decoded.group, "g");
  EXPECT_EQ(decoded.entry_epoch, base::Epoch(60));
  EXPECT_EQ(decoded.deadline, absl::UnixEpoch() + absl::Seconds(1.5));
  ASSERT_EQ(decoded.candidates.size(), 1u);
  EXPECT_EQ(decoded.candidates[0].incarnation, base::Incarnation(70));
}

TEST(SchedulerWireTest, OutcomeCarriesTicketOrError) {
  const AdmitOutcome granted{.handle = 4,
                             .ticket = Ticket{.id = base::TicketId(5),
                                              .worker = {base::WorkerId("w"), base::Incarnation(6)},
                                              .sequence = base::SequenceId("s"),
                                              .attempt = 7,
                                              .epoch = base::Epoch(8),
                                              .plan = {.split_kv_size = 64, .length = 99},
                                              .expires_after = absl::Seconds(5)}};
  const v1::AdmitOutcome encoded = EncodeOutcome("c", granted);
  EXPECT_EQ(encoded.handle(), 4u);
  EXPECT_EQ(encoded.ticket().ticket_id(), 5u);
  EXPECT_EQ(encoded.ticket().worker().cluster_id(), "c");
  EXPECT_EQ(encoded.ticket().worker().incarnation(), 6u);
  EXPECT_EQ(encoded.ticket().sequence_id(), "s");
  EXPECT_EQ(encoded.ticket().attempt(), 7);
  EXPECT_EQ(encoded.ticket().epoch(), 8u);
  EXPECT_EQ(encoded.ticket().plan().split_kv_size(), 64);
  EXPECT_EQ(encoded.ticket().plan().length(), 99);
  EXPECT_EQ(encoded.ticket().expires_seconds(), 5);
  const absl::Status status = absl::AbortedError("why");
  const v1::AdmitOutcome refused = EncodeOutcome("c", {.handle = 4, .ticket = status});
  EXPECT_EQ(rpc::FromErrorDetail(refused.error()).code(), absl::StatusCode::kAborted);
}

TEST(SchedulerWireTest, WorkerComesWithItsLease) {
  EXPECT_EQ(EncodeView("c", {.lease = absl::Milliseconds(1500)}).lease_seconds(), 1.5);
}

TEST(SchedulerWireTest, UnknownPauseModeIsRefused) {
  EXPECT_EQ(*DecodePauseMode(v1::PAUSE_MODE_UNSPECIFIED), PauseMode::kWait);
  EXPECT_FALSE(DecodePauseMode(static_cast<v1::PauseMode>(77)).ok());
}

}  // namespace
}  // namespace lockstep::scheduler
