// The environment variables that ingot knows, read once at first use. Nothing else in the program calls getenv; a field is
// empty when its variable is unset.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ingot::base {

struct Environment {
  std::string ingot_cache;     // INGOT_CACHE: where measurements of this machine are kept
  std::string xdg_cache_home;  // XDG_CACHE_HOME, HOME: where they go otherwise
  std::string home;
  std::string omp_num_threads;  // OMP_NUM_THREADS, MKL_NUM_THREADS: limits that torch obeys
  std::string mkl_num_threads;
  std::string cuda_visible_devices;  // CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES: which GPUs may be used
  std::string hip_visible_devices;
  std::string rank;  // RANK, WORLD_SIZE: set by torchrun
  std::string world_size;
  std::string slurm_job_id;  // SLURM_JOB_ID, SLURM_NTASKS: set inside a Slurm job
  std::string slurm_ntasks;
  std::string ompi_world_size;  // OMPI_COMM_WORLD_SIZE: set by Open MPI's mpirun
  std::string path;             // PATH: where programs such as srun are looked for

  /// $INGOT_CACHE, else $XDG_CACHE_HOME/ingot, else ~/.cache/ingot; "" when none of them is set.
  std::string cache_folder() const;
  /// Name and value of every variable above that is set, but PATH and HOME.
  std::vector<std::pair<std::string, std::string>> set_variables() const;
};

/// `get` returns a variable's value or null.
Environment read_environment(const std::function<const char*(const char* name)>& get);
const Environment& environment();

}  // namespace ingot::base
