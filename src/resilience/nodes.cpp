#include "resilience/nodes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"

namespace ingot::resilience {
namespace {

using base::CommError;
using namespace std::chrono_literals;

constexpr auto kBeatEvery = 250ms, kLookEvery = 50ms, kSparesEvery = 1000ms;
constexpr double kForOthersCuts_s = 1.5;
constexpr double kPatienceAgain_s = 0.5;  // once the job has begun, who comes later comes in later

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string text_of(const nlohmann::json& json) { return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

nlohmann::json to_json(const Node& node) {
  return {{"id", node.id}, {"ranks", node.ranks}, {"host", node.host}, {"address", node.address}, {"port", node.port}};
}

Node node_of(const nlohmann::json& json) {
  return {.id = json.at("id").get<int64_t>(),
          .ranks = json.at("ranks").get<int64_t>(),
          .host = json.at("host").get<std::string>(),
          .address = json.at("address").get<std::string>(),
          .port = json.at("port").get<int>()};
}

nlohmann::json to_json(const FailedAttempt& attempt) {
  return {{"cause", static_cast<int>(attempt.cause)},
          {"step", attempt.step},
          {"signature", attempt.signature},
          {"started_s", attempt.started_s},
          {"ended_s", attempt.ended_s}};
}

// Of what cannot be read: one without a step.
FailedAttempt attempt_of(const nlohmann::json& json) try {
  return {.cause = static_cast<Cause>(json.at("cause").get<int>()),
          .step = json.at("step").get<int64_t>(),
          .signature = json.at("signature").get<std::string>(),
          .started_s = json.at("started_s").get<double>(),
          .ended_s = json.at("ended_s").get<double>()};
} catch (const nlohmann::json::exception& problem) {
  base::log_warning("a failure is not what a launcher wrote where the nodes meet: {}", problem.what());
  return {};
}

// Of an object; what is missing or of another type is `otherwise`.
template <typename T>
T value_of(const nlohmann::json& json, const char* name, T otherwise) try {
  return json.value(name, otherwise);
} catch (const nlohmann::json::exception&) {
  return otherwise;
}

std::string numbered(const char* name, int64_t number) { return fmt::format("{}.{}", name, number); }

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Nodes::Nodes(std::shared_ptr<NodeStore> store, NodeOptions options) : store_(std::move(store)), options_(std::move(options)) {
  if (options_.wanted > 1) reachability_.emplace();
  const Json own{{"ranks", options_.ranks},     {"port", reachability_ ? reachability_->port() : 0},
                 {"host", base::host_name()},   {"address", options_.address},
                 {"place", options_.node_rank}, {"process", fmt::format("{}-{:08x}", getpid(), std::random_device()())}};
  const auto text = text_of(own);
  while (store_->create(numbered("node", id_), text) != text) ++id_;
  advance();
  if (latest_ >= 0 && store_->get(numbered("over", latest_))) done_with_ = latest_;
  beating_ = std::thread([this] { beat(); });
}

Nodes::~Nodes() {
  say([&] { leaves_ = true; });
  try {
    const auto since = Clock::now();
    const auto are_there = [&] {
      return std::any_of(known_.begin(), known_.end(), [&](const auto& known) { return known.first != id_ && is_alive(known.first); });
    };
    while (options_.holds_store && seconds_since(since) < options_.lease_s && are_there()) std::this_thread::sleep_for(kLookEvery);
  } catch (const std::exception& failure) {
    base::log_debug("{}", failure.what());
  }
  say([&] { ends_ = true; });
  beating_.join();
}

void Nodes::say(const std::function<void()>& change) {
  {
    const std::lock_guard lock(mutex_);
    change();
  }
  changed_.notify_one();
}

void Nodes::beat() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto text = text_of({{"beat", ++beats_}, {"ready", ready_}, {"done", done_}, {"left", leaves_}});
    const auto said = std::tuple(ready_, done_, leaves_, ends_);
    lock.unlock();
    bool is_written = true;
    try {
      store_->put(numbered("beat", id_), text);
    } catch (const base::Error&) {
      is_written = false;  // who reads it will say so
    }
    lock.lock();
    const auto now = Clock::now();
    if (!is_written && meeting_is_there_)
      meeting_is_there_ = false, base::log_warning("what is written where the nodes meet gets lost: none of them is given up for that");
    if (is_written && !meeting_is_there_) meeting_is_there_ = true, meeting_back_ = now;
    if (std::get<3>(said)) return;
    changed_.wait_for(lock, kBeatEvery, [&] { return said != std::tuple(ready_, done_, leaves_, ends_); });
  }
}

Nodes::Json Nodes::read(const std::string& name) {
  const auto text = store_->get(name);
  return text ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json();
}

void Nodes::meet_nodes() {
  for (;;) {
    const auto id = static_cast<int64_t>(known_.size());
    const auto json = read(numbered("node", id));
    if (!json.is_object()) return;
    Known known;
    known.node = {.id = id,
                  .ranks = value_of(json, "ranks", int64_t{1}),
                  .host = value_of<std::string>(json, "host", ""),
                  .address = value_of<std::string>(json, "address", ""),
                  .port = value_of(json, "port", 0)};
    known.node_rank = value_of(json, "place", int64_t{-1});
    known.changed = Clock::now();
    known_.emplace(id, std::move(known));
    look_at(id);  // its lease begins now, not when it is asked for
  }
}

Nodes::Known& Nodes::look_at(int64_t id) {
  auto& known = known_.at(id);
  const auto text = store_->get(numbered("beat", id));
  if (!text || *text == known.beat) return known;
  const auto json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return known;
  known.beat = *text, known.changed = Clock::now();
  known.ready = value_of(json, "ready", int64_t{-1}), known.done = value_of(json, "done", int64_t{-1}),
  known.has_left = value_of(json, "left", false);
  return known;
}

bool Nodes::is_alive(int64_t id) {
  if (id == id_) return true;
  const auto& known = look_at(id);
  if (known.has_left) return false;
  const std::lock_guard lock(mutex_);
  // Where this one's beats get lost, so do those of the others, and for as long as before it takes them to be seen again.
  return !meeting_is_there_ || seconds_since(std::max(known.changed, meeting_back_)) < options_.lease_s;
}

std::optional<Round> Nodes::round(int64_t number) {
  if (number < 0) return std::nullopt;
  if (const auto found = rounds_.find(number); found != rounds_.end()) return found->second;
  const auto json = read(numbered("round", number));
  if (!json.is_object()) return std::nullopt;
  Round round{.number = number, .first = 0, .nodes = {}, .own = 0, .port = 0};
  try {
    round.first = json.at("first").get<int64_t>(), round.port = json.at("port").get<int>();
    for (const auto& node : json.at("nodes")) round.nodes.push_back(node_of(node));
  } catch (const nlohmann::json::exception& problem) {
    throw CommError("round.{} where the nodes meet is not what a launcher wrote there ({}): choose another place", number, problem.what());
  }
  round.own = round.nodes.size();
  for (size_t i = 0; i < round.nodes.size(); ++i)
    if (round.nodes[i].id == id_) round.own = i;
  return rounds_[number] = round;
}

void Nodes::advance() {
  while (round(latest_ + 1)) ++latest_;
}

// While the first is alive the others are not read. Then all are: those that died together are waited for once, not one after the other.
bool Nodes::is_working(const Round& round) {
  if (!round.nodes.empty() && is_alive(round.nodes[0].id)) return true;
  const auto count = std::count_if(round.nodes.begin(), round.nodes.end(), [&](const Node& node) { return is_alive(node.id); });
  return count > 0;
}

bool Nodes::has_ended(int64_t number) {
  if (number <= done_with_) return true;
  const bool is_tried = store_->get(numbered("trials", number)) && !store_->get(numbered("tried", number));
  for (const char* name : {"failed", "regroup"})
    if (!is_tried && store_->get(numbered(name, number))) return true;
  meet_nodes();
  return !is_working(*round(number));  // its nodes are all lost, and nobody is left to say so
}

// Sizes at which the ranks found themselves called wrongly, in a job that had worked at another one.
RoundLimits Nodes::limits_of(int64_t first, int64_t until, bool is_first) {
  RoundLimits limits{.least = options_.least, .wanted = options_.wanted, .refused = {}, .patience_s = kPatienceAgain_s};
  if (is_first) limits.patience_s = options_.patience_s;
  bool has_worked = false;
  for (int64_t number = first; number < until; ++number) {
    const auto failed = read(numbered("failed", number));
    const auto attempt = failed.is_object() ? attempt_of(failed) : FailedAttempt{};
    if (has_worked && failed.is_object() && attempt.cause == Cause::usage)
      limits.refused.insert(static_cast<int64_t>(round(number)->nodes.size()));
    has_worked = has_worked || !failed.is_object() || attempt.step > 0;
  }
  return limits;
}

std::vector<Candidate> Nodes::candidates(int64_t number, const std::optional<Round>& before) {
  meet_nodes();
  std::vector<Candidate> all;
  for (auto& [id, known] : known_) {
    const auto is_node = [id = id](const Node& node) { return node.id == id; };
    const bool was_there = before && std::any_of(before->nodes.begin(), before->nodes.end(), is_node);
    all.push_back({.id = id, .node_rank = known.node_rank, .was_there = was_there, .is_ready = false});
  }
  std::sort(all.begin(), all.end(), comes_before);
  std::vector<Candidate> alive;
  bool is_mine = false;  // no node that is ready comes before this one
  for (auto& candidate : all) {
    if (!is_alive(candidate.id)) continue;
    candidate.is_ready = candidate.id == id_ || known_.at(candidate.id).ready == number;
    if (candidate.is_ready && !is_mine && candidate.id != id_) return {};
    is_mine = is_mine || candidate.id == id_;
    alive.push_back(candidate);
  }
  return alive;
}

void Nodes::form(int64_t number, const std::vector<int64_t>& ids, int64_t first) {
  ranks_store_.reset();
  try {
    ranks_store_ = comm::open_store(options_.address, 0, /*is_server=*/true, std::chrono::duration<double>(options_.timeout_s));
  } catch (const std::exception& failure) {
    const std::string cause = failure.what();
    throw CommError("this node's ranks cannot meet at {}: {}. --address says where the other nodes reach it", options_.address,
                    cause.substr(0, cause.find('\n')));
  }
  auto nodes = Json::array();
  for (const auto id : ids) nodes.push_back(to_json(known_.at(id).node));
  const auto text = text_of({{"first", first}, {"nodes", nodes}, {"port", ranks_store_->getPort()}});
  if (store_->create(numbered("round", number), text) != text) ranks_store_.reset();  // another one was quicker
}

std::optional<Round> Nodes::next(const Stop& stop) {
  auto since = Clock::now();
  std::string said;
  const auto say_once = [&](const std::string& text) {
    if (text != said && options_.wanted > 1) base::log_info("{}", text);
    said = text;
  };
  for (;; std::this_thread::sleep_for(kLookEvery)) {
    advance();
    auto before = latest_ > done_with_ ? round(latest_) : std::nullopt;
    if (before) {
      if (const auto over = read(numbered("over", latest_)); over.is_object()) {
        status_ = value_of(over, "status", 1);
        return std::nullopt;
      }
      if (latest_ > taken_ && before->own < before->nodes.size() && !has_ended(latest_)) {
        taken_ = seen_ = latest_;
        if (before->own != 0) ranks_store_.reset();
        watch_neighbours(*before);
        say([&] { ready_ = -1; });
        return before;
      }
    }
    if (stop()) return std::nullopt;
    say_what_was_not_said();
    const int64_t number = latest_ + 1;
    say([&] { ready_ = number; });
    is_spare_ = before && !has_ended(latest_);
    if (is_spare_) {
      seen_ = latest_;
      say_once(
          fmt::format("{} node{} at work; this one waits as a spare", before->nodes.size(), before->nodes.size() == 1 ? " is" : "s are"));
      since = Clock::now();
      continue;
    }
    const auto alive = candidates(number, before);
    if (!alive.empty()) {
      const bool goes_on = before && is_working(*before);
      const int64_t first = goes_on ? before->first : number;
      const auto limits = limits_of(first, number, !goes_on);
      if (const auto ids = choose_nodes(alive, limits, seconds_since(since)); !ids.empty()) {
        form(number, ids, first);
        continue;
      }
      const auto there = static_cast<int64_t>(alive.size());
      say_once(fmt::format("{} of {} nodes {} there", there, options_.wanted, there == 1 ? "is" : "are"));
      if (there >= options_.least && largest_size(there, limits) == 0)
        throw CommError("the job cannot be laid out for {} nodes, nor for fewer down to {}", there, options_.least);
      const auto regroup = before && latest_ == seen_ ? read(numbered("regroup", latest_)) : Json();
      if (regroup.is_object() && value_of(regroup, "leaves", false) && there < options_.least) {
        base::log_info("fewer than {} nodes are left, and the job was asked to stop", options_.least);
        end(*before, 0);
        continue;
      }
    }
    if (seconds_since(since) > options_.timeout_s)
      throw CommError("{} of at least {} nodes came within {:g} s", alive.empty() ? "no other node" : fmt::format("only {}", alive.size()),
                      options_.least, options_.timeout_s);
  }
}

std::string Nodes::failure_in(const Round& round, int64_t step) {
  if (round.nodes.size() == 1 && options_.wanted == 1) return "";
  const auto name = numbered("failed", round.number);
  if (const auto failed = read(name); failed.is_object()) return value_of<std::string>(failed, "what", "");
  meet_nodes();
  for (const size_t place : {(round.own + 1) % round.nodes.size(), size_t{0}}) {
    const auto& node = round.nodes[place];
    if (node.id == id_ || is_alive(node.id) || known_.at(node.id).done >= round.number) continue;
    if (read(numbered("regroup", round.number)).is_object()) continue;  // it has saved, and gone
    return fail(
        round, step,
        fmt::format("node {} ({}) is lost: no sign of life for {:.1f} s", place, node.host, seconds_since(known_.at(node.id).changed)));
  }
  return cut_in(round, step);
}

std::string Nodes::fail(const Round& round, int64_t step, const std::string& what) {
  Json record = to_json({.cause = Cause::killed, .step = step, .signature = "", .started_s = now_s(), .ended_s = now_s()});
  record["what"] = what, record["by"] = id_;
  try {
    store_->create(numbered("failed", round.number), text_of(record));
  } catch (const CommError& failure) {
    base::log_warning("{}; the others find out by themselves", failure.what());
  }
  return what;
}

// The next one of the round and the first, as for their beats.
void Nodes::watch_neighbours(const Round& round) {
  saw_cut_.reset();
  if (!reachability_) return;
  std::vector<Reachability::Peer> peers;
  for (const size_t place : std::set<size_t>{(round.own + 1) % round.nodes.size(), 0}) {
    const auto& node = round.nodes[place];
    if (node.id != id_ && node.port > 0) peers.push_back({node.id, node.address, node.port});
  }
  reachability_->watch(std::move(peers));
}

// Long enough that the beats of a machine that has died have ended, too; then all have the same time to say what they see.
std::string Nodes::cut_in(const Round& round, int64_t step) {
  if (!reachability_) return "";
  auto silent = reachability_->silent_for(2 * options_.lease_s + 1);
  std::erase_if(silent, [&](int64_t id) { return !is_alive(id); });
  if (silent.empty()) return "";
  try {
    store_->create(fmt::format("cut.{}.{}", round.number, id_), text_of({{"from", silent}}));
    if (!saw_cut_) saw_cut_ = Clock::now();
    if (seconds_since(*saw_cut_) < kForOthersCuts_s) return "";
    std::vector<std::pair<int64_t, int64_t>> cuts;
    std::vector<int64_t> order;
    for (const auto& node : round.nodes) {
      order.push_back(node.id);
      const auto said = read(fmt::format("cut.{}.{}", round.number, node.id));
      if (said.is_object())
        for (const auto& other : said.at("from")) cuts.emplace_back(node.id, other.get<int64_t>());
    }
    const auto chosen = Json::parse(store_->create(numbered("without", round.number), text_of({{"id", choose_cut_off(cuts, order)}})));
    const auto id = chosen.at("id").get<int64_t>();
    const auto place = std::find(order.begin(), order.end(), id) - order.begin();
    return fail(round, step,
                fmt::format("node {} ({}) is alive, and the network between it and others is cut: it is left out", place,
                            round.nodes.at(static_cast<size_t>(place)).host));
  } catch (const std::exception& failure) {
    base::log_warning("where the nodes meet: {}", failure.what());
    return "";
  }
}

bool Nodes::is_cut_off(const Round& round) {
  const auto without = read(numbered("without", round.number));
  return without.is_object() && value_of(without, "id", int64_t{-1}) == id_;
}

FailedAttempt Nodes::agree(const Round& round, const FailedAttempt& own, const std::string& what) {
  Json record = to_json(own);
  record["what"] = round.nodes.size() == 1 ? what : fmt::format("{} on node {} ({})", what, round.own, round.nodes[round.own].host);
  record["by"] = id_;
  try {
    return attempt_of(Json::parse(store_->create(numbered("failed", round.number), text_of(record))));
  } catch (const std::exception& failure) {  // a full disk, or the node that holds the store is gone: meeting the others says so
    base::log_warning("{}", failure.what());
    unsaid_ = std::pair(numbered("failed", round.number), text_of(record));
    return own;
  }
}

// Without it the round never ends where no node could write that it failed: all are alive, and wait as spares.
void Nodes::say_what_was_not_said() {
  if (!unsaid_) return;
  try {
    store_->create(unsaid_->first, unsaid_->second);
    unsaid_.reset();
  } catch (const CommError& failure) {
    base::log_debug("{}", failure.what());
  }
}

std::vector<FailedAttempt> Nodes::failures_before(const Round& round) {
  std::vector<FailedAttempt> all;
  for (int64_t number = round.first; number < round.number; ++number)
    if (const auto failed = read(numbered("failed", number)); failed.is_object()) all.push_back(attempt_of(failed));
  return all;
}

bool Nodes::regroups(const Round& round) {
  if (options_.wanted == 1) return false;
  const auto name = numbered("regroup", round.number);
  if (read(name).is_object()) return true;
  const auto size = static_cast<int64_t>(round.nodes.size());
  if (round.own != 0 || size >= options_.wanted || Clock::now() - looked_for_spares_ < kSparesEvery) return false;
  looked_for_spares_ = Clock::now();
  meet_nodes();
  int64_t spares = 0;
  for (const auto& [id, known] : known_) {
    const auto is_node = [id = id](const Node& node) { return node.id == id; };
    if (std::any_of(round.nodes.begin(), round.nodes.end(), is_node)) continue;
    spares += is_alive(id) && known.ready > round.number;
  }
  if (spares == 0 || largest_size(size + spares, limits_of(round.first, round.number, false)) <= size) return false;
  try {
    store_->create(name, text_of({{"why", fmt::format("{} spare node{} there", spares, spares == 1 ? " is" : "s are")}}));
  } catch (const CommError& failure) {
    base::log_warning("{}; the job goes on as it is", failure.what());
    return false;
  }
  return true;
}

std::string Nodes::why_it_regroups(const Round& round) {
  const auto regroup = read(numbered("regroup", round.number));
  return regroup.is_object() ? value_of<std::string>(regroup, "why", "") : "";
}

bool Nodes::has_reported(const Round& round) {
  const auto failed = read(numbered("failed", round.number));
  return failed.is_object() && value_of(failed, "by", int64_t{-1}) == id_;
}

bool Nodes::fits_fewer(const Round& round) {
  const auto limits = limits_of(round.first, round.number + 1, false);
  const auto size = static_cast<int64_t>(round.nodes.size());
  return limits.refused.contains(size) && largest_size(size, limits) > 0;
}

void Nodes::leave(const Round& round) {
  if (options_.wanted > 1)
    store_->create(numbered("regroup", round.number), text_of({{"why", fmt::format("node {} goes", round.own)}, {"leaves", true}}));
  say([&] { done_ = round.number, leaves_ = true; });
}

bool Nodes::finish(const Round& round, const Stop& stop) {
  say([&] { done_ = round.number; });
  if (options_.wanted == 1) return true;
  const auto has_done = [&](const Node& node) { return node.id == id_ || look_at(node.id).done >= round.number; };
  meet_nodes();
  for (;; std::this_thread::sleep_for(kLookEvery)) {
    if (read(numbered("regroup", round.number)).is_object()) return false;
    if (const auto over = read(numbered("over", round.number)); over.is_object()) return true;
    if (!failure_in(round, 0).empty()) return false;
    if (round.own == 0 && std::all_of(round.nodes.begin(), round.nodes.end(), has_done)) end(round, 0);
    if (stop()) return true;
  }
}

void Nodes::begin_trials(const Round& round) {
  meet_nodes();
  store_->create(numbered("trials", round.number), text_of({{"by", id_}}));
}

void Nodes::end_trials(const Round& round) { store_->create(numbered("tried", round.number), text_of({{"by", id_}})); }

void Nodes::end(const Round& round, int status) { store_->create(numbered("over", round.number), text_of({{"status", status}})); }

}  // namespace ingot::resilience
