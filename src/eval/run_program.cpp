#include "eval/run_program.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/files.h"

namespace ingot::eval {
namespace {

namespace fs = std::filesystem;

constexpr rlim_t kLargestFile = rlim_t{16} << 20;
constexpr int kNotStarted = 126;

// Gone with all that the program has left in it.
struct Folder {
  fs::path path;
  explicit Folder(const fs::path& in) {
    auto name = (in / "ingot_program_XXXXXX").string();
    if (!mkdtemp(name.data())) throw base::FileError("no folder for a program in {}: {}", in.string(), std::strerror(errno));
    path = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code none;
    fs::remove_all(path, none);
  }
};

void bound(__rlimit_resource what, rlim_t most) {
  const rlimit limit{most, most};
  setrlimit(what, &limit);
}

struct Start {
  char* const* argv;
  char* const* envp;
  const char* folder;
  int err, report;
  ProgramLimits limits;
};

// Only calls that are safe after fork.
[[noreturn]] void become(const Start& start, bool has_namespaces) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  bound(RLIMIT_CPU, static_cast<rlim_t>(std::ceil(start.limits.seconds)) + 1);
  bound(RLIMIT_AS, static_cast<rlim_t>(start.limits.memory_mib) << 20);
  bound(RLIMIT_FSIZE, kLargestFile);
  bound(RLIMIT_CORE, 0);
  bound(RLIMIT_NOFILE, 128);
  if (has_namespaces) bound(RLIMIT_NPROC, 64);  // counted for the user otherwise, in all that runs already
  signal(SIGPIPE, SIG_DFL);
  execve(start.argv[0], start.argv, start.envp);
  _exit(kNotStarted);
}

[[noreturn]] void run_child(const Start& start) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  umask(077);
  const int nothing = open("/dev/null", O_RDWR);
  if (chdir(start.folder) != 0 || nothing < 0) _exit(kNotStarted);
  dup2(nothing, 0), dup2(nothing, 1), dup2(start.err, 2);
  // A user namespace gives the right to the others; root has it without.
  const int others = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC;
  const bool has_namespaces = unshare(CLONE_NEWUSER | others) == 0 || unshare(others) == 0;
  const char said = has_namespaces ? '1' : '0';
  (void)!write(start.report, &said, 1);
  for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
  if (!has_namespaces) become(start, false);
  const pid_t first = fork();  // of the new process namespace: with it all that it has started ends
  if (first == 0) become(start, true);
  if (first < 0) _exit(kNotStarted);
  int status = 0;
  while (waitpid(first, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) _exit(128 + WTERMSIG(status));
  _exit(WEXITSTATUS(status));
}

std::string found_by_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return fs::absolute(name).string();
  const char* path = std::getenv("PATH");
  for (std::string rest = path ? path : "/usr/bin:/bin"; !rest.empty();) {
    const auto end = rest.find(':');
    const auto file = fs::path(rest.substr(0, end)) / name;
    if (access(file.c_str(), X_OK) == 0 && fs::is_regular_file(file)) return fs::absolute(file).string();
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  throw base::FileError("there is no program '{}' to run the model's with; install it, or name another as the task's interpreter", name);
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& command, const std::string& text, const ProgramLimits& limits) {
  const Folder folder(base::temporary_folder());
  const auto file = folder.path / "program", errors = folder.path / "errors";
  base::write_file_atomically(file, text);
  std::vector<std::string> words = command;
  words[0] = found_by_path(words[0]);
  words.push_back(file.string());
  std::vector<std::string> variables = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + folder.path.string(),
                                        "TMPDIR=" + folder.path.string(),    "LANG=C.UTF-8",
                                        "PYTHONDONTWRITEBYTECODE=1",         "OMP_NUM_THREADS=1"};
  std::vector<char*> argv, envp;
  for (auto& word : words) argv.push_back(word.data());
  for (auto& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr), envp.push_back(nullptr);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) throw base::FileError("no pipe for a program: {}", std::strerror(errno));
  const int err = open(errors.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  const std::string where = folder.path.string();
  const Start start{argv.data(), envp.data(), where.c_str(), err, report[1], limits};
  const pid_t child = fork();
  if (child == 0) run_child(start);
  const int failure = errno;
  close(report[1]), close(err);
  if (child < 0) {
    close(report[0]);
    throw base::FileError("cannot start a program: {}", std::strerror(failure));
  }
  ProgramResult result;
  char isolated = '0';
  (void)!read(report[0], &isolated, 1);
  close(report[0]);
  result.is_isolated = isolated == '1';
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limits.seconds);
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  kill(-child, SIGKILL);  // and what it has left behind
  if (ended == 0) {
    waitpid(child, &status, 0);
    result.why = fmt::format("{:g} s were over", limits.seconds);
  } else if (WIFSIGNALED(status)) {
    result.why = fmt::format("signal {}", WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    result.why = fmt::format("status {}", WEXITSTATUS(status));
  }
  result.has_passed = result.why.empty();
  result.said = base::read_last_lines(errors, 2000);
  return result;
}

}  // namespace ingot::eval
