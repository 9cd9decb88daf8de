// Starts and supervises the ranks of this machine, and agrees with the launchers of the other machines on who takes part, when the job has
// failed, and when it begins anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::resilience {

struct LaunchOptions {
  int64_t ranks = 1;                          // of this machine
  int64_t nodes_least = 1, nodes_wanted = 1;  // machines; each runs its own launcher (nodes.h)
  int64_t node_rank = -1;                     // which of them this is; -1: as it comes
  int64_t max_restarts = 0;                   // of all ranks, after a failure
  int64_t restarts_per_day = 0;               // 0: no limit of its own
  int64_t spares = 0;                         // processes of each node that wait for a rank to fail
  double hang_s = -1;                         // silence of a rank that is a hang (hang.h); 0: never
  std::string rendezvous;                     // a folder that all machines share, or HOST:PORT of machine 0; one machine needs none
  std::string address;                        // where the others reach this machine; "": by its name
  double lease_s = 3;                         // without a sign of life from a machine until it is lost
  double nodes_patience_s = 30;               // how long a job that begins waits for more than the least
  std::string page;                           // HOST:PORT of launch_page.h; "": none
  std::string on_event;                       // command of event_hook.h; "": none
  bool check_node = false;                    // it must be fit (health/node_fitness.h) to take part, and after failures of its ranks
  std::string exclusion_list;                 // file of nodes to be without (health/exclusion_list.h); "": beside the rendezvous folder
  double grace_s = 10;                        // from the first failure until the other ranks are killed
  double rendezvous_timeout_s = 300;
  std::vector<std::string> command;  // of a rank; "ingot" is this program
};

/// Returns when all ranks of this machine have ended for good, with the job's exit status: 0; 1 failed; 2 a rank found that it was called
/// wrongly; 3 this node is left out. Throws UsageError, and CommError when the machines do not find each other.
int launch(const LaunchOptions& options);

}  // namespace ingot::resilience
