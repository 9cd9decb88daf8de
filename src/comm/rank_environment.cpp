#include "comm/rank_environment.h"

#include <charconv>

#include "base/error.h"

namespace ingot::comm {
namespace {

using base::ConfigError;

int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw ConfigError("{} is '{}', but must be a number from {} to {}", name, text, least, most);
  return value;
}

int number_or(const char* name, const std::string& text, int otherwise, int least, int most) {
  return text.empty() ? otherwise : number(name, text, least, most);
}

constexpr int kMostRanks = 1 << 20;

// "node[3-5,8],other" -> "node3": the first of a Slurm node list.
std::string first_node(const std::string& list) {
  const auto comma = list.find(','), bracket = list.find('[');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

// A port of its own for each job, so that two on one node do not meet.
int port_of_job(const std::string& job) {
  int64_t sum = 0;
  for (const char c : job) sum = (sum * 31 + c) % 10000;
  return 20000 + static_cast<int>(sum);
}

// "…;tcp://10.0.0.1,127.0.0.1:1234" or "tcp4://…" -> "10.0.0.1": where mpirun runs, as Open MPI tells its processes.
std::string address_in_uri(const std::string& uri) {
  const auto scheme = uri.find("://");
  if (scheme == std::string::npos) return "";
  const auto end = uri.find_first_of(",:", scheme + 3);
  return uri.substr(scheme + 3, end == std::string::npos ? end : end - scheme - 3);
}

}  // namespace

RankEnvironment rank_environment(const base::Environment& e) {
  RankEnvironment r;
  std::string rank, size, local_rank;
  const char *rank_name = "RANK", *size_name = "WORLD_SIZE", *local_name = "LOCAL_RANK";
  if (!e.rank.empty() || !e.world_size.empty()) {
    r.launcher = "torchrun";
    rank = e.rank, size = e.world_size, local_rank = e.local_rank;
    if (rank.empty() || size.empty())
      throw ConfigError("{} is set without {}; a launcher sets both", rank.empty() ? "WORLD_SIZE" : "RANK",
                        rank.empty() ? "RANK" : "WORLD_SIZE");
  } else if (!e.slurm_step_tasks.empty() && !e.slurm_step_id.empty() && !e.slurm_process.empty()) {
    r.launcher = "srun";
    rank = e.slurm_process, size = e.slurm_step_tasks, local_rank = e.slurm_local_id;
    rank_name = "SLURM_PROCID", size_name = "SLURM_STEP_NUM_TASKS", local_name = "SLURM_LOCALID";
    r.address = first_node(e.slurm_step_nodes);
    r.port = port_of_job(e.slurm_job_id + "." + e.slurm_step_id);
  } else if (!e.ompi_world_size.empty()) {
    r.launcher = "mpirun";
    rank = e.ompi_rank, size = e.ompi_world_size, local_rank = e.ompi_local_rank;
    rank_name = "OMPI_COMM_WORLD_RANK", size_name = "OMPI_COMM_WORLD_SIZE", local_name = "OMPI_COMM_WORLD_LOCAL_RANK";
    r.address = e.ompi_local_size == e.ompi_world_size ? "127.0.0.1" : address_in_uri(e.ompi_uri);
    r.port = port_of_job(e.ompi_uri);
  } else {
    return r;
  }
  r.size = number(size_name, size, 1, kMostRanks);
  r.rank = number(rank_name, rank, 0, r.size - 1);
  // "2(x3),1": the tasks of each node; the first number stands for this one, as good as always.
  const auto tasks_here = e.slurm_tasks_per_node.substr(0, e.slurm_tasks_per_node.find_first_of("(,"));
  r.local_size = r.launcher == "srun"     ? number_or("SLURM_STEP_TASKS_PER_NODE", tasks_here, r.size, 1, kMostRanks)
                 : r.launcher == "mpirun" ? number_or("OMPI_COMM_WORLD_LOCAL_SIZE", e.ompi_local_size, r.size, 1, kMostRanks)
                                          : number_or("LOCAL_WORLD_SIZE", e.local_size, r.size, 1, kMostRanks);
  r.local_rank = number_or(local_name, local_rank, r.launcher == "torchrun" && r.size == 1 ? 0 : r.rank, 0, kMostRanks);
  if (!e.master_address.empty()) r.address = e.master_address;
  r.port = number_or("MASTER_PORT", e.master_port, r.port, 1, 65535);
  if (!e.restart_count.empty()) r.attempt = e.restart_count;
  r.heartbeats = e.heartbeats;
  r.is_store_hosted = e.agent_store == "True" || e.agent_store == "true" || e.agent_store == "1";
  if (r.size > 1 && r.address.empty())
    throw ConfigError("{} started {} ranks, but nothing says where rank 0 is: set MASTER_ADDR to its address", r.launcher, r.size);
  if (r.size == 1 && r.address.empty()) r.address = "127.0.0.1";
  return r;
}

}  // namespace ingot::comm
