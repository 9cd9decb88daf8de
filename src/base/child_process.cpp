#include "base/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/system_call.h"

extern char** environ;

namespace ingot::base {
namespace {

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> all;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const bool is_replaced = std::any_of(added.begin(), added.end(), [&](const auto& a) { return text.starts_with(a.first + "="); });
    if (!is_replaced) all.push_back(text);
  }
  for (const auto& [name, value] : added) all.push_back(name + "=" + value);
  return all;
}

}  // namespace

pid_t start_process(const std::vector<std::string>& command, const std::vector<std::pair<std::string, std::string>>& environment,
                    const ChildStreams& streams) {
  int report[2];  // the errno of a failed exec
  if (pipe2(report, O_CLOEXEC) != 0) throw FileError("no pipe for a process: {}", std::strerror(errno));
  std::vector<std::string> words = command, variables = environment_with(environment);
  std::vector<char*> argv, envp;
  for (auto& word : words) argv.push_back(word.data());
  for (auto& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr), envp.push_back(nullptr);
  const pid_t parent = getpid(), process = fork();
  if (process < 0) {
    const int failure = errno;
    close(report[0]), close(report[1]);
    throw FileError("cannot start a process for {}: {}", command[0], std::strerror(failure));
  }
  if (process == 0) {  // only calls that are safe after fork
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, 0);
    if (streams.out >= 0) dup2(streams.out, 1);
    if (streams.err >= 0) dup2(streams.err, 2);
    signal(SIGPIPE, SIG_DFL);  // which may be switched off here, and would be inherited
    execvpe(argv[0], argv.data(), envp.data());
    const int failure = errno;
    (void)!write(report[1], &failure, sizeof failure);
    _exit(127);
  }
  close(report[1]);
  int failure = 0;
  const bool failed = uninterrupted([&] { return read(report[0], &failure, sizeof failure); }) == sizeof failure;
  close(report[0]);
  if (!failed) return process;
  uninterrupted([&] { return waitpid(process, nullptr, 0); });
  throw UsageError("cannot start '{}': {}", command[0], std::strerror(failure));
}

}  // namespace ingot::base
