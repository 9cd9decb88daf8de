// The nodes of a job: who is there, who takes part in the next round, and how a round ends.
//
// Every launcher is a node. It beats in a store; a node whose beat stands still for the lease is lost. A round is a set of nodes whose
// ranks make one job. It ends when a rank fails, when a node is lost, or when nodes come or go; those that are there then form the next
// one. No node is needed for that but one that is there: each looks after the next one of its round, and the first that is ready forms the
// round.
//
//   node.I     who node I is, in the order of coming
//   beat.I     its beat, which round it is ready for, and which it has done
//   round.N    the nodes of round N
//   failed.N   its first failure
//   regroup.N  why its ranks save and end
//   cut.N.I    which nodes node I does not reach any more, although they beat
//   without.N  which one is to go for that
//   trials.N   its nodes try what failed in other ways (bisection.h), until there is
//   tried.N
//   over.N     it was the job's last
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/store.h"
#include "resilience/choose_nodes.h"
#include "resilience/node_store.h"
#include "resilience/reachability.h"
#include "resilience/retry_policy.h"
#include "resilience/round.h"

namespace ingot::resilience {

struct NodeOptions {
  int64_t least = 1, wanted = 1;  // nodes of a round
  int64_t ranks = 1;              // of this node
  int64_t node_rank = -1;         // its place; -1: as it comes
  bool holds_store = false;       // the others' meeting place ends with this one
  std::string address;            // where the other nodes reach this one
  double lease_s = 3;             // without a beat
  double patience_s = 30;         // how long the first round waits for more than the least
  double timeout_s = 300;         // and for the least
};

class Nodes {
 public:
  using Stop = std::function<bool()>;

  /// Joins. Throws CommError.
  Nodes(std::shared_ptr<NodeStore> store, NodeOptions options);
  /// Leaves.
  ~Nodes();
  Nodes(const Nodes&) = delete;

  /// The next round with this node in it: until there is one it waits, as a spare while others work. Nothing when the job is over, with
  /// status(), or `stop` says so. Throws CommError when too few come in time.
  std::optional<Round> next(const Stop& stop);
  int status() const { return status_; }
  /// Whether next() waits while others work.
  bool is_spare() const { return is_spare_; }

  /// "", or what ended the round elsewhere; `step` is under way.
  std::string failure_in(const Round& round, int64_t step);
  /// The round's first failure, on whichever node: all nodes know one history. This one's is `own`, in words `what`.
  FailedAttempt agree(const Round& round, const FailedAttempt& own, const std::string& what);
  /// Of this job's rounds before this one, oldest first.
  std::vector<FailedAttempt> failures_before(const Round& round);

  /// Ranks are to save and end, since nodes come or go. Asks for that by itself where a spare could come in.
  bool regroups(const Round& round);
  std::string why_it_regroups(const Round& round);
  /// The others go on without this node, which beats and cannot be reached.
  bool is_cut_off(const Round& round);
  /// Whether the round's first failure is what this node has found.
  bool has_reported(const Round& round);
  /// After a round whose ranks found themselves called wrongly: whether the job has worked before, and may with fewer nodes.
  bool fits_fewer(const Round& round);
  /// This node goes; the others go on without it.
  void leave(const Round& round);
  /// The ranks of this node have ended well: waits for those of the others. True: the job has ended, all of it; false: the next round
  /// goes on, or the round has failed (failure_in).
  bool finish(const Round& round, const Stop& stop);
  /// Whether it beats.
  bool is_there(const Node& node) { return is_alive(node.id); }
  /// After a round's failure: its nodes try it in other ways, and who waits as a spare goes on waiting, until they have.
  void begin_trials(const Round& round);
  void end_trials(const Round& round);
  /// The job is over, with this status.
  void end(const Round& round, int status);

 private:
  using Json = nlohmann::json;
  using Clock = std::chrono::steady_clock;
  struct Known {
    Node node;
    int64_t node_rank = -1;
    std::string beat;  // as it was read last
    Clock::time_point changed;
    int64_t ready = -1, done = -1;
    bool has_left = false;
  };

  void beat();
  void say(const std::function<void()>& change);
  Json read(const std::string& name);
  void meet_nodes();
  Known& look_at(int64_t id);
  bool is_alive(int64_t id);
  void watch_neighbours(const Round& round);
  std::string cut_in(const Round& round, int64_t step);
  std::string fail(const Round& round, int64_t step, const std::string& what);
  std::optional<Round> round(int64_t number);
  void advance();
  bool has_ended(int64_t number);
  bool is_working(const Round& round);
  RoundLimits limits_of(int64_t first, int64_t until, bool is_first);
  std::vector<Candidate> candidates(int64_t number, const std::optional<Round>& before);
  void say_what_was_not_said();
  void form(int64_t number, const std::vector<int64_t>& ids, int64_t first);

  std::shared_ptr<NodeStore> store_;
  NodeOptions options_;
  int64_t id_ = 0;
  int64_t latest_ = -1;     // round
  int64_t done_with_ = -1;  // the last round of jobs before this one
  int64_t taken_ = -1;      // the last round that this node took part in
  int64_t seen_ = -1;       // the last one that it took part in, or that was at work when it came
  int status_ = 0;
  bool is_spare_ = false;
  std::map<int64_t, Known> known_;
  std::map<int64_t, Round> rounds_;
  std::optional<std::pair<std::string, std::string>> unsaid_;  // name and text of a failure that could not be written
  c10::intrusive_ptr<c10d::TCPStore> ranks_store_;             // of a round whose first node this one is
  Clock::time_point looked_for_spares_{};
  std::optional<Reachability> reachability_;  // where there are others
  std::optional<Clock::time_point> saw_cut_;  // in the round at work

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  int64_t beats_ = 0, ready_ = -1, done_ = -1;  // what the beat says
  bool leaves_ = false;
  bool meeting_is_there_ = true;      // this node's own beats are written
  Clock::time_point meeting_back_{};  // since when, after they were not
  std::thread beating_;
};

}  // namespace ingot::resilience
