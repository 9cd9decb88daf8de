#include "resilience/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/stack_dump.h"
#include "base/system_call.h"
#include "resilience/divergence.h"
#include "resilience/seats.h"

namespace ingot::resilience {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLinesKept = 80 /* a stack */, kLinesOfFailure = 15, kLongestLine = 16 << 10;
constexpr double kPolitenessShare = 0.3;  // of the grace: ranks end by themselves, with a message; then SIGTERM, then SIGKILL

constexpr double kWatchEvery = 0.1, kForStacks = 0.3, kLookElsewhereEvery = 0.5;  // seconds
constexpr double kForCauses = 0.5;              // from the first rank that lost another one until that must have ended
constexpr double kGraceForOthersFailure_s = 1;  // ranks whose peers are gone have nothing more to do
constexpr double kForTheKilled = 5;             // until a process has ended that was killed, unless the kernel keeps it

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
  void set_prefix(std::optional<std::string> prefix) { prefix_ = std::move(prefix); }
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
  int rank = 0;  // of a spare: -1
  int seat = -1;
  pid_t process = 0;
  bool is_running = false;  // only then is `process` one: a signal to 0 would reach this program's own group
  std::unique_ptr<Stream> out, err;
  std::optional<Clock::time_point> stopped_since;
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

std::string prefix_of(int rank, size_t width) { return rank < 0 ? "[spare] " : fmt::format("[{:>{}}] ", rank, width); }

// Rank 0 gives the job's result, for whatever reads it next.
std::optional<std::string> prefix_of_results(int rank, size_t width) {
  return rank == 0 ? std::nullopt : std::optional(prefix_of(rank, width));
}

Child start(const std::vector<std::string>& command, const RankProcess& rank, size_t width) {
  Pipe out, err;
  const pid_t process = base::start_process(command, rank.environment, {.out = out.write_end, .err = err.write_end});
  return {rank.rank,
          -1,
          process,
          true,
          std::make_unique<Stream>(out.take(), 1, prefix_of_results(rank.rank, width)),
          std::make_unique<Stream>(err.take(), 2, prefix_of(rank.rank, width))};
}

Failure failure_of(const Child& child, int status) {
  Failure failure;
  failure.rank = child.rank;
  const auto& lines = child.err->last_lines();
  failure.last_lines.assign(lines.end() - static_cast<ptrdiff_t>(std::min(lines.size(), kLinesOfFailure)), lines.end());
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

// The lines of base/stack_dump.h, or none.
std::vector<std::string> last_stack(const std::deque<std::string>& lines) {
  const auto first = std::find_if(lines.rbegin(), lines.rend(), [](const auto& line) { return line.starts_with(base::kStackBegins); });
  return first == lines.rend() ? std::vector<std::string>() : std::vector<std::string>(first.base() - 1, lines.end());
}

}  // namespace

struct Supervision::State {
  State(Program program, int ranks, const StopSignal& stop) : program_(std::move(program)), ranks_(ranks), stop_(stop) {
    if (program_.may_stay || program_.spares > 0) seats_.emplace(2 * ranks + program_.spares);  // who stands by may come too late
  }
  ~State() {
    for (const auto& spare : spares_)
      if (spare.is_running) kill(-spare.process, SIGKILL);  // it has nothing to lose
    grace_s_ = std::min(grace_s_, kGraceForOthersFailure_s);
    signal_living(SIGTERM);
    for (const auto start = Clock::now(); are_living() && seconds_since(start) < grace_s_;) wait_for_output(), reap_quietly();
    signal_living(SIGKILL);
    for (const auto start = Clock::now(); are_living() && seconds_since(start) < kForTheKilled;) wait_for_output(), reap_quietly();
  }

  Outcome run(const std::vector<RankProcess>& ranks, const SupervisorOptions& options) {
    options_ = &options;
    first_.reset();
    grace_s_ = options.grace_s;
    signals_handed_on_ = pressure_ = 0;
    is_draining_ = false;
    looked_at_ = watched_at_ = awake_since_ = Clock::now();
    waiting_since_.reset();
    seat_all(ranks);
    while (running() > 0 || (waiting() > 0 && !first_)) {
      wait_for_output();
      reap();
      hand_on_signals();
      look_elsewhere();
      look_for_hangs();
      look_for_losses();
      press();
      add_spares();
    }
    for (auto& child : children_) child.out->pump(), child.err->pump();
    if (first_) first_->stayed = static_cast<int>(waiting());
    return {!first_.has_value(), signals_handed_on_ > 0, first_.value_or(Failure{})};
  }

  void stand_by() {
    for (auto& spare : spares_) spare.out->pump(), spare.err->pump();
    reap_spares();
    if (!seats_ || spares_failed_ || stop_.received() != 0) return;
    if (static_cast<int>(waiting() + spares_.size()) < ranks_ + program_.spares) start_spare();
  }

 private:
  bool waits(const Child& child) const { return child.is_running && child.seat >= 0 && seats_->is_waiting(child.seat); }
  size_t running() const {
    return static_cast<size_t>(
        std::count_if(children_.begin(), children_.end(), [&](const Child& c) { return c.is_running && !waits(c); }));
  }
  size_t waiting() const {
    return static_cast<size_t>(std::count_if(children_.begin(), children_.end(), [&](const Child& c) { return waits(c); }));
  }
  bool are_living() const {
    const auto lives = [](const Child& child) { return child.is_running; };
    return std::any_of(children_.begin(), children_.end(), lives) || std::any_of(spares_.begin(), spares_.end(), lives);
  }

  // Whoever waited stays the process of its place. The heartbeats are counted by places.
  void seat_all(const std::vector<RankProcess>& ranks) {
    width_ = std::to_string(ranks.back().rank).size();
    children_.resize(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      auto& child = children_[i];
      if (!waits(child)) {
        const auto ready = std::find_if(spares_.begin(), spares_.end(), [&](const Child& spare) { return waits(spare); });
        if (ready == spares_.end()) {
          child = start_seated(ranks[i], /*is_spare=*/false);
          continue;
        }
        child = std::move(*ready);
        spares_.erase(ready);
      }
      child.rank = ranks[i].rank;
      child.out->set_prefix(prefix_of_results(child.rank, width_));
      child.err->set_prefix(prefix_of(child.rank, width_));
      seats_->give(child.seat, ranks[i].environment);
    }
    for (; static_cast<int>(spares_.size()) > program_.spares; spares_.pop_back()) {  // stood by, and were still loading
      const pid_t spare = spares_.back().process;
      kill(-spare, SIGKILL);
      bool has_ended = false;  // it may hold what the ranks need, as a GPU's memory
      for (const auto start = Clock::now(); !has_ended && seconds_since(start) < kForTheKilled; usleep(1000))
        has_ended = waitpid(spare, nullptr, WNOHANG) != 0;
      if (!has_ended) left_behind_.push_back(spare);
    }
  }

  Child start_seated(RankProcess rank, bool is_spare) {
    rank.environment.insert(rank.environment.end(), program_.environment.begin(), program_.environment.end());
    const int seat = seats_ ? free_seat() : -1;
    if (seat >= 0) {
      seats_->clear(seat);
      rank.environment.emplace_back("INGOT_SEAT", seats_->name(seat, is_spare));
    }
    auto child = start(program_.command, rank, width_);
    child.seat = seat;
    return child;
  }

  int free_seat() const {
    const auto has = [](int seat) { return [seat](const Child& child) { return child.is_running && child.seat == seat; }; };
    int seat = 0;
    while (std::any_of(children_.begin(), children_.end(), has(seat)) || std::any_of(spares_.begin(), spares_.end(), has(seat))) ++seat;
    return seat;
  }

  // They are loaded beside the steps, not beside the start that everybody waits for.
  void add_spares() {
    if (first_ || signals_handed_on_ > 0 || is_draining_ || static_cast<int>(spares_.size()) >= program_.spares || spares_failed_) return;
    const bool has_begun = options_->heartbeats ? options_->heartbeats->pulse(0).is_settled : true;
    if (!has_begun) return;
    start_spare();
  }
  void start_spare() { spares_.push_back(start_seated({.rank = -1, .environment = {}}, /*is_spare=*/true)); }

  void wait_for_output() {
    std::vector<pollfd> waits;
    for (auto* list : {&children_, &spares_})
      for (const auto& child : *list)
        for (const auto* stream : {child.out.get(), child.err.get()})
          if (stream && stream->descriptor() >= 0) waits.push_back({stream->descriptor(), POLLIN, 0});
    poll(waits.data(), waits.size(), waits.empty() ? 20 : first_ ? 5 : 50);
    for (auto* list : {&children_, &spares_})
      for (auto& child : *list)
        if (child.out) child.out->pump(), child.err->pump();
  }

  void reap() {
    reap_ranks();
    reap_spares();
    std::erase_if(left_behind_, [](pid_t process) { return waitpid(process, nullptr, WNOHANG) != 0; });
  }
  void reap_ranks() {
    for (auto& child : children_) {
      int status = 0;
      if (!child.is_running || waitpid(child.process, &status, WNOHANG) != child.process) continue;
      child.is_running = false;
      child.out->pump(), child.err->pump();
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      fail(failure_of(child, status));
      first_->failed += pressure_ == 0 ? 1 : 0;
    }
  }
  void reap_spares() {
    for (auto& spare : spares_) {
      int status = 0;
      if (!spare.is_running || waitpid(spare.process, &status, WNOHANG) != spare.process) continue;
      spare.is_running = false;
      if (std::exchange(spares_failed_, true) || signals_handed_on_ > 0 || stop_.received() != 0) continue;
      base::log_warning("a spare process has ended, and no further one is started: {}", report_of(failure_of(spare, status)));
    }
    std::erase_if(spares_, [](const Child& spare) { return !spare.is_running; });
  }
  void reap_quietly() {
    for (auto* list : {&children_, &spares_})
      for (auto& child : *list)
        if (child.is_running && waitpid(child.process, nullptr, WNOHANG) == child.process) child.is_running = false;
  }

  // A rank lost another one that is still there: their connection, or their common path.
  void look_for_losses() {
    if (first_ || waiting() == 0) return waiting_since_.reset();
    if (!waiting_since_) waiting_since_ = Clock::now();
    if (seconds_since(*waiting_since_) < kForCauses) return;
    const auto loser = std::find_if(children_.begin(), children_.end(), [&](const Child& child) { return waits(child); });
    // Of several machines another one will know what it lost.
    fail({.rank = options_->hang.is_whole_job ? loser->rank : -1,
          .description = fmt::format("rank {} (process {}) lost another rank: {}", loser->rank, loser->process, seats_->why(loser->seat)),
          .last_lines = {seats_->why(loser->seat)}});
  }

  void fail(Failure failure) {
    if (first_) return;
    if (failure.rank >= 0 && options_->heartbeats) {
      failure.step = options_->heartbeats->pulse(index_of(failure.rank)).step;
      if (!failure.is_hang && failure.step > 0) failure.description += fmt::format(" in step {}", failure.step);
      // A rank that leaves the common path often fails later than those that meet it.
      const auto divergence = failure.is_hang ? std::nullopt : find_divergence(histories());
      if (divergence) failure.description += "; " + divergence->description;
    }
    first_ = std::move(failure);
    failed_at_ = Clock::now();
    const auto others = std::count_if(children_.begin(), children_.end(),
                                      [&](const Child& child) { return child.is_running && !waits(child) && child.rank != first_->rank; });
    if (others > 0)
      base::log_error("{}; the {} other rank{} here will be ended within {:g} s{}", first_->description, others, others > 1 ? "s" : "",
                      grace_s_, seats_ ? ", or wait to go on" : "");
  }

  int index_of(int rank) const {
    const auto found = std::find_if(children_.begin(), children_.end(), [&](const Child& child) { return child.rank == rank; });
    return static_cast<int>(found - children_.begin());
  }

  std::vector<RankHistory> histories() const {
    std::vector<RankHistory> all;
    for (size_t i = 0; i < children_.size(); ++i) {
      const int index = static_cast<int>(i);
      all.push_back({children_[i].rank, options_->heartbeats->pulse(index).role, options_->heartbeats->operations(index)});
    }
    return all;
  }

  // Ranks are asked to stop once, by whoever is first: a second signal ends them at once, in the middle of their save.
  void hand_on_signals() {
    if (stop_.received() == 0 || signals_handed_on_ > 0) return;
    ++signals_handed_on_;
    if (!is_draining_) signal_living(stop_.received());
  }

  void look_elsewhere() {
    if (first_ || seconds_since(looked_at_) < kLookElsewhereEvery) return;
    looked_at_ = Clock::now();
    if (options_->drains && !is_draining_ && signals_handed_on_ == 0 && options_->drains()) {
      is_draining_ = true;
      signal_all(SIGTERM);
    }
    if (!options_->failure_elsewhere) return;
    if (const auto text = options_->failure_elsewhere(); !text.empty()) {
      grace_s_ = std::min(grace_s_, kGraceForOthersFailure_s);
      Failure failure;
      failure.description = text;
      fail(std::move(failure));
    }
  }

  // Killed at once: nothing else ends a process that is stopped, and the others then learn of it from what connects them.
  void look_for_hangs() {
    const double since = seconds_since(watched_at_);
    if (!options_->heartbeats || first_ || signals_handed_on_ > 0 || is_draining_ || since < kWatchEvery) return;
    watched_at_ = Clock::now();
    // This process was stopped itself, or had no core: so may the ranks have been.
    if (since > 1 + kWatchEvery) awake_since_ = watched_at_;
    std::vector<WatchedRank> ranks;
    for (size_t i = 0; i < children_.size(); ++i) {
      auto& child = children_[i];
      if (!child.is_running || waits(child)) return;  // one has ended, and is about to be reaped, or has lost one
      auto pulse = options_->heartbeats->pulse(static_cast<int>(i));
      pulse.age_s = std::min(pulse.age_s, seconds_since(awake_since_));
      if (pulse.process == 0) pulse.process = child.process;  // it has not come so far
      const char state = base::process_stat(pulse.process).value_or(base::ProcessStat()).state;
      if (state != 'T' && state != 't') child.stopped_since.reset();
      else if (!child.stopped_since) child.stopped_since = watched_at_;
      const double stopped_s = child.stopped_since ? seconds_since(std::max(*child.stopped_since, awake_since_)) : 0;
      ranks.push_back({child.rank, std::move(pulse), state, stopped_s});
    }
    hand_on_steps(ranks);
    const auto hang = find_hang(ranks, options_->hang, [&] { return find_divergence(histories()); });
    if (!hang) return;
    Failure failure{.rank = hang->rank, .description = hang->description, .last_lines = {}, .is_hang = true, .silent_s = hang->silent_s};
    for (size_t i = 0; i < children_.size(); ++i) {
      if (hang->rank >= 0 && children_[i].rank != hang->rank) continue;
      const auto process = static_cast<pid_t>(ranks[i].pulse.process);
      if (ranks[i].state != 'T' && ranks[i].state != 't') syscall(SYS_tgkill, process, process, SIGUSR2);
    }
    for (const auto start = Clock::now(); seconds_since(start) < kForStacks;) wait_for_output();
    for (const auto& child : children_) {
      if (hang->rank >= 0 && child.rank != hang->rank) continue;
      if (child.rank == hang->rank) failure.last_lines = last_stack(child.err->last_lines());
      kill(-child.process, SIGKILL);
    }
    fail(std::move(failure));
  }

  void hand_on_steps(const std::vector<WatchedRank>& ranks) {
    if (!options_->on_steps) return;
    std::vector<RankSteps> steps;
    for (size_t i = 0; i < ranks.size(); ++i)
      steps.push_back({ranks[i].rank, ranks[i].pulse.role, options_->heartbeats->steps(static_cast<int>(i)), {}, {}});
    options_->on_steps(std::move(steps));
  }

  void press() {
    if (!first_ || running() == 0) return;
    const double waited = seconds_since(failed_at_);
    if (pressure_ == 0 && waited > kPolitenessShare * grace_s_) signal_all(SIGTERM), pressure_ = 1;
    // Again and again: one that waited to go on, and was left alone, may have got up since.
    if (waited > grace_s_) signal_all(SIGKILL), pressure_ = 2;
    if (waited > grace_s_ + kForTheKilled) leave_behind();
  }

  // Whoever is killed and does not end is in the hands of the kernel, of a file server that does not answer, of a debugger. The job goes on
  // without it.
  void leave_behind() {
    for (auto& child : children_) {
      if (!child.is_running || waits(child)) continue;
      const auto stat = base::process_stat(child.process).value_or(base::ProcessStat());
      std::string where;
      std::ifstream(fmt::format("/proc/{}/wchan", child.process)) >> where;
      const auto what = fmt::format("rank {} (process {}) was killed and does not end: state {}{}", child.rank, child.process, stat.state,
                                    where.empty() || where == "0" ? "" : " in " + where);
      base::log_error("{}; it is left behind", what);
      first_->description += "; " + what;
      child.is_running = false;
      left_behind_.push_back(child.process);
    }
  }

  void signal_all(int signal) {
    for (const auto& child : children_)
      if (child.is_running && !waits(child)) kill(-child.process, signal);
  }
  void signal_living(int signal) {
    for (auto* list : {&children_, &spares_})
      for (const auto& child : *list)
        if (child.is_running) kill(-child.process, signal);
  }

  const Program program_;
  const int ranks_;
  const StopSignal& stop_;
  std::optional<SeatBoard> seats_;
  std::vector<Child> children_, spares_;
  std::vector<pid_t> left_behind_;  // killed, and still there when somebody looked last
  bool spares_failed_ = false;
  size_t width_ = 1;
  // Of an attempt.
  const SupervisorOptions* options_ = nullptr;
  std::optional<Failure> first_;
  Clock::time_point failed_at_, looked_at_, watched_at_, awake_since_;
  std::optional<Clock::time_point> waiting_since_;
  int signals_handed_on_ = 0, pressure_ = 0;
  bool is_draining_ = false;
  double grace_s_ = kGraceForOthersFailure_s;
};

std::string report_of(const Failure& failure) {
  std::string text = "first failure: " + failure.description;
  if (failure.was_killed)
    text +=
        "; nothing that the rank printed explains that. The kernel's log (dmesg) names a process that was killed for its memory, "
        "the scheduler's accounting one that it ended";
  if (failure.is_hang && !failure.last_lines.empty()) text += "\n  where it is:";
  else if (!failure.last_lines.empty()) text += failure.was_killed ? "\n  its last lines before that:" : "\n  its last lines:";
  for (const auto& line : failure.last_lines) text += "\n    " + line;
  return text;
}

Supervision::Supervision(Program program, int ranks, const StopSignal& stop)
    : state_(std::make_unique<State>(std::move(program), ranks, stop)) {}
Supervision::~Supervision() = default;
Outcome Supervision::run(const std::vector<RankProcess>& ranks, const SupervisorOptions& options) { return state_->run(ranks, options); }
void Supervision::stand_by() { state_->stand_by(); }

}  // namespace ingot::resilience
