#include "resilience/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/text.h"
#include "comm/heartbeat.h"
#include "resilience/bisection.h"
#include "resilience/event_hook.h"
#include "resilience/hardware_watch.h"
#include "resilience/launch_page.h"
#include "resilience/node_gate.h"
#include "resilience/nodes.h"
#include "resilience/retry_policy.h"
#include "resilience/straggler_exchange.h"
#include "resilience/supervisor.h"

namespace ingot::resilience {
namespace {

using base::CommError;
using base::UsageError;
using Json = nlohmann::ordered_json;

bool is_folder(const std::string& rendezvous) { return rendezvous.find('/') != std::string::npos; }

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
  if (port < 1 || port > 65535)
    throw UsageError("--rendezvous {}: write HOST:PORT, for instance --rendezvous node0:29500, or a folder with a / in its name", text);
  return {text.substr(0, colon), static_cast<int>(port)};
}

// Where the launchers of a job meet.
std::shared_ptr<NodeStore> store_of(const LaunchOptions& o) {
  if (o.nodes_wanted == 1) return make_memory_store();
  if (o.rendezvous.empty())
    throw UsageError("{} nodes need --rendezvous, the same on every node: a folder that all of them share, or HOST:PORT of node 0",
                     o.nodes_wanted);
  if (is_folder(o.rendezvous)) return make_folder_store(o.rendezvous);
  const auto address = parse_address(o.rendezvous);
  if (o.node_rank < 0)
    throw UsageError(
        "--rendezvous {} needs --node-rank: node 0 holds what the others meet in, and they end with it. A folder that all nodes share "
        "needs "
        "none, and outlives any of them",
        o.rendezvous);
  try {
    return make_tcp_store(address.host, address.port, o.node_rank == 0, std::chrono::duration<double>(o.rendezvous_timeout_s));
  } catch (const CommError& failure) {
    throw CommError("node {} {}", o.node_rank, failure.what());
  }
}

// Where the other nodes reach this one.
std::string address_of(const LaunchOptions& o) {
  if (!o.address.empty()) return o.address;
  if (o.nodes_wanted == 1) return "127.0.0.1";
  return o.node_rank == 0 && !is_folder(o.rendezvous) ? parse_address(o.rendezvous).host : base::host_name();
}

std::vector<RankProcess> ranks_of(const LaunchOptions& o, const Round& round, const comm::HeartbeatBoard& heartbeats) {
  // As torchrun: without a choice of the user's, the ranks of a machine share its cores.
  const int threads = std::max<int>(1, base::usable_cores() / static_cast<int>(o.ranks));
  std::vector<RankProcess> ranks;
  for (int64_t local = 0; local < o.ranks; ++local) {
    const int64_t rank = round.first_rank() + local;
    RankProcess process{static_cast<int>(rank),
                        {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", std::to_string(round.ranks())},
                         {"LOCAL_RANK", std::to_string(local)},
                         {"LOCAL_WORLD_SIZE", std::to_string(o.ranks)},
                         {"MASTER_ADDR", round.nodes[0].address},
                         {"MASTER_PORT", std::to_string(round.port)},
                         {"INGOT_HEARTBEATS", heartbeats.path()},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", std::to_string(round.number)}}};
    if (base::environment().omp_num_threads.empty()) process.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    ranks.push_back(std::move(process));
  }
  return ranks;
}

constexpr int kUsageStatus = 2, kUnfitStatus = 3;
constexpr int64_t kLongestHistory = int64_t{1} << 30;                               // bytes of checkpoints.jsonl
constexpr const char* kReplicasDiffer = "ranks that hold the same weights differ";  // as train/replica_check.cpp says it

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

FailedAttempt attempt_of(const Outcome& outcome, double started_s, bool is_training) {
  const auto& first = outcome.first;
  const bool was_killed = first.exit_status == 128 + SIGKILL || first.exit_status == 128 + SIGTERM;
  const auto cause = outcome.was_stopped                                ? Cause::stopped
                     : first.exit_status == kUsageStatus                ? Cause::usage
                     : is_training && first.exit_status == kUnfitStatus ? Cause::unfit
                     : first.is_hang                                    ? Cause::hang
                     : first.rank < 0                                   ? Cause::elsewhere
                     : was_killed                                       ? Cause::killed
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

// Of the run whose directory the ranks have said.
class EventLog {
 public:
  explicit EventLog(const comm::HeartbeatBoard& heartbeats) : heartbeats_(heartbeats) {}

  void record_failure(const Failure& failure, const Round& round) {
    record(failure.is_hang ? "hang" : "failure", {{"attempt", round.number - round.first},
                                                  {"rank", failure.rank},
                                                  {"step", failure.step},
                                                  {"silent_s", failure.silent_s},
                                                  {"what", failure.description},
                                                  {"node", base::host_name()},
                                                  {"last_lines", failure.last_lines}});
  }
  void record_straggler(const char* kind, const Straggler& found) {
    record(kind, {{"rank", found.rank},
                  {"step", heartbeats_.pulse(0).step},
                  {"what", found.description},
                  {"node", found.node.empty() ? base::host_name() : found.node}});
  }
  void record_excluded(const std::string& node, const std::string& why) { record("excluded", {{"node", node}, {"what", why}}); }
  const std::string& run_directory() const { return run_directory_; }
  void record(const char* kind, const Json& details) {
    if (const auto said = heartbeats_.pulse(0).run_directory; !said.empty()) run_directory_ = said;
    if (!run_directory_.empty()) base::record_event(run_directory_, kind, details);
  }

 private:
  const comm::HeartbeatBoard& heartbeats_;
  std::string run_directory_;
};

std::string in_words(const Round& round) {
  std::vector<std::string> hosts;
  for (const auto& node : round.nodes) hosts.push_back(node.host);
  return fmt::format("{} node{} ({}), {} ranks", hosts.size(), hosts.size() == 1 ? "" : "s", fmt::join(hosts, ", "), round.ranks());
}

// Only that knows how to wait for a seat.
bool is_training(const std::vector<std::string>& command) {
  return command.size() > 1 && (command[0] == "ingot" || command[0] == base::own_program()) && command[1] == "train";
}

void check(const LaunchOptions& o) {
  if (o.command.empty())
    throw UsageError("ingot launch needs a command, for instance: ingot launch -n 2 -- ingot train configs/zaya1-nano.toml");
  if (o.nodes_least < 1 || o.nodes_wanted < o.nodes_least)
    throw UsageError("--nodes {}:{}: at least one, and not more than are wanted", o.nodes_least, o.nodes_wanted);
  if (o.node_rank >= o.nodes_wanted)
    throw UsageError("--node-rank {} with --nodes {}: nodes are numbered from 0 to {}", o.node_rank, o.nodes_wanted, o.nodes_wanted - 1);
  if (!o.rendezvous.empty() && !is_folder(o.rendezvous)) parse_address(o.rendezvous);
  if (o.spares > 0 && (o.max_restarts == 0 || !is_training(o.command)))
    throw UsageError("--spares {} waits for ranks of `ingot train` to fail, and needs --max-restarts above 0", o.spares);
}

}  // namespace

// -1: nobody, or all alike.
int who_failed(const Outcome& outcome) { return !outcome.succeeded && outcome.first.failed == 1 ? outcome.first.rank : -1; }

// The step that failed twice is tried in other ways, in folders beside what the run has written.
void find_cause(const LaunchOptions& o, const std::vector<std::string>& command, const Round& round, const Failure& failure,
                const std::string& run_directory, comm::HeartbeatBoard& heartbeats, const StopSignal& stop, EventLog& events) {
  const auto checkpoints = run_directory + "/checkpoints.jsonl";
  const auto known = std::filesystem::exists(checkpoints) ? base::read_file(checkpoints, kLongestHistory) : std::string();
  const auto ranks = static_cast<size_t>(o.ranks);
  std::vector<TrialOutcome> outcomes;
  auto in_words = Json::array();
  for (const auto& trial : trials(static_cast<int>(o.ranks))) {
    base::log_info("step {} is tried once more, {}", failure.step, trial.what);
    auto flags = flags_of_trials(failure.step, fmt::format("{}/trials/step-{}-{}", run_directory, failure.step, trial.name), known);
    flags.insert(flags.end(), trial.flags.begin(), trial.flags.end());
    heartbeats.clear();
    auto round_of_trial = round;
    round_of_trial.number += static_cast<int64_t>(outcomes.size()) + 1;
    auto processes = ranks_of(o, round_of_trial, heartbeats);
    std::vector<int> numbers;
    for (const auto& process : processes) numbers.push_back(process.rank);
    for (size_t i = 0; i < ranks; ++i) {
      processes[i].rank = numbers[(i + static_cast<size_t>(trial.rotation)) % ranks];
      processes[i].environment.front().second = std::to_string(processes[i].rank);
    }
    const auto outcome = Supervision({.command = command_of_trial(command, flags), .may_stay = true}, static_cast<int>(o.ranks), stop)
                             .run(processes, {.grace_s = o.grace_s, .heartbeats = &heartbeats, .hang = {.silence_s = o.hang_s}});
    if (stop.received() != 0) return;
    const auto& lines = outcome.first.last_lines;
    const bool differ =
        std::any_of(lines.begin(), lines.end(), [](const auto& line) { return line.find(kReplicasDiffer) != std::string::npos; });
    outcomes.push_back({trial.name, outcome.succeeded, who_failed(outcome), differ});
    in_words.push_back({{"trial", trial.what}, {"passed", outcome.succeeded}, {"rank", outcomes.back().rank}});
    base::log_info("{}: {}", trial.what, outcome.succeeded ? "passed" : outcome.first.description);
  }
  heartbeats.clear();  // events are of the run, not of the trials' folders
  const auto found = verdict(failure.failed == 1 ? failure.rank : -1, outcomes);
  base::log_error("step {}: {}", failure.step, found);
  events.record("bisected", {{"step", failure.step}, {"what", found}, {"trials", in_words}});
}

// Slurm may know a node by another name than the node itself.
std::string node_name() {
  const auto& by_slurm = base::environment().slurm_node;
  return by_slurm.empty() ? base::host_name() : by_slurm;
}

NodeGate gate_of(const LaunchOptions& o) {
  NodeGate::Options options{.node = node_name(), .list = o.exclusion_list, .check = {}};
  if (o.exclusion_list.empty() && is_folder(o.rendezvous)) options.list = std::filesystem::path(o.rendezvous) / "excluded";
  if (o.check_node) options.check = {base::own_program(), "doctor", "--fit", "--json", "--folder", "/dev/shm"};
  return NodeGate(options);
}

int launch(const LaunchOptions& o) {
  check(o);
  const auto gate = gate_of(o);
  if (const auto why = gate.reason_to_stay_away(); !why.empty()) {
    base::log_error("this node takes no part: {}", why);
    gate.exclude(why);
    return kUnfitStatus;
  }
  const auto store = store_of(o);
  Nodes nodes(store, {.least = o.nodes_least,
                      .wanted = o.nodes_wanted,
                      .ranks = o.ranks,
                      .node_rank = o.node_rank,
                      .holds_store = o.nodes_wanted > 1 && !is_folder(o.rendezvous) && o.node_rank == 0,
                      .address = address_of(o),
                      .lease_s = o.lease_s,
                      .patience_s = o.nodes_patience_s,
                      .timeout_s = o.rendezvous_timeout_s});
  const StopSignal stop("\nasking the ranks to stop; once more to stop at once\n", SecondSignal::ends_at_once);
  const auto is_stopped = [&] { return stop.received() != 0; };
  auto command = o.command;
  if (command[0] == "ingot") command[0] = base::own_program();  // the one that launches, wherever PATH points
  comm::HeartbeatBoard heartbeats(static_cast<int>(o.ranks));
  EventLog events(heartbeats);
  Supervision supervision({.command = command, .may_stay = o.max_restarts > 0, .spares = static_cast<int>(o.spares)},
                          static_cast<int>(o.ranks), stop);
  const auto processes = [&] {
    std::vector<int64_t> all;
    for (int i = 0; i < static_cast<int>(o.ranks); ++i) all.push_back(heartbeats.pulse(i).process);
    return all;
  };
  HardwareWatch hardware({.processes = processes}, [&](const health::HardwareFinding& finding) {
    base::log_warning("{} counts {}", node_name(), finding.what);
    if (const auto run = heartbeats.pulse(0).run_directory; !run.empty())
      base::record_event(run, "hardware",
                         {{"node", node_name()}, {"what", finding.what}, {"corrupts", finding.effect == health::Effect::corrupts}});
  });
  std::optional<LaunchPage> page;
  if (!o.page.empty()) page.emplace(o.page, heartbeats, static_cast<int>(o.ranks), [&] { return hardware.last(); });
  std::optional<EventHook> hook;
  if (!o.on_event.empty()) hook.emplace(o.on_event, [&] { return heartbeats.pulse(0).run_directory; });
  StragglerExchange exchange(store, [&] {
    const auto counted = hardware.explain(), load = hardware.foreign_load();
    return counted + (counted.empty() || load.empty() ? "" : "; ") + load;
  });
  const auto look_for_stragglers = [&](std::vector<RankSteps> own) {
    const auto news = exchange.look(std::move(own));
    for (const auto& found : news.stragglers) base::log_warning("{}", found.description), events.record_straggler("straggler", found);
    for (const auto& found : news.recovered) base::log_info("{}", found.description), events.record_straggler("recovered", found);
  };
  int64_t nodes_before = 0;
  while (const auto next = nodes.next(is_stopped)) {
    const auto& round = *next;
    if (o.nodes_wanted > 1)
      base::log_info("round {}: {}; this is node {}, with rank{}", round.number, in_words(round), round.own,
                     o.ranks == 1 ? fmt::format(" {}", round.first_rank())
                                  : fmt::format("s {} to {}", round.first_rank(), round.first_rank() + o.ranks - 1));
    if (const auto now = static_cast<int64_t>(round.nodes.size()); round.own == 0 && nodes_before > 0 && now != nodes_before)
      events.record("nodes", {{"before", nodes_before}, {"nodes", now}, {"what", fmt::format("goes on with {}", in_words(round))}});
    nodes_before = static_cast<int64_t>(round.nodes.size());
    heartbeats.clear();
    hardware.begin_attempt();
    exchange.begin(round);
    if (page) page->begin(static_cast<int>(round.first_rank()), static_cast<int64_t>(round.nodes.size()));
    const double started_s = now_s();
    const SupervisorOptions watch{.grace_s = o.grace_s,
                                  .failure_elsewhere = [&] { return nodes.failure_in(round, heartbeats.pulse(0).step); },
                                  .drains = [&] { return nodes.regroups(round) || (page && page->is_asked_to_drain()); },
                                  .heartbeats = &heartbeats,
                                  .on_steps = [&](auto steps) { look_for_stragglers(std::move(steps)); },
                                  .hang = {.silence_s = o.hang_s, .is_whole_job = round.nodes.size() == 1}};
    auto outcome = supervision.run(ranks_of(o, round, heartbeats), watch);
    if (outcome.succeeded && (is_stopped() || (page && page->is_asked_to_drain()))) {
      nodes.leave(round);
      return 0;
    }
    if (outcome.succeeded) {
      if (nodes.finish(round, is_stopped)) return 0;
      outcome.first.description = nodes.failure_in(round, heartbeats.pulse(0).step);
      if (outcome.first.description.empty()) {
        base::log_info("the ranks have saved and ended: {}", nodes.why_it_regroups(round));
        continue;
      }
    }
    const bool is_here = outcome.first.rank >= 0;
    if (const auto why = is_here ? hardware.explain() : ""; !why.empty()) outcome.first.description += "; " + why;
    base::log_error("{}", report_of(outcome.first));
    const auto own = attempt_of(outcome, started_s, is_training(command));
    const auto agreed = nodes.agree(round, own, outcome.first.description);
    const bool speaks = nodes.has_reported(round);  // one node of them
    if (page) page->count_failure(agreed.cause);
    if (speaks) events.record_failure(outcome.first, round);
    if (nodes.is_cut_off(round)) {
      base::log_error("this node is left out: the others do not reach it, nor it them, at {}", address_of(o));
      return kUnfitStatus;
    }
    const auto last_line = outcome.first.last_lines.empty() ? outcome.first.description : outcome.first.last_lines.back();
    if (const auto why = is_here ? gate.reason_to_go(own.cause, last_line) : ""; !why.empty()) {
      base::log_error("this node is left out: {}", why);
      gate.exclude(why);
      events.record_excluded(node_name(), why);
      if (round.nodes.size() == 1) nodes.end(round, kUnfitStatus);
      return kUnfitStatus;
    }
    auto failed = nodes.failures_before(round);
    failed.push_back(agreed);
    if (failed.back().cause == Cause::usage && nodes.fits_fewer(round)) {
      base::log_warning("the job cannot be laid out for {} nodes: trying fewer", round.nodes.size());
      continue;
    }
    const auto retry = after(failed, {.restarts = o.max_restarts, .restarts_per_day = o.restarts_per_day});
    if (!retry.restarts) {
      if (o.max_restarts > 0) base::log_error("not started again: {}", retry.why);
      if (retry.is_deterministic && o.nodes_wanted == 1 && is_training(command) && !events.run_directory().empty())
        find_cause(o, command, round, outcome.first, events.run_directory(), heartbeats, stop, events);
      if (speaks) events.record("gave_up", {{"attempt", round.number - round.first}, {"why", retry.why}});
      const int status = failed.back().cause == Cause::usage ? kUsageStatus : 1;
      nodes.end(round, status);
      return status;
    }
    base::log_warning("starting all ranks again, {}: restart {} of {}{}; ingot train goes on from the last checkpoint", retry.why,
                      failed.size(), o.max_restarts,
                      outcome.first.stayed > 0 ? fmt::format(", {} in the same process", outcome.first.stayed) : "");
    if (page) page->count_restart();
    if (speaks) events.record("restart", {{"attempt", failed.size()}, {"pause_s", retry.pause_s}, {"why", retry.why}});
    if (!pause(stop, retry.pause_s)) return 1;
  }
  return nodes.status();
}

}  // namespace ingot::resilience
