#include "tests/process/member_cluster.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/files.h"
#include "services/cli/wait_until.h"
#include "tests/process/local_cluster.h"

namespace lockstep::testing {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);

template <typename Config>
Config ParseConfig(const std::string& text) {
  Config config;
  LOCKSTEP_CHECK(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

std::string PrintConfig(const google::protobuf::Message& config) {
  std::string text;
  LOCKSTEP_CHECK(google::protobuf::TextFormat::PrintToString(config, &text));
  return text;
}

void Edit(const MemberCluster::Options& options, cli::Member* member) {
  if (member->role == "scheduler") {
    auto config = ParseConfig<config::v1::SchedulerConfig>(member->config);
    config.set_lease_seconds(options.lease_seconds);
    member->config = PrintConfig(config);
  }
  if (member->role == "worker" && options.edit_worker != nullptr) {
    auto config = ParseConfig<config::v1::WorkerConfig>(member->config);
    options.edit_worker(*member, &config);
    member->config = PrintConfig(config);
  }
}

}  // namespace

MemberCluster::MemberCluster(cli::ClusterLayout layout, const Options& options)
    : layout_(std::move(layout)),
      lease_(absl::Seconds(options.lease_seconds)),
      programs_(options.programs) {}

absl::StatusOr<std::unique_ptr<MemberCluster>> MemberCluster::Start(Options options) {
  options.cluster.run_dir = MakeRunDirectory();
  LOCKSTEP_ASSIGN_OR_RETURN(cli::ClusterLayout layout, cli::MakeLayout(options.cluster));
  for (cli::Member& member : layout.members) Edit(options, &member);
  std::unique_ptr<MemberCluster> cluster(new MemberCluster(std::move(layout), options));
  for (const cli::Member& member : cluster->layout_.members) {
    LOCKSTEP_RETURN_IF_ERROR(cli::WriteFile(cluster->ConfigPath(member.name), member.config));
    LOCKSTEP_RETURN_IF_ERROR(cluster->StartMember(member.name));
  }
  cluster->client_ = std::make_unique<client::RolloutClient>(client::RolloutClient::Options{
      .target = cluster->layout_.gateway().address(), .timeout = absl::Minutes(2)});
  const bool ready = cli::WaitUntil(
      [&] {
        const auto info = cluster->client().GetServerInfo();
        return info.ok() && info->workers_size() == options.cluster.workers;
      },
      kStartTimeout);
  if (!ready) return absl::UnavailableError(absl::StrCat("no cluster in ", cluster->run_dir()));
  return cluster;
}

MemberCluster::~MemberCluster() {
  for (const auto& [name, process] : processes_) process.Signal(SIGKILL);
  while (!processes_.empty()) Kill(processes_.begin()->first);
  std::filesystem::remove_all(run_dir());
}

const cli::Member& MemberCluster::member(const std::string& name) const {
  const auto it = std::find_if(layout_.members.begin(), layout_.members.end(),
                               [&](const cli::Member& member) { return member.name == name; });
  LOCKSTEP_CHECK(it != layout_.members.end());
  return *it;
}

std::string MemberCluster::ConfigPath(const std::string& name) const {
  return absl::StrCat(run_dir(), "/", name, ".textproto");
}

std::string MemberCluster::LogPath(const std::string& name) const {
  return absl::StrCat(run_dir(), "/", name, ".log");
}

void MemberCluster::Kill(const std::string& name) {
  const auto it = processes_.find(name);
  if (it == processes_.end()) return;
  it->second.Signal(SIGKILL);
  LOCKSTEP_CHECK(cli::WaitUntil([&] { return it->second.Ended().has_value(); }, kStartTimeout,
                                absl::Milliseconds(2)));
  processes_.erase(it);
}

absl::Status MemberCluster::StartMember(const std::string& name) {
  const auto program = programs_.find(name);
  LOCKSTEP_ASSIGN_OR_RETURN(
      cli::ChildProcess process,
      cli::ChildProcess::Spawn(
          {.program = program == programs_.end() ? LOCKSTEP_BINARY : program->second,
           .arguments = {member(name).role, "--config=" + ConfigPath(name)},
           .log_path = LogPath(name)}));
  processes_.insert_or_assign(name, std::move(process));
  return absl::OkStatus();
}

config::v1::WorkerConfig MemberCluster::WorkerConfigOf(const std::string& name) const {
  return ParseConfig<config::v1::WorkerConfig>(cli::ReadFile(ConfigPath(name)).value_or(""));
}

void MemberCluster::SetWorkerConfig(const std::string& name,
                                    const config::v1::WorkerConfig& config) {
  const absl::Status written = cli::WriteFile(ConfigPath(name), PrintConfig(config));
  LOCKSTEP_CHECK(written.ok());
}

void MemberCluster::Signal(const std::string& name, int signal) const {
  processes_.at(name).Signal(signal);
}

std::string MemberCluster::Log(const std::string& name) const {
  return cli::ReadFile(LogPath(name)).value_or("");
}

double MemberCluster::Metric(const std::string& name, const std::string& metric) const {
  const auto page = client::MetricsPage::Fetch(member(name).metrics_address());
  return page.ok() ? page->Sum(metric) : -1;
}

uint64_t MemberCluster::IncarnationOf(const std::string& worker) {
  const auto info = client_->GetServerInfo();
  if (!info.ok()) return 0;
  for (const v1::WorkerInfo& entry : info->workers()) {
    if (entry.worker_id() == worker) return entry.incarnation();
  }
  return 0;
}

bool MemberCluster::WaitForNewLife(const std::string& worker, uint64_t old) {
  return cli::WaitUntil(
      [&] {
        const uint64_t now = IncarnationOf(worker);
        return now != 0 && now != old;
      },
      kStartTimeout);
}

}  // namespace lockstep::testing
