#include "common/rpc/bearer_tokens.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace lockstep::rpc {
namespace {

// Long enough that nobody guesses one.
constexpr size_t kTokenCharactersMin = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<BearerTokens>> BearerTokens::Create(Options options,
                                                                   const base::Clock* clock) {
  auto tokens = std::make_unique<BearerTokens>(Private(), std::move(options), clock);
  base::MutexLock lock(&tokens->mutex_);
  LOCKSTEP_ASSIGN_OR_RETURN(tokens->roles_, tokens->Read());
  tokens->next_look_ = clock->Now() + tokens->options_.reload;
  return tokens;
}

BearerTokens::BearerTokens(Private, Options options, const base::Clock* clock)
    : options_(std::move(options)), clock_(clock) {}

absl::StatusOr<BearerTokens::RoleByToken> BearerTokens::Read() const {
  RoleByToken roles;
  if (std::error_code error; !std::filesystem::is_directory(options_.directory, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.directory, ": is no directory with tokens"));
  }
  for (const std::string& role : options_.roles) {
    const std::string path = absl::StrCat(options_.directory, "/", role);
    if (std::error_code error; !std::filesystem::exists(path, error)) continue;
    if (std::error_code error; std::filesystem::is_directory(path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not a file"));
    }
    std::ifstream file(path);
    if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
    for (std::string line; std::getline(file, line);) {
      const absl::string_view token = absl::StripAsciiWhitespace(line);
      if (token.empty()) continue;
      // The token itself is never shown.
      if (token.size() < kTokenCharactersMin) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": a token of ", token.size(), " characters, fewer than ", kTokenCharactersMin));
      }
      if (token.find_first_of(" \t") != absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": a token with a space in it"));
      }
      const auto [entry, added] = roles.emplace(std::string(token), role);
      if (!added && entry->second != role) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": a token that is also one of ", entry->second));
      }
    }
    if (file.bad()) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  if (roles.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(options_.directory, ": holds no token in ",
                                                   absl::StrJoin(options_.roles, " or ")));
  }
  return roles;
}

std::string BearerTokens::RoleOf(absl::string_view token) {
  base::MutexLock lock(&mutex_);
  if (const absl::Time now = clock_->Now(); now >= next_look_) {
    next_look_ = now + options_.reload;
    absl::StatusOr<RoleByToken> read = Read();
    if (read.ok()) {
      roles_ = *std::move(read);
    } else if (options_.on_error) {
      options_.on_error(read.status());
    }
  }
  const auto found = roles_.find(token);
  return found == roles_.end() ? std::string() : found->second;
}

}  // namespace lockstep::rpc
