#include "services/cli/cluster/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lockstep::cli {
namespace {

// In the child between fork and exec: only async-signal-safe calls.
[[noreturn]] void Execute(const char* program, char* const* words, int log_fd, int null_fd,
                          pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the line above.
  if (getppid() != parent) _exit(127);
  // A group of its own: Ctrl-C reaches the parent alone, which ends its children in order.
  setpgid(0, 0);
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(program, words);
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Spawn(const Options& options) {
  const int log_fd =
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(options.log_path, ": cannot be written: ", std::strerror(errno)));
  }
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<std::string> strings = options.arguments;
  std::vector<char*> words = {const_cast<char*>(options.program.c_str())};
  for (std::string& word : strings) words.push_back(word.data());
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Execute(options.program.c_str(), words.data(), log_fd, null_fd, parent);
  const int error = errno;
  close(log_fd);
  close(null_fd);
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(error)));
  return ChildProcess(pid);
}

void ChildProcess::Signal(int signal) const {
  if (!ended_.has_value()) kill(pid_, signal);
}

std::optional<std::string> ChildProcess::Ended() {
  int status = 0;
  if (!ended_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) {
    ended_ = WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                                 : absl::StrCat("exit code ", WEXITSTATUS(status));
  }
  return ended_;
}

}  // namespace lockstep::cli
