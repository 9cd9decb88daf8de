// The environment variables that ingot knows, read once at first use. Nothing else in the program calls getenv; a field is
// empty when its variable is unset.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ingot::base {

struct Environment {
  std::string ingot_cache;          // INGOT_CACHE: where measurements of this machine are kept
  std::string cpu_allocator;        // INGOT_CPU_ALLOCATOR: "pool" (what happens without it) or "system"
  std::string cpu_capability;       // ATEN_CPU_CAPABILITY: default, avx2 or avx512, the most that torch's kernels and ours take of a CPU
  std::string emulated_memory_mib;  // INGOT_EMULATED_MEMORY_MIB: of an emulated device (docs/devices.md); empty: the host's
  std::string xdg_cache_home;       // XDG_CACHE_HOME, HOME: where they go otherwise
  std::string home;
  std::string omp_num_threads;  // OMP_NUM_THREADS, MKL_NUM_THREADS: limits that torch obeys
  std::string mkl_num_threads;
  std::string cuda_visible_devices;  // CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES: which GPUs may be used
  std::string hip_visible_devices;
  std::string cuda_alloc_conf;  // PYTORCH_CUDA_ALLOC_CONF: settings of torch's GPU allocator
  // Set by torchrun and by `ingot launch`.
  std::string rank, world_size, local_rank, local_size;  // RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
  std::string master_address, master_port;  // MASTER_ADDR, MASTER_PORT: where ranks meet; they win over what Slurm and Open MPI say
  std::string agent_store;                  // TORCHELASTIC_USE_AGENT_STORE: "True" when the launcher holds the meeting place
  std::string restart_count;                // TORCHELASTIC_RESTART_COUNT
  std::string heartbeats;                   // INGOT_HEARTBEATS: where `ingot launch` sees what its ranks do
  std::string seat;                         // INGOT_SEAT: where it tells a process which rank it is next (resilience/seats.h)
  // Set by Slurm in a job, and in each process that srun starts.
  std::string slurm_job_id, slurm_ntasks;                       // SLURM_JOB_ID, SLURM_NTASKS
  std::string slurm_step_id, slurm_step_tasks;                  // SLURM_STEP_ID, SLURM_STEP_NUM_TASKS
  std::string slurm_process, slurm_local_id, slurm_step_nodes;  // SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NODELIST
  std::string slurm_tasks_per_node, slurm_node;                 // SLURM_STEP_TASKS_PER_NODE, SLURMD_NODENAME
  // Set by Open MPI's mpirun.
  std::string ompi_rank, ompi_world_size;        // OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
  std::string ompi_local_rank, ompi_local_size;  // OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE
  std::string ompi_uri;                          // OMPI_MCA_orte_hnp_uri: where mpirun itself is
  std::string path;                              // PATH: where programs such as srun are looked for
  /// AWS_…: where an object store is and who asks (object_store/credentials.h).
  std::map<std::string, std::string> aws;
  /// Of these and HOME; null when it is not set.
  const char* aws_variable(const std::string& name) const;

  /// $INGOT_CACHE, else $XDG_CACHE_HOME/ingot, else ~/.cache/ingot; "" when none of them is set.
  std::string cache_folder() const;
  /// Name and value of every variable above that is set, but PATH and HOME.
  std::vector<std::pair<std::string, std::string>> set_variables() const;
};

/// `get` returns a variable's value or null.
Environment read_environment(const std::function<const char*(const char* name)>& get);
const Environment& environment();

}  // namespace ingot::base
