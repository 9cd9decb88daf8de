// What ways to recover leave of a run's time, by drawing failures: of devices, at random (goodput.h), some of which take the node with them
// until it is repaired.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/goodput.h"

namespace ingot::plan {

struct RecoveryCosts {
  Reliability reliability;  // of the devices at work; its save_stall_s is a save's to a file system, its restart_s of new processes
  int64_t nodes = 1;        // at work, each with as many of the devices
  double save_every_s = 0;  // between saves to a file system; 0: whatever is best for new processes
  double step_s = 1;
  double memory_stall_s = 0;     // what a save to memory keeps each step waiting
  double stay_s = 1;             // until the run computes again, where the processes that are left stay
  double node_loss_share = 0.2;  // of failures: its node is lost for repair_h
  double repair_h = 24;
};

struct RecoveryPolicy {
  std::string name;
  int64_t spares = 0;      // nodes that wait
  bool shrinks = false;    // goes on without the nodes it lacks, at the rest's speed, and takes them in at the save after they came back
  bool stays = false;      // processes that are left stay
  bool in_memory = false;  // every step is saved to the memory of two nodes
};

/// From the plainest to all together; with `spares` nodes where they count.
std::vector<RecoveryPolicy> recovery_policies(int64_t spares);

struct RecoveryOutcome {
  double goodput = 0;          // share of the time that goes into steps whose work is kept, at the speed of all nodes
  double goodput_of_paid = 0;  // the same with spares counted as nodes that do nothing
  double waiting = 0;          // shares of the time: without enough nodes,
  double recovering = 0;       // and recovering
  int64_t failures = 0;
};

/// Of a run of so many days. Equal seeds draw equal failures as far as the policies let them. Throws ConfigError for what cannot be.
RecoveryOutcome draw_recovery(const RecoveryPolicy& policy, const RecoveryCosts& costs, double days, uint64_t seed);

}  // namespace ingot::plan
