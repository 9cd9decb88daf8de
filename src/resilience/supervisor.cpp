#include "resilience/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/system_call.h"

namespace ingot::resilience {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLinesKept = 15, kLongestLine = 16 << 10;
constexpr double kPolitenessShare = 0.3;  // of the grace: ranks end by themselves, with a message; then SIGTERM, then SIGKILL

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One stream of one rank: cuts what arrives into lines, each behind its prefix. Without a prefix it passes as it comes.
class Stream {
 public:
  Stream(int descriptor, int output, std::optional<std::string> prefix)
      : descriptor_(descriptor), output_(output), prefix_(std::move(prefix)) {
    fcntl(descriptor_, F_SETFL, O_NONBLOCK);
  }
  ~Stream() { close_it(); }
  Stream(const Stream&) = delete;

  int descriptor() const { return descriptor_; }
  const std::deque<std::string>& last_lines() const { return last_; }

  void pump() {
    char buffer[16384];
    while (descriptor_ >= 0) {
      const auto n = read(descriptor_, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) return close_it();
      if (!prefix_) write_all({buffer, static_cast<size_t>(n)});
      for (ssize_t i = 0; i < n; ++i) {
        // A progress bar rewrites its line; between ranks each state is a line of its own.
        if (buffer[i] == '\n' || buffer[i] == '\r') flush();
        else line_ += buffer[i];
        if (line_.size() >= kLongestLine) flush();
      }
    }
  }

 private:
  void flush() {
    if (line_.empty()) return;
    last_.push_back(line_);
    if (last_.size() > kLinesKept) last_.pop_front();
    if (prefix_) write_all(*prefix_ + line_ + "\n");
    line_.clear();
  }
  void write_all(std::string_view text) const {
    while (!text.empty()) {
      const auto n = write(output_, text.data(), text.size());
      if (n < 0 && errno != EINTR) return;  // nobody listens: the ranks go on
      if (n > 0) text.remove_prefix(static_cast<size_t>(n));
    }
  }
  void close_it() {
    flush();
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

  int descriptor_, output_;
  std::optional<std::string> prefix_;
  std::string line_;
  std::deque<std::string> last_;
};

struct Child {
  int rank = 0;
  pid_t process = 0;
  bool is_running = true;
  std::unique_ptr<Stream> out, err;
};

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw base::FileError("no pipe for a rank: {}", std::strerror(errno));
    read_end = ends[0], write_end = ends[1];
  }
  ~Pipe() {
    for (const int end : {read_end, write_end})
      if (end >= 0) close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  /// The end to read from, which is the caller's then.
  int take() { return std::exchange(read_end, -1); }
};

Child start(const std::vector<std::string>& command, const RankProcess& rank, size_t width) {
  Pipe out, err;
  const pid_t process = base::start_process(command, rank.environment, {.out = out.write_end, .err = err.write_end});
  const auto prefix = fmt::format("[{:>{}}] ", rank.rank, width);
  // Rank 0 gives the job's result, for whatever reads it next.
  const auto of_results = rank.rank == 0 ? std::nullopt : std::optional(prefix);
  return {rank.rank, process, true, std::make_unique<Stream>(out.take(), 1, of_results), std::make_unique<Stream>(err.take(), 2, prefix)};
}

Failure failure_of(const Child& child, int status) {
  Failure failure;
  failure.rank = child.rank;
  failure.last_lines.assign(child.err->last_lines().begin(), child.err->last_lines().end());
  const auto who = fmt::format("rank {} (process {})", child.rank, child.process);
  if (WIFSIGNALED(status)) {
    failure.description = fmt::format("{} was ended by signal {} ({})", who, WTERMSIG(status), strsignal(WTERMSIG(status)));
    failure.exit_status = 128 + WTERMSIG(status);
    failure.was_killed = WTERMSIG(status) == SIGKILL;
  } else {
    failure.description = fmt::format("{} exited with status {}", who, WEXITSTATUS(status));
    failure.exit_status = WEXITSTATUS(status);
  }
  return failure;
}

class Supervision {
 public:
  Supervision(const StopSignal& stop, const SupervisorOptions& options) : stop_(stop), options_(options) {}
  ~Supervision() {
    for (auto& child : children_)
      if (child.is_running) {
        kill(-child.process, SIGKILL);
        base::uninterrupted([&] { return waitpid(child.process, nullptr, 0); });
      }
  }

  void start_all(const std::vector<std::string>& command, const std::vector<RankProcess>& ranks) {
    const size_t width = std::to_string(ranks.back().rank).size();
    for (const auto& rank : ranks) children_.push_back(start(command, rank, width));
  }

  Outcome run() {
    while (running() > 0) {
      wait_for_output();
      reap();
      hand_on_signals();
      look_elsewhere();
      press();
    }
    for (auto& child : children_) child.out->pump(), child.err->pump();
    return {!first_.has_value(), signals_handed_on_ > 0, first_.value_or(Failure{})};
  }

 private:
  size_t running() const {
    return static_cast<size_t>(std::count_if(children_.begin(), children_.end(), [](const Child& c) { return c.is_running; }));
  }

  void wait_for_output() {
    std::vector<pollfd> waits;
    for (const auto& child : children_)
      for (const auto* stream : {child.out.get(), child.err.get()})
        if (stream->descriptor() >= 0) waits.push_back({stream->descriptor(), POLLIN, 0});
    poll(waits.data(), waits.size(), waits.empty() ? 20 : 50);
    for (auto& child : children_) child.out->pump(), child.err->pump();
  }

  void reap() {
    for (auto& child : children_) {
      int status = 0;
      if (!child.is_running || waitpid(child.process, &status, WNOHANG) != child.process) continue;
      child.is_running = false;
      child.out->pump(), child.err->pump();
      if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0)) fail(failure_of(child, status));
    }
  }

  void fail(Failure failure) {
    if (first_) return;
    first_ = std::move(failure);
    failed_at_ = Clock::now();
    if (running() > 0)
      base::log_error("{}; the {} other rank{} here will be ended within {:g} s", first_->description, running(), running() > 1 ? "s" : "",
                      options_.grace_s);
  }

  void hand_on_signals() {
    if (stop_.received() == 0 || signals_handed_on_ > 0) return;
    ++signals_handed_on_;
    signal_all(stop_.received());
  }

  void look_elsewhere() {
    if (!options_.failure_elsewhere || first_ || seconds_since(looked_at_) < 0.5) return;
    looked_at_ = Clock::now();
    if (const auto text = options_.failure_elsewhere(); !text.empty()) {
      Failure failure;
      failure.description = text;
      fail(std::move(failure));
    }
  }

  void press() {
    if (!first_ || running() == 0) return;
    const double waited = seconds_since(failed_at_);
    if (pressure_ == 0 && waited > kPolitenessShare * options_.grace_s) signal_all(SIGTERM), pressure_ = 1;
    if (pressure_ == 1 && waited > options_.grace_s) signal_all(SIGKILL), pressure_ = 2;
  }

  void signal_all(int signal) {
    for (const auto& child : children_)
      if (child.is_running) kill(-child.process, signal);
  }

  const StopSignal& stop_;
  const SupervisorOptions& options_;
  std::vector<Child> children_;
  std::optional<Failure> first_;
  Clock::time_point failed_at_, looked_at_ = Clock::now();
  int signals_handed_on_ = 0, pressure_ = 0;
};

}  // namespace

std::string report_of(const Failure& failure) {
  std::string text = "first failure: " + failure.description;
  if (failure.was_killed)
    text +=
        "; nothing that the rank printed explains that. The kernel's log (dmesg) names a process that was killed for its memory, "
        "the scheduler's accounting one that it ended";
  if (!failure.last_lines.empty()) text += failure.was_killed ? "\n  its last lines before that:" : "\n  its last lines:";
  for (const auto& line : failure.last_lines) text += "\n    " + line;
  return text;
}

Outcome supervise(const std::vector<std::string>& command, const std::vector<RankProcess>& ranks, const StopSignal& stop,
                  const SupervisorOptions& options) {
  Supervision supervision(stop, options);
  supervision.start_all(command, ranks);
  return supervision.run();
}

}  // namespace ingot::resilience
