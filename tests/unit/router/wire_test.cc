#include "services/router/wire.h"

#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace lockstep::router {
namespace {

using google::protobuf::FieldDescriptor;

void SetScalar(google::protobuf::Message* message, const FieldDescriptor* field, int salt) {
  const google::protobuf::Reflection* r = message->GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return list ? r->AddInt32(message, field, salt) : r->SetInt32(message, field, salt);
    case FieldDescriptor::CPPTYPE_INT64:
      return list ? r->AddInt64(message, field, salt) : r->SetInt64(message, field, salt);
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? r->AddUInt32(message, field, salt) : r->SetUInt32(message, field, salt);
    case FieldDescriptor::CPPTYPE_UINT64:
      return list ? r->AddUInt64(message, field, salt) : r->SetUInt64(message, field, salt);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? r->AddDouble(message, field, salt) : r->SetDouble(message, field, salt);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return list ? r->AddFloat(message, field, salt) : r->SetFloat(message, field, salt);
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? r->AddBool(message, field, true) : r->SetBool(message, field, true);
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = "text" + std::to_string(salt);
      return list ? r->AddString(message, field, text) : r->SetString(message, field, text);
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      // The last value: never the unspecified one.
      const auto* values = field->enum_type();
      return r->SetEnum(message, field, values->value(values->value_count() - 1));
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

// Sets every field; of a oneof, the member that stands at `choice` modulo its size.
void Fill(google::protobuf::Message* message, int choice, int* salt) {
  const google::protobuf::Descriptor* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const auto* oneof = field->real_containing_oneof();
    if (oneof != nullptr && field->index_in_oneof() != choice % oneof->field_count()) continue;
    ++*salt;
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      SetScalar(message, field, *salt);
    } else if (field->is_repeated()) {
      Fill(message->GetReflection()->AddMessage(message, field), choice, salt);
    } else {
      Fill(message->GetReflection()->MutableMessage(message, field), choice, salt);
    }
  }
}

std::string Difference(const google::protobuf::Message& a, const google::protobuf::Message& b) {
  std::string text;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&text);
  return differencer.Compare(a, b) ? "" : text;
}

TEST(WireTest, EveryFieldOfASequenceReachesTheWorker) {
  int salt = 0;
  v1::RouteOpen open;
  Fill(&open, 0, &salt);
  const v1::SequenceSpec sent = open.sequence();
  std::shared_ptr<const std::vector<uint32_t>> last_prompt;
  const OpenSequence decoded = DecodeOpen(&open, &last_prompt);
  v1::WorkerStart start;
  EncodeStart("cluster",
              {.spec = decoded.spec,
               .deliver_output_from = decoded.spec->deliver_output_from,
               .deliver_prompt_from = decoded.spec->deliver_prompt_from,
               .entry_epoch = decoded.spec->entry_epoch},
              &start);
  EXPECT_EQ(Difference(sent, start.sequence()), "");
}

// Queues of long prompts, many samples each, would not fit into a router's memory otherwise.
TEST(WireTest, SamplesThatFollowEachOtherShareTheirPrompt) {
  std::shared_ptr<const std::vector<uint32_t>> last_prompt;
  std::vector<OpenSequence> decoded;
  for (const std::vector<uint32_t>& prompt :
       std::vector<std::vector<uint32_t>>{{7, 8}, {7, 8}, {7}, {7, 8, 9}, {7, 8, 9}, {}}) {
    v1::RouteOpen open;
    open.mutable_sequence()->mutable_prompt_ids()->Add(prompt.begin(), prompt.end());
    decoded.push_back(DecodeOpen(&open, &last_prompt));
    EXPECT_EQ(decoded.back().spec->prompt_ids(), prompt);
  }
  EXPECT_EQ(decoded[0].spec->prompt, decoded[1].spec->prompt);
  EXPECT_NE(decoded[1].spec->prompt, decoded[2].spec->prompt);
  EXPECT_NE(decoded[2].spec->prompt, decoded[3].spec->prompt);
  EXPECT_EQ(decoded[3].spec->prompt, decoded[4].spec->prompt);
}

TEST(WireTest, ResumedStartCarriesWhatWasGenerated) {
  v1::RouteOpen open;
  open.mutable_sequence()->add_prompt_ids(7);
  open.mutable_sequence()->add_generated_ids(8);
  std::shared_ptr<const std::vector<uint32_t>> last_prompt;
  const OpenSequence decoded = DecodeOpen(&open, &last_prompt);
  v1::WorkerStart start;
  EncodeStart("cluster",
              {.spec = decoded.spec,
               .generated_ids =
                   std::make_shared<const std::vector<uint32_t>>(std::vector<uint32_t>{8, 9, 10}),
               .deliver_output_from = 3},
              &start);
  EXPECT_EQ(start.sequence().prompt_ids_size(), 1);
  ASSERT_EQ(start.sequence().generated_ids_size(), 3);
  EXPECT_EQ(start.sequence().generated_ids(2), 10u);
  EXPECT_EQ(start.sequence().deliver_output_from(), 3);
}

TEST(WireTest, EveryFieldOfADeltaReachesTheGateway) {
  for (int choice = 0; choice < 2; ++choice) {  // Both kinds of matched stop.
    for (const v1::FinishReason reason : {v1::FINISH_REASON_STOP, v1::FINISH_REASON_ERROR}) {
      int salt = 0;
      v1::WorkerFrame frame;
      v1::SequenceDelta* delta = frame.add_deltas();
      Fill(delta, choice, &salt);
      delta->mutable_end()->set_reason(reason);
      delta->mutable_end()->mutable_error()->set_code(14);  // A code that exists.
      // An error travels with ends by ERROR only.
      if (reason != v1::FINISH_REASON_ERROR) delta->mutable_end()->clear_error();
      const v1::SequenceDelta sent = *delta;
      WorkerFrame decoded = DecodeFrame(&frame);
      ASSERT_EQ(decoded.deltas.size(), 1u);
      v1::SequenceDelta received;
      EncodeDelta(std::move(decoded.deltas[0]), &received);
      EXPECT_EQ(Difference(sent, received), "");
    }
  }
}

TEST(WireTest, TicketReachesTheWorkerAsTheSchedulerGaveIt) {
  int salt = 0;
  v1::Ticket ticket;
  Fill(&ticket, 0, &salt);
  ticket.mutable_worker()->set_cluster_id("cluster");
  auto spec = std::make_shared<SequenceSpec>();
  spec->sequence = base::SequenceId(ticket.sequence_id());
  v1::WorkerStart start;
  EncodeStart("cluster", {.ticket = DecodeTicket(ticket), .spec = spec}, &start);
  EXPECT_EQ(Difference(ticket, start.ticket()), "");
}

TEST(WireTest, AdmissionCarriesTheTraceIdAndAWorkerItsLease) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->trace_id = "t";
  v1::AdmitRequest request;
  EncodeAdmit("cluster", {.spec = spec}, &request);
  EXPECT_EQ(request.trace_id(), "t");
  v1::WorkerState state;
  state.set_lease_seconds(1.5);
  EXPECT_EQ(DecodeWorkerState(state).lease, absl::Milliseconds(1500));
}

}  // namespace
}  // namespace lockstep::router
