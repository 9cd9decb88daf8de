#include "resilience/launch.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/text.h"
#include "comm/heartbeat.h"
#include "comm/store.h"
#include "resilience/retry_policy.h"
#include "resilience/supervisor.h"

namespace ingot::resilience {
namespace {

using base::CommError;
using base::UsageError;
using Json = nlohmann::ordered_json;

struct Address {
  std::string host;
  int port;
};

Address parse_address(const std::string& text) {
  const auto colon = text.rfind(':');
  int64_t port = 0;
  try {
    if (colon != std::string::npos && colon > 0) port = std::stoll(text.substr(colon + 1));
  } catch (const std::exception&) {
  }
  if (port < 1 || port > 65535) throw UsageError("--rendezvous {}: write HOST:PORT, for instance --rendezvous node0:29500", text);
  return {text.substr(0, colon), static_cast<int>(port)};
}

// The store of the job: held by the launcher of node 0, so that it outlives ranks and restarts.
class Board {
 public:
  explicit Board(const LaunchOptions& o) : nodes_(o.nnodes), node_(o.node_rank) {
    const auto address = o.rendezvous.empty() ? Address{"127.0.0.1", 0} : parse_address(o.rendezvous);
    try {
      store_ = comm::open_store(address.host, address.port, node_ == 0, std::chrono::duration<double>(o.rendezvous_timeout_s));
    } catch (const std::exception& failure) {
      const std::string cause = failure.what();
      throw CommError("node {} {} {}:{}: {}. {}", node_, node_ == 0 ? "could not listen at" : "could not reach", address.host, address.port,
                      cause.substr(0, cause.find('\n')),
                      node_ == 0 ? "Is the port taken, or the address another machine's?"
                                 : "Does the launcher of node 0 run, and does this machine reach that address and port?");
    }
    host_ = address.host;
    if (nodes_ > 1) base::log_info("node {} of {} is at {}:{}", node_, nodes_, host_, port());
  }

  const std::string& host() const { return host_; }
  int port() const { return store_->getPort(); }

  // The first failure of an attempt, on whichever machine: all launchers know the same history, and so decide alike. A launcher that gives
  // one hears which it was.
  FailedAttempt agree(int attempt, FailedAttempt own, const std::string& what) {
    if (nodes_ == 1) return own;
    const Json record{{"what", fmt::format("{} on node {} ({})", what, node_, base::host_name())},
                      {"cause", static_cast<int>(own.cause)},
                      {"step", own.step},
                      {"signature", own.signature},
                      {"started_s", own.started_s},
                      {"ended_s", own.ended_s}};
    const auto text = record.dump(-1, ' ', false, Json::error_handler_t::replace);
    try {
      const auto bytes = store_->compareSet(key(attempt), {}, {text.begin(), text.end()});
      const auto first = Json::parse(bytes.begin(), bytes.end());
      return {.cause = static_cast<Cause>(first.at("cause").get<int>()),
              .step = first.at("step").get<int64_t>(),
              .signature = first.at("signature").get<std::string>(),
              .started_s = first.at("started_s").get<double>(),
              .ended_s = first.at("ended_s").get<double>()};
    } catch (const std::exception&) {
      return own;  // the launcher of node 0 is gone: meeting it says so
    }
  }

  std::string failure_elsewhere(int attempt) {
    if (nodes_ == 1) return "";
    try {
      if (!store_->check({key(attempt)})) return "";
      const auto bytes = store_->get(key(attempt));
      return Json::parse(bytes.begin(), bytes.end()).at("what").get<std::string>();
    } catch (const std::exception&) {
      return "the launcher of node 0 is gone";
    }
  }

  /// At the end: waits a moment for the other launchers, whose ranks still use the store or have yet to read why the job failed.
  void leave(int attempt, double patience_s) {
    try {
      meet(attempt, patience_s);
    } catch (const base::Error&) {
    }
  }

  // All launchers have ended this attempt; the last to come lets the others go on.
  void meet(int attempt, double timeout_s) {
    if (nodes_ == 1) return;
    const auto name = fmt::format("launcher/ended/{}", attempt);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    try {
      store_->add(name, 1);
      while (store_->add(name, 0) < nodes_) {
        if (std::chrono::steady_clock::now() > until)
          throw CommError("only {} of {} launchers came to restart within {:g} s", store_->add(name, 0), nodes_, timeout_s);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    } catch (const base::Error&) {
      throw;
    } catch (const std::exception&) {
      throw CommError("the launcher of node 0 is gone");
    }
  }

 private:
  static std::string key(int attempt) { return fmt::format("launcher/failed/{}", attempt); }
  int64_t nodes_, node_;
  std::string host_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

std::vector<RankProcess> ranks_of(const LaunchOptions& o, const Board& board, const comm::HeartbeatBoard& heartbeats, int attempt) {
  // As torchrun: without a choice of the user's, the ranks of a machine share its cores.
  const int threads = std::max<int>(1, base::usable_cores() / static_cast<int>(o.ranks));
  std::vector<RankProcess> ranks;
  for (int64_t local = 0; local < o.ranks; ++local) {
    const int64_t rank = o.node_rank * o.ranks + local;
    RankProcess process{static_cast<int>(rank),
                        {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", std::to_string(o.nnodes * o.ranks)},
                         {"LOCAL_RANK", std::to_string(local)},
                         {"LOCAL_WORLD_SIZE", std::to_string(o.ranks)},
                         {"MASTER_ADDR", board.host()},
                         {"MASTER_PORT", std::to_string(board.port())},
                         {"INGOT_HEARTBEATS", heartbeats.path()},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)}}};
    if (base::environment().omp_num_threads.empty()) process.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    ranks.push_back(std::move(process));
  }
  return ranks;
}

constexpr int kUsageStatus = 2;

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

FailedAttempt attempt_of(const Outcome& outcome, double started_s) {
  const auto& first = outcome.first;
  const bool was_killed = first.exit_status == 128 + SIGKILL || first.exit_status == 128 + SIGTERM;
  const auto cause = outcome.was_stopped                 ? Cause::stopped
                     : first.exit_status == kUsageStatus ? Cause::usage
                     : first.is_hang                     ? Cause::hang
                     : first.rank < 0                    ? Cause::elsewhere
                     : was_killed                        ? Cause::killed
                                                         : Cause::crash;
  return {.cause = cause,
          .step = first.step,
          .signature = signature_of(first.exit_status, first.last_lines.empty() ? "" : first.last_lines.back()),
          .started_s = started_s,
          .ended_s = now_s()};
}

// False when it was cut short by a signal.
bool pause(const StopSignal& stop, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < until && stop.received() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return stop.received() == 0;
}

// Of the run whose directory the ranks have said; by the launcher of node 0.
class EventLog {
 public:
  EventLog(const LaunchOptions& o, const comm::HeartbeatBoard& heartbeats) : options_(o), heartbeats_(heartbeats) {}
  void record_failure(const Failure& failure, int attempt) {
    find_directory();
    record(failure.is_hang ? "hang" : "failure", {{"attempt", attempt},
                                                  {"rank", failure.rank},
                                                  {"step", failure.step},
                                                  {"silent_s", failure.silent_s},
                                                  {"what", failure.description},
                                                  {"node", base::host_name()},
                                                  {"last_lines", failure.last_lines}});
  }
  void record_straggler(int rank, const std::string& what, bool has_recovered) {
    find_directory();
    record(has_recovered ? "recovered" : "straggler",
           {{"rank", rank}, {"step", heartbeats_.pulse(0).step}, {"what", what}, {"node", base::host_name()}});
  }
  void record(const char* kind, const Json& details) const {
    if (options_.node_rank == 0 && !run_directory_.empty()) base::record_event(run_directory_, kind, details);
  }

 private:
  void find_directory() {
    if (options_.node_rank > 0) return;
    if (const auto said = heartbeats_.pulse(0).run_directory; !said.empty()) run_directory_ = said;
  }
  const LaunchOptions& options_;
  const comm::HeartbeatBoard& heartbeats_;
  std::string run_directory_;
};

}  // namespace

int launch(const LaunchOptions& o) {
  if (o.command.empty())
    throw UsageError("ingot launch needs a command, for instance: ingot launch -n 2 -- ingot train configs/zaya1-nano.toml");
  if (o.node_rank >= o.nnodes)
    throw UsageError("--node-rank {} with --nnodes {}: nodes are numbered from 0 to {}", o.node_rank, o.nnodes, o.nnodes - 1);
  if (o.nnodes > 1 && o.rendezvous.empty())
    throw UsageError("--nnodes {} needs --rendezvous HOST:PORT, the same on every node: where node 0 is", o.nnodes);
  Board board(o);
  const StopSignal stop("\nasking the ranks to stop; once more to stop at once\n", SecondSignal::ends_at_once);
  auto command = o.command;
  if (command[0] == "ingot") command[0] = base::own_program();  // the one that launches, wherever PATH points
  comm::HeartbeatBoard heartbeats(static_cast<int>(o.ranks));
  EventLog events(o, heartbeats);
  const SupervisorOptions watch{.grace_s = o.grace_s,
                                .failure_elsewhere = {},
                                .heartbeats = &heartbeats,
                                .on_straggler =
                                    [&](int rank, const std::string& what, bool has_recovered) {
                                      has_recovered ? base::log_info("{}", what) : base::log_warning("{}", what);
                                      events.record_straggler(rank, what, has_recovered);
                                    },
                                .hang = {.silence_s = o.hang_s, .is_whole_job = o.nnodes == 1}};
  std::vector<FailedAttempt> failed;
  for (int attempt = 0;; ++attempt) {
    heartbeats.clear();
    const double started_s = now_s();
    auto options = watch;
    options.failure_elsewhere = [&] { return board.failure_elsewhere(attempt); };
    const auto outcome = supervise(command, ranks_of(o, board, heartbeats, attempt), stop, options);
    if (outcome.succeeded) {
      board.leave(attempt, o.grace_s);
      return 0;
    }
    const auto& first = outcome.first;
    base::log_error("{}", report_of(first));
    events.record_failure(first, attempt);
    failed.push_back(board.agree(attempt, attempt_of(outcome, started_s), first.description));
    const auto retry = after(failed, {.restarts = o.max_restarts, .restarts_per_day = o.restarts_per_day});
    if (!retry.restarts) {
      if (o.max_restarts > 0) base::log_error("not started again: {}", retry.why);
      events.record("gave_up", {{"attempt", attempt}, {"why", retry.why}});
      board.leave(attempt, o.grace_s);
      return failed.back().cause == Cause::usage ? kUsageStatus : 1;
    }
    board.meet(attempt, o.rendezvous_timeout_s);
    base::log_warning("starting all ranks again, {}: restart {} of {}; ingot train goes on from the last checkpoint", retry.why,
                      attempt + 1, o.max_restarts);
    events.record("restart", {{"attempt", attempt + 1}, {"pause_s", retry.pause_s}, {"why", retry.why}});
    if (!pause(stop, retry.pause_s)) return 1;
  }
}

}  // namespace ingot::resilience
