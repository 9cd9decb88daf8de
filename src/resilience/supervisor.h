// Starts the ranks of one machine as processes, passes on what they print, and when one fails ends the others, or lets those stay that wait
// to be told which rank they are next (seats.h).
//
// Every line of a rank is written whole, with its rank in front; the standard output of rank 0, the job's result, passes as it comes. The
// ranks run in process groups of their own, so that a Ctrl-C at the terminal reaches the supervisor alone, which hands it on once; when the
// supervisor itself is killed, the ranks get SIGTERM.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/heartbeat.h"
#include "resilience/hang.h"
#include "resilience/stop_signal.h"
#include "resilience/straggler.h"

namespace ingot::resilience {

struct RankProcess {
  int rank = 0;
  std::vector<std::pair<std::string, std::string>> environment;  // of its rank alone
};

struct SupervisorOptions {
  double grace_s = 10;                                   // from the first failure until what is left is killed
  std::function<std::string()> failure_elsewhere;        // asked twice a second; not empty: another machine failed, as it says
  std::function<bool()> drains;                          // as often; true: the ranks are to save and end, and get SIGTERM
  const comm::HeartbeatBoard* heartbeats = nullptr;      // of the processes, in their order; without it nobody is watched
  std::function<void(std::vector<RankSteps>)> on_steps;  // ten times a second, while nothing is wrong: the last steps of the ranks here
  HangLimits hang;                                       // a rank that hangs says where, is killed, and is the job's failure
};

struct Failure {
  int rank = -1;                        // -1: on another machine, or no rank alone
  std::string description;              // "rank 2 (process 4711) was killed by signal 9 (Killed)"
  std::vector<std::string> last_lines;  // of its standard error
  int exit_status = 1;                  // of the rank; 128 + signal
  bool was_killed = false;              // by SIGKILL: the rank could not say why, and its last lines are from before
  bool is_hang = false;
  double silent_s = 0;  // before it was found to hang
  int64_t step = 0;     // that the rank was in; 0: before the first, or not known
  int stayed = 0;       // ranks that wait for the next attempt
  int failed = 0;       // ranks that ended by themselves with a failure, this one included
};

/// What to tell the user: the description, and the last lines as what they are. A killed rank's last line is not the cause.
std::string report_of(const Failure& failure);

struct Outcome {
  bool succeeded = false;    // every rank exited 0
  bool was_stopped = false;  // a signal was handed on
  Failure first;             // when not
};

struct Program {
  std::vector<std::string> command;
  bool may_stay = false;                                         // after a failure, in processes that can wait
  int spares = 0;                                                // processes that wait from the start; only of a program that can
  std::vector<std::pair<std::string, std::string>> environment;  // of each process, added to the supervisor's own
};

class Supervision {
 public:
  /// Of as many ranks in every attempt. `stop` must outlive it.
  Supervision(Program program, int ranks, const StopSignal& stop);
  /// Ends what still runs or waits.
  ~Supervision();
  Supervision(const Supervision&) = delete;

  /// An attempt: one process for each rank, in their order, which has stayed, was a spare, or is started; until all have ended, or after a
  /// failure wait. Throws UsageError when the program cannot be started at all.
  Outcome run(const std::vector<RankProcess>& ranks, const SupervisorOptions& options);
  /// Between attempts, again and again: processes wait with the program loaded, as many as the next attempt takes. Only of a program that
  /// can.
  void stand_by();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::resilience
