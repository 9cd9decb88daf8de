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
#include "resilience/trial_exchange.h"

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

// `rotation`: of the ranks over the processes of the round.
std::vector<RankProcess> ranks_of(const LaunchOptions& o, const Round& round, const comm::HeartbeatBoard& heartbeats,
                                  int64_t rotation = 0) {
  std::vector<RankProcess> ranks;
  for (int64_t local = 0; local < o.ranks; ++local) {
    const int64_t rank = (round.first_rank() + local + rotation) % round.ranks();
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
    ranks.push_back(std::move(process));
  }
  return ranks;
}

// What each process of this machine has. As torchrun: without a choice of the user's, the ranks of a machine share its cores.
std::vector<std::pair<std::string, std::string>> environment_of(const LaunchOptions& o) {
  if (!base::environment().omp_num_threads.empty()) return {};
  return {{"OMP_NUM_THREADS", std::to_string(std::max<int>(1, base::usable_cores() / static_cast<int>(o.ranks)))}};
}

constexpr int kUsageStatus = 2, kUnfitStatus = 3;
constexpr int64_t kLongestHistory = int64_t{1} << 30;  // bytes of checkpoints.jsonl

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
  const std::string& run_directory() {
    if (const auto said = heartbeats_.pulse(0).run_directory; !said.empty()) run_directory_ = said;
    return run_directory_;
  }
  void record(const char* kind, const Json& details) {
    if (const auto& run = run_directory(); !run.empty()) base::record_event(run, kind, details);
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

NodeOutcome outcome_here(const Outcome& outcome) {
  NodeOutcome own{.passed = outcome.succeeded, .failed = outcome.succeeded ? 0 : outcome.first.failed, .what = outcome.first.description};
  if (own.failed == 1) own.rank = outcome.first.rank;
  read_replicas(outcome.first.last_lines, own);
  return own;
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

// What one launcher does, round by round.
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : o_(options),
        command_(o_.command),
        gate_(gate_of(o_)),
        stop_("\nasking the ranks to stop; once more to stop at once\n", SecondSignal::ends_at_once),
        heartbeats_(static_cast<int>(o_.ranks)),
        events_(heartbeats_) {
    if (command_[0] == "ingot") command_[0] = base::own_program();  // the one that launches, wherever PATH points
  }

  int run() {
    if (const auto why = gate_.reason_to_stay_away(); !why.empty()) {
      base::log_error("this node takes no part: {}", why);
      gate_.exclude(why);
      return kUnfitStatus;
    }
    store_ = store_of(o_);
    nodes_.emplace(store_, node_options());
    begin_supervision();
    hardware_.emplace(HardwareWatch::Options{.processes = [this] { return processes(); }},
                      [this](const health::HardwareFinding& finding) { tell(finding); });
    exchange_.emplace(store_, [this] { return remark_on_node(); });
    if (!o_.page.empty()) page_.emplace(o_.page, heartbeats_, static_cast<int>(o_.ranks), [this] { return hardware_->last(); });
    if (!o_.on_event.empty()) hook_.emplace(o_.on_event, [this] { return heartbeats_.pulse(0).run_directory; });
    while (const auto round = nodes_->next([this] { return stops_waiting(); }))
      if (const auto status = take_part(*round)) return *status;
    return nodes_->status();
  }

 private:
  NodeOptions node_options() const {
    return {.least = o_.nodes_least,
            .wanted = o_.nodes_wanted,
            .ranks = o_.ranks,
            .node_rank = o_.node_rank,
            .holds_store = o_.nodes_wanted > 1 && !is_folder(o_.rendezvous) && o_.node_rank == 0,
            .address = address_of(o_),
            .lease_s = o_.lease_s,
            .patience_s = o_.nodes_patience_s,
            .timeout_s = o_.rendezvous_timeout_s};
  }
  void begin_supervision() {
    supervision_.emplace(
        Program{
            .command = command_, .may_stay = o_.max_restarts > 0, .spares = static_cast<int>(o_.spares), .environment = environment_of(o_)},
        static_cast<int>(o_.ranks), stop_);
  }
  bool is_stopped() const { return stop_.received() != 0; }
  // Asked while others work: what this node is to take over is loaded before it is needed.
  bool stops_waiting() {
    if (nodes_->is_spare() && o_.max_restarts > 0 && is_training(command_)) supervision_->stand_by();
    return is_stopped();
  }
  bool is_asked_to_drain() const { return page_ && page_->is_asked_to_drain(); }

  std::vector<int64_t> processes() const {
    std::vector<int64_t> all;
    for (int i = 0; i < static_cast<int>(o_.ranks); ++i) all.push_back(heartbeats_.pulse(i).process);
    return all;
  }
  // On the watch's thread.
  void tell(const health::HardwareFinding& finding) const {
    base::log_warning("{} counts {}", node_name(), finding.what);
    if (const auto run = heartbeats_.pulse(0).run_directory; !run.empty())
      base::record_event(run, "hardware",
                         {{"node", node_name()}, {"what", finding.what}, {"corrupts", finding.effect == health::Effect::corrupts}});
  }
  std::string remark_on_node() const {
    const auto counted = hardware_->explain(), load = hardware_->foreign_load();
    return counted + (counted.empty() || load.empty() ? "" : "; ") + load;
  }
  void look_for_stragglers(std::vector<RankSteps> own) {
    const auto news = exchange_->look(std::move(own));
    for (const auto& found : news.stragglers) base::log_warning("{}", found.description), events_.record_straggler("straggler", found);
    for (const auto& found : news.recovered) base::log_info("{}", found.description), events_.record_straggler("recovered", found);
  }

  // The status to end with; nothing: there is a next round.
  std::optional<int> take_part(const Round& round) {
    begin(round);
    const double started_s = now_s();
    const SupervisorOptions watch{.grace_s = o_.grace_s,
                                  .failure_elsewhere = [&] { return nodes_->failure_in(round, heartbeats_.pulse(0).step); },
                                  .drains = [&] { return nodes_->regroups(round) || is_asked_to_drain(); },
                                  .heartbeats = &heartbeats_,
                                  .on_steps = [&](auto steps) { look_for_stragglers(std::move(steps)); },
                                  .hang = {.silence_s = o_.hang_s, .is_whole_job = round.nodes.size() == 1}};
    auto outcome = supervision_->run(ranks_of(o_, round, heartbeats_), watch);
    if (outcome.succeeded && (is_stopped() || is_asked_to_drain())) {
      nodes_->leave(round);
      return 0;
    }
    if (outcome.succeeded) {
      if (nodes_->finish(round, [this] { return is_stopped(); })) return 0;
      outcome.first.description = nodes_->failure_in(round, heartbeats_.pulse(0).step);
      if (outcome.first.description.empty()) {
        base::log_info("the ranks have saved and ended: {}", nodes_->why_it_regroups(round));
        return std::nullopt;
      }
    }
    if (outcome.first.rank >= 0)
      if (const auto why = hardware_->explain(); !why.empty()) outcome.first.description += "; " + why;
    base::log_error("{}", report_of(outcome.first));
    return after_failure(round, outcome, started_s);
  }

  void begin(const Round& round) {
    if (o_.nodes_wanted > 1)
      base::log_info("round {}: {}; this is node {}, with rank{}", round.number, in_words(round), round.own,
                     o_.ranks == 1 ? fmt::format(" {}", round.first_rank())
                                   : fmt::format("s {} to {}", round.first_rank(), round.first_rank() + o_.ranks - 1));
    const auto nodes = static_cast<int64_t>(round.nodes.size());
    if (round.own == 0 && nodes_before_ > 0 && nodes != nodes_before_)
      events_.record("nodes", {{"before", nodes_before_}, {"nodes", nodes}, {"what", fmt::format("goes on with {}", in_words(round))}});
    nodes_before_ = nodes;
    heartbeats_.clear();
    hardware_->begin_attempt();
    exchange_->begin(round);
    if (page_) page_->begin(static_cast<int>(round.first_rank()), nodes);
  }

  std::optional<int> after_failure(const Round& round, const Outcome& outcome, double started_s) {
    const auto& failure = outcome.first;
    const auto own = attempt_of(outcome, started_s, is_training(command_));
    const auto agreed = nodes_->agree(round, own, failure.description);
    const bool speaks = nodes_->has_reported(round);  // one node of them
    if (page_) page_->count_failure(agreed.cause);
    if (speaks) events_.record_failure(failure, round);
    if (goes(round, failure, own.cause)) return kUnfitStatus;
    auto failed = nodes_->failures_before(round);
    failed.push_back(agreed);
    if (agreed.cause == Cause::usage && nodes_->fits_fewer(round)) {
      base::log_warning("the job cannot be laid out for {} nodes: trying fewer", round.nodes.size());
      return std::nullopt;
    }
    const auto retry = after(failed, {.restarts = o_.max_restarts, .restarts_per_day = o_.restarts_per_day});
    if (!retry.restarts) {
      if (o_.max_restarts > 0) base::log_error("not started again: {}", retry.why);
      if (retry.is_deterministic && is_training(command_) && !events_.run_directory().empty()) {
        const auto found = find_cause(round, outcome, agreed.step, speaks);
        heartbeats_.clear();  // events are of the run, not of the trials' folders
        if (found && found->advice != Advice::give_up) {
          const bool others_go_on = found->advice == Advice::go_on || round.nodes.size() > 1;
          if (others_go_on) count_restart(failed.size(), {.restarts = true, .why = found->what}, speaks);
          return follow(*found, round);
        }
      }
      if (speaks) events_.record("gave_up", {{"attempt", round.number - round.first}, {"why", retry.why}});
      const int status = agreed.cause == Cause::usage ? kUsageStatus : 1;
      nodes_->end(round, status);
      return status;
    }
    base::log_warning("starting all ranks again, {}: restart {} of {}{}; ingot train goes on from the last checkpoint", retry.why,
                      failed.size(), o_.max_restarts, failure.stayed > 0 ? fmt::format(", {} in the same process", failure.stayed) : "");
    count_restart(failed.size(), retry, speaks);
    return pause(stop_, retry.pause_s) ? std::nullopt : std::optional(0);  // as where it waits for the others
  }

  void count_restart(size_t attempt, const Retry& retry, bool speaks) {
    if (page_) page_->count_restart();
    if (speaks) events_.record("restart", {{"attempt", attempt}, {"pause_s", retry.pause_s}, {"why", retry.why}});
  }

  // The step that failed twice is tried in other ways, on all nodes of the round, in folders beside what the run has written.
  std::optional<Verdict> find_cause(const Round& round, const Outcome& failure, int64_t step, bool speaks) try {
    const auto run = events_.run_directory();  // heartbeats are soon of the trials' folders
    const auto checkpoints = run + "/checkpoints.jsonl";
    const auto known = std::filesystem::exists(checkpoints) ? base::read_file(checkpoints, kLongestHistory) : std::string();
    supervision_.reset();  // who waits to go on holds memory
    nodes_->begin_trials(round);
    const TrialExchange exchange(store_, round, [this](const Node& node) { return nodes_->is_there(node); });
    const auto agree = [&](int64_t trial, const Outcome& own) {
      return exchange.agree(
          trial, outcome_here(own), [this] { return is_stopped(); }, std::chrono::duration<double>(o_.rendezvous_timeout_s));
    };
    const auto first = agree(0, failure);
    if (!first) return std::nullopt;
    std::vector<TrialOutcome> outcomes;
    auto in_words = Json::array();
    for (const auto& trial : trials(round)) {
      base::log_info("step {} is tried once more, {}", step, trial.what);
      auto flags = flags_of_trials(step, fmt::format("{}/trials/step-{}-{}", run, step, trial.name), known);
      flags.insert(flags.end(), trial.flags.begin(), trial.flags.end());
      heartbeats_.clear();
      auto round_of_trial = round;
      const auto number = static_cast<int64_t>(outcomes.size()) + 1;
      round_of_trial.number += number;
      const SupervisorOptions watch{.grace_s = o_.grace_s,
                                    .failure_elsewhere = [&] { return exchange.failure_elsewhere(number); },
                                    .heartbeats = &heartbeats_,
                                    .hang = {.silence_s = o_.hang_s, .is_whole_job = round.nodes.size() == 1}};
      const auto own = Supervision({.command = command_of_trial(command_, flags), .may_stay = true, .environment = environment_of(o_)},
                                   static_cast<int>(o_.ranks), stop_)
                           .run(ranks_of(o_, round_of_trial, heartbeats_, trial.rotation), watch);
      if (is_stopped()) return std::nullopt;
      const auto all = agree(number, own);
      if (!all) return std::nullopt;
      outcomes.push_back(combine(trial, *all));
      const auto& outcome = outcomes.back();
      in_words.push_back({{"trial", trial.what}, {"passed", outcome.passed}, {"rank", outcome.rank}});
      base::log_info("{}: {}", trial.what, outcome.passed ? "passed" : own.succeeded ? "failed on another node" : own.first.description);
    }
    auto found = verdict(round, combine({}, *first).rank, outcomes);
    base::log_error("step {}: {}", step, found.what);
    if (speaks) base::record_event(run, "bisected", {{"step", step}, {"what", found.what}, {"trials", in_words}});
    return found;
  } catch (const CommError& problem) {
    base::log_warning("step {} is not tried further: {}", step, problem.what());
    return std::nullopt;
  }

  // Not by giving up. The status to end with; nothing: there is a next round.
  std::optional<int> follow(const Verdict& found, const Round& round) {
    if (found.advice == Advice::leave_out_node && found.node == round.own) {
      gate_.exclude(found.what);
      events_.record("excluded", {{"node", node_name()}, {"what", found.what}});
      if (round.nodes.size() == 1) nodes_->end(round, kUnfitStatus);
      return kUnfitStatus;
    }
    nodes_->end_trials(round);
    begin_supervision();
    return std::nullopt;
  }

  // Whether the others go on without this node.
  bool goes(const Round& round, const Failure& failure, Cause cause) {
    if (nodes_->is_cut_off(round)) {
      base::log_error("this node is left out: the others do not reach it, nor it them, at {}", address_of(o_));
      return true;
    }
    if (failure.rank < 0) return false;
    const auto why = gate_.reason_to_go(cause, failure.last_lines.empty() ? failure.description : failure.last_lines.back());
    if (why.empty()) return false;
    base::log_error("this node is left out: {}", why);
    gate_.exclude(why);
    events_.record("excluded", {{"node", node_name()}, {"what", why}});
    if (round.nodes.size() == 1) nodes_->end(round, kUnfitStatus);
    return true;
  }

  const LaunchOptions& o_;
  std::vector<std::string> command_;
  const NodeGate gate_;
  std::shared_ptr<NodeStore> store_;
  std::optional<Nodes> nodes_;
  const StopSignal stop_;
  comm::HeartbeatBoard heartbeats_;
  EventLog events_;
  std::optional<Supervision> supervision_;
  std::optional<HardwareWatch> hardware_;
  std::optional<StragglerExchange> exchange_;
  std::optional<LaunchPage> page_;
  std::optional<EventHook> hook_;
  int64_t nodes_before_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  return Launcher(options).run();
}

}  // namespace ingot::resilience
