#include "services/worker/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/rpc/status_conversion.h"

namespace lockstep::worker {
namespace {

// Sets every field of a message, repeated ones once, to something that is not its default.
void FillAll(google::protobuf::Message* message, int depth = 0) {
  using google::protobuf::FieldDescriptor;
  using google::protobuf::Reflection;
  const Reflection* reflection = message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    const int number = field->number() + 10 * depth;
    const auto put = [&](auto set, auto add, auto value) {
      (reflection->*(field->is_repeated() ? add : set))(message, field, value);
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        put(&Reflection::SetInt32, &Reflection::AddInt32, number);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        put(&Reflection::SetInt64, &Reflection::AddInt64, number);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        put(&Reflection::SetUInt32, &Reflection::AddUInt32, number);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        put(&Reflection::SetUInt64, &Reflection::AddUInt64, number);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        put(&Reflection::SetDouble, &Reflection::AddDouble, number + 0.5);
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        put(&Reflection::SetFloat, &Reflection::AddFloat, number + 0.5f);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        put(&Reflection::SetBool, &Reflection::AddBool, true);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        put(&Reflection::SetEnumValue, &Reflection::AddEnumValue, 1);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        put(&Reflection::SetString, &Reflection::AddString, std::string("text"));
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        FillAll(field->is_repeated() ? reflection->AddMessage(message, field)
                                     : reflection->MutableMessage(message, field),
                depth + 1);
        break;
    }
  }
}

TEST(CodecTest, EveryFieldOfAStartThatTheEngineKnowsArrives) {
  v1::WorkerStart message;
  FillAll(&message);
  message.mutable_ticket()->set_sequence_id(message.sequence().sequence_id());
  const auto start = DecodeStart(message, absl::UnixEpoch());
  ASSERT_TRUE(start.ok()) << start.status();
  const v1::SequenceSpec& spec = message.sequence();
  EXPECT_EQ(start->ticket.value(), message.ticket().ticket_id());
  EXPECT_EQ(start->attempt, message.ticket().attempt());
  EXPECT_EQ(start->ticket_epoch.value(), message.ticket().epoch());
  EXPECT_EQ(start->plan.split_kv_size, message.ticket().plan().split_kv_size());
  EXPECT_EQ(start->plan.length, message.ticket().plan().length());
  EXPECT_EQ(start->sequence.value(), spec.sequence_id());
  EXPECT_EQ(start->request.value(), spec.request_id());
  EXPECT_EQ(start->trace_id, spec.trace_id());
  EXPECT_EQ(start->entry_epoch.value(), spec.entry_epoch());
  EXPECT_EQ(start->prompt_ids, std::vector<int32_t>(1, spec.prompt_ids(0)));
  EXPECT_EQ(start->generated_ids, std::vector<int32_t>(1, spec.generated_ids(0)));
  EXPECT_EQ(start->sub_seed, spec.sub_seed());
  EXPECT_EQ(start->deliver_output_from, spec.deliver_output_from());
  EXPECT_EQ(start->deliver_prompt_from, spec.deliver_prompt_from());
  EXPECT_EQ(start->cache_namespace, spec.cache_namespace());
  EXPECT_TRUE(start->disable_prefix_cache);
  EXPECT_TRUE(start->score_only);
  EXPECT_FALSE(start->parameters.skip_special_tokens);
  EXPECT_EQ(start->credit_tokens, message.credit_tokens());
  EXPECT_EQ(start->deadline, absl::UnixEpoch() + absl::Seconds(message.deadline_seconds()));

  const v1::SamplingParams& sampling = spec.parameters().sampling();
  const SequenceParameters& p = start->parameters;
  EXPECT_EQ(p.temperature, sampling.temperature());
  EXPECT_EQ(p.top_k, sampling.top_k());
  EXPECT_EQ(p.top_p, sampling.top_p());
  EXPECT_EQ(p.min_p, sampling.min_p());
  EXPECT_EQ(p.repetition_penalty, sampling.repetition_penalty());
  EXPECT_EQ(p.frequency_penalty, sampling.frequency_penalty());
  EXPECT_EQ(p.presence_penalty, sampling.presence_penalty());
  ASSERT_EQ(p.logit_bias.size(), 1u);
  EXPECT_EQ(p.logit_bias[0].id, sampling.logit_bias(0).id());
  EXPECT_EQ(p.logit_bias[0].bias, sampling.logit_bias(0).bias());
  const v1::StopOptions& stop = spec.parameters().stop();
  EXPECT_EQ(p.max_new_tokens, stop.max_new_tokens());
  EXPECT_EQ(p.min_new_tokens, stop.min_new_tokens());
  EXPECT_EQ(p.stop_ids, std::vector<int32_t>(1, stop.stop_ids(0)));
  EXPECT_EQ(p.stop_strings, std::vector<std::string>{stop.stop_strings(0)});
  const v1::LogprobOptions& logprobs = spec.parameters().logprobs();
  EXPECT_TRUE(p.logprobs);
  EXPECT_EQ(p.top_count, logprobs.top_count());
  EXPECT_EQ(p.chosen_ids, std::vector<int32_t>(1, logprobs.chosen_ids(0)));
  EXPECT_TRUE(p.entropy);
  EXPECT_TRUE(p.prompt_details);
}

TEST(CodecTest, NamesTheFieldThatIsMissing) {
  v1::WorkerStart message;
  EXPECT_THAT(std::string(DecodeStart(message, absl::UnixEpoch()).status().message()),
              ::testing::HasSubstr("ticket: not set"));
  FillAll(&message);
  message.mutable_ticket()->set_sequence_id(message.sequence().sequence_id());
  message.mutable_sequence()->mutable_parameters()->mutable_sampling()->clear_top_p();
  EXPECT_THAT(std::string(DecodeStart(message, absl::UnixEpoch()).status().message()),
              ::testing::HasSubstr("sampling.top_p: not set"));
}

TEST(CodecTest, OutputArrivesWithEveryField) {
  SequenceOutput output;
  output.ticket = base::TicketId(3);
  output.token_begin = 4;
  output.ids = {1, 2};
  output.logprobs = {{-1, -2}, {-3, -4}, {5, 6}, {7, 8}, {-5, -6}, {-7, -8}};
  output.prompt_begin = 9;
  output.prompt_count = 1;
  output.prompt_logprobs = {{-9}, {-9}, {}, {}, {}, {}};
  output.weight_version = base::WeightVersion(2);
  output.end = SequenceEnd{.reason = EndReason::kError,
                           .matched_stop = std::string("stop"),
                           .error = absl::InternalError("why"),
                           .usage = {1, 2, 3, 4, 5}};
  const v1::SequenceDelta delta = EncodeOutput(output, "w", "digest");
  EXPECT_EQ(delta.handle(), 3u);
  EXPECT_EQ(delta.token_begin(), 4);
  EXPECT_EQ(delta.token_ids(), std::string("\1\0\0\0\2\0\0\0", 8));
  EXPECT_EQ(delta.logprobs().raw().size(), 8u);
  EXPECT_EQ(delta.logprobs().scaled().size(), 8u);
  EXPECT_EQ(delta.logprobs().entropy().size(), 8u);
  EXPECT_EQ(delta.logprobs().top_ids().size(), 8u);
  EXPECT_EQ(delta.logprobs().top_logprobs().size(), 8u);
  EXPECT_EQ(delta.logprobs().chosen_logprobs().size(), 8u);
  EXPECT_EQ(delta.prompt_begin(), 9);
  EXPECT_EQ(delta.prompt_count(), 1);
  EXPECT_EQ(delta.prompt_logprobs().raw().size(), 4u);
  EXPECT_EQ(delta.weight_version(), 2);
  EXPECT_EQ(delta.weights_digest(), "digest");
  EXPECT_EQ(delta.end().reason(), v1::FINISH_REASON_ERROR);
  EXPECT_EQ(delta.end().matched_stop().string(), "stop");
  EXPECT_EQ(delta.end().error().message(), "why");
  EXPECT_EQ(delta.end().usage().cached_tokens(), 1);
  EXPECT_EQ(delta.end().usage().preemptions(), 5);
  EXPECT_EQ(delta.end().worker_id(), "w");
}

}  // namespace
}  // namespace lockstep::worker
