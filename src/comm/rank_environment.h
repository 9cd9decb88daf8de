// Which rank of how many this process is, as its launcher said in the environment: torchrun's variables (ingot launch sets
// the same), else Slurm's of an srun step, else Open MPI's. Without any of them the process is alone.
#pragma once

#include <string>

#include "base/environment.h"

namespace ingot::comm {

struct RankEnvironment {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  std::string address;                 // of the store, where ranks find each other
  int port = 29500;
  bool is_store_hosted = false;  // by the launcher; otherwise rank 0 holds it
  std::string launcher;          // "torchrun", "srun", "mpirun"; "" when alone
  std::string heartbeats;        // the launcher's board (heartbeat.h), or ""
  std::string attempt = "0";     // number of the restart, by which ranks of an earlier one are told apart
};

/// Throws ConfigError when the variables contradict each other or do not say where rank 0 is.
RankEnvironment rank_environment(const base::Environment& environment);

}  // namespace ingot::comm
