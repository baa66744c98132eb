#include "services/gateway/route_pool.h"

#include <algorithm>
#include <utility>

#include "common/rpc/channel_pool.h"

namespace lockstep::gateway {
namespace {

// Each sample of a group carries the prompt; commands are cut between samples when they grow beyond
// this, since a router breaks the stream over a message larger than it takes.
constexpr size_t kCommandBytes = size_t{1} << 20;

void AppendCredit(uint64_t handle, int64_t tokens, v1::RouteCommand* command) {
  v1::Credit* credit = command->add_credit();
  credit->set_handle(handle);
  credit->set_tokens(tokens);
}

}  // namespace

class RoutePool::Stream final : public rpc::ClientBidiStream<v1::RouteCommand, v1::RouteFrame> {
 public:
  Stream(const rpc::CallScope& scope, RoutePool* pool, int link)
      : ClientBidiStream(scope, rpc::kBoundedByCredit), pool_(pool), link_(link) {}
  // After this no callback reaches the pool, which may be destroyed. Waits for one that runs.
  void Detach() {
    base::MutexLock lock(&pool_mutex_);
    pool_ = nullptr;
  }

 private:
  void OnMessage(v1::RouteFrame& frame) override {
    {
      base::MutexLock lock(&pool_mutex_);
      if (pool_ != nullptr) pool_->OnFrame(link_, frame);
    }
    RequestRead();
  }
  void OnClosed(const absl::Status& status) override {
    base::MutexLock lock(&pool_mutex_);
    if (pool_ != nullptr) pool_->OnClosed(link_, status);
  }

  base::Mutex pool_mutex_;
  RoutePool* pool_ ABSL_GUARDED_BY(pool_mutex_);
  const int link_;
};

RoutePool::RoutePool(const std::vector<std::string>& routers, rpc::ChannelOptions channel,
                     GatewayMetrics* metrics, log::Logger logger)
    : metrics_(metrics), logger_(std::move(logger)) {
  channel.round_robin = true;
  for (const std::string& address : routers) {
    Link link;
    link.address = address;
    link.channel = rpc::MakeChannel(address, channel);
    link.channel->GetState(/*try_to_connect=*/true);
    link.stub = v1::RouterService::NewStub(link.channel);
    links_.push_back(std::move(link));
  }
}

RoutePool::~RoutePool() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    for (Link& link : links_) {
      if (link.stream != nullptr) streams.push_back(std::move(link.stream));
    }
  }
  for (const auto& stream : streams) {
    stream->Detach();
    stream->Cancel();
  }
}

uint64_t RoutePool::Open(std::vector<Item> items) {
  base::MutexLock lock(&mutex_);
  const uint64_t first = next_handle_;
  Group group;
  for (Item& item : items) {
    item.open.set_handle(next_handle_);
    entries_[next_handle_++] = {.sequence = std::move(item.sequence)};
    group.push_back(std::move(item.open));
  }
  if (!waiting_.empty() || !SendLocked(&group)) waiting_.push_back(std::move(group));
  return first;
}

void RoutePool::Cancel(uint64_t handle) {
  base::MutexLock lock(&mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return;
  const int link = found->second.link;
  entries_.erase(found);
  if (link == kNoLink || links_[link].stream == nullptr) return;
  v1::RouteCommand command;
  command.add_cancel()->set_handle(handle);
  (void)links_[link].stream->Write(std::move(command));
}

bool RoutePool::IsStranded(uint64_t handle) const {
  base::MutexLock lock(&mutex_);
  const auto found = entries_.find(handle);
  return found != entries_.end() && found->second.link == kNoLink;
}

void RoutePool::AddCredit(uint64_t handle, int64_t tokens) {
  base::MutexLock lock(&mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return;
  if (found->second.link == kNoLink) {
    found->second.late_credit += tokens;
    return;
  }
  const std::shared_ptr<Stream>& stream = links_[found->second.link].stream;
  if (stream == nullptr) return;
  v1::RouteCommand command;
  AppendCredit(handle, tokens, &command);
  (void)stream->Write(std::move(command));
}

bool RoutePool::ConnectLocked(int index) {
  Link& link = links_[index];
  if (link.stream != nullptr) return true;
  if (link.channel->GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_READY) return false;
  link.stream = rpc::StartStream<Stream>(
      [&link](grpc::ClientContext* context, auto* reactor) {
        link.stub->async()->Route(context, reactor);
      },
      rpc::CallScope{}, this, index);
  link.stream->RequestRead();
  CountConnectedLocked();
  return true;
}

int RoutePool::PickLinkLocked() {
  for (size_t i = 0; i < links_.size(); ++i) {
    const int link = static_cast<int>(next_link_++ % links_.size());
    if (ConnectLocked(link)) return link;
  }
  return kNoLink;
}

bool RoutePool::SendLocked(Group* group) {
  if (stopping_) return false;
  const int link = PickLinkLocked();
  if (link == kNoLink) return false;
  Stream* const stream = links_[link].stream.get();
  v1::RouteCommand command;
  size_t bytes = 0;
  for (v1::RouteOpen& open : *group) {
    const auto found = entries_.find(open.handle());
    if (found == entries_.end()) continue;  // Cancelled while it waited.
    found->second.link = link;
    open.set_credit_tokens(open.credit_tokens() + std::exchange(found->second.late_credit, 0));
    const size_t open_bytes = open.ByteSizeLong();
    if (command.open_size() > 0 && bytes + open_bytes > kCommandBytes) {
      (void)stream->Write(std::exchange(command, {}));
      bytes = 0;
    }
    bytes += open_bytes;
    *command.add_open() = std::move(open);
  }
  if (command.open_size() > 0) (void)stream->Write(std::move(command));
  return true;
}

void RoutePool::OnFrame(int link, const v1::RouteFrame& frame) {
  for (const v1::RouteEntry& entry : frame.entries()) {
    std::shared_ptr<RouteSequence> sequence;
    {
      base::MutexLock lock(&mutex_);
      const auto found = entries_.find(entry.handle());
      if (found == entries_.end() || found->second.link != link) continue;
      sequence = found->second.sequence;
    }
    sequence->OnEntered(entry.epoch());
  }
  std::vector<std::pair<uint64_t, std::shared_ptr<RouteSequence>>> going_on;
  for (const v1::SequenceDelta& delta : frame.deltas()) {
    std::shared_ptr<RouteSequence> sequence;
    {
      base::MutexLock lock(&mutex_);
      const auto found = entries_.find(delta.handle());
      if (found == entries_.end() || found->second.link != link) continue;
      sequence = found->second.sequence;
      if (delta.has_end()) entries_.erase(found);
    }
    sequence->OnDelta(delta);
    if (!delta.has_end()) going_on.emplace_back(delta.handle(), std::move(sequence));
  }
  // One message for all of them: sequences that were granted to one by one would drift apart, into
  // steps, frames and grants of their own.
  v1::RouteCommand command;
  for (const auto& [handle, sequence] : going_on) {
    const int64_t tokens = sequence->TakeCredit();
    if (tokens > 0) AppendCredit(handle, tokens, &command);
  }
  if (command.credit().empty()) return;
  base::MutexLock lock(&mutex_);
  // Its end is told after this frame.
  if (links_[link].stream != nullptr) (void)links_[link].stream->Write(std::move(command));
}

void RoutePool::OnClosed(int index, const absl::Status& status) {
  base::MutexLock lock(&mutex_);
  Link& link = links_[index];
  logger_.Warning("router_lost", {{"router", link.address}, {"status", status}});
  link.stream = nullptr;
  CountConnectedLocked();
  for (auto& [handle, entry] : entries_) {
    if (entry.link != index) continue;
    entry.link = kNoLink;
    orphans_.push_back(handle);
  }
}

void RoutePool::Tick() {
  std::vector<std::pair<uint64_t, std::shared_ptr<RouteSequence>>> orphans;
  {
    base::MutexLock lock(&mutex_);
    std::sort(orphans_.begin(), orphans_.end());
    const bool reachable = PickLinkLocked() != kNoLink;
    for (const uint64_t handle : orphans_) {
      if (!reachable) break;
      const auto found = entries_.find(handle);
      if (found != entries_.end()) orphans.emplace_back(handle, found->second.sequence);
    }
    if (reachable) orphans_.clear();
  }
  // Outside the lock: building asks the ledger, whose owner may be calling us.
  for (auto& [handle, sequence] : orphans) {
    std::optional<v1::RouteOpen> open = sequence->BuildOpen();
    base::MutexLock lock(&mutex_);
    if (!open.has_value()) {
      entries_.erase(handle);
      continue;
    }
    open->set_handle(handle);
    waiting_.push_back({*std::move(open)});
  }
  base::MutexLock lock(&mutex_);
  while (!waiting_.empty() && SendLocked(&waiting_.front())) waiting_.pop_front();
}

void RoutePool::CountConnectedLocked() {
  const auto connected = std::count_if(links_.begin(), links_.end(),
                                       [](const Link& link) { return link.stream != nullptr; });
  metrics_->routers_connected.Set(static_cast<double>(connected));
}

}  // namespace lockstep::gateway
