#include "base/environment.h"

#include <cstdlib>

namespace ingot::base {
namespace {

struct Variable {
  const char* name;
  std::string Environment::*field;
  bool shown = true;
};

constexpr Variable kVariables[] = {
    {"INGOT_CACHE", &Environment::ingot_cache},
    {"INGOT_CPU_ALLOCATOR", &Environment::cpu_allocator},
    {"ATEN_CPU_CAPABILITY", &Environment::cpu_capability},
    {"INGOT_EMULATED_MEMORY_MIB", &Environment::emulated_memory_mib},
    {"XDG_CACHE_HOME", &Environment::xdg_cache_home},
    {"HOME", &Environment::home, false},
    {"OMP_NUM_THREADS", &Environment::omp_num_threads},
    {"MKL_NUM_THREADS", &Environment::mkl_num_threads},
    {"CUDA_VISIBLE_DEVICES", &Environment::cuda_visible_devices},
    {"HIP_VISIBLE_DEVICES", &Environment::hip_visible_devices},
    {"PYTORCH_CUDA_ALLOC_CONF", &Environment::cuda_alloc_conf},
    {"RANK", &Environment::rank},
    {"WORLD_SIZE", &Environment::world_size},
    {"LOCAL_RANK", &Environment::local_rank},
    {"LOCAL_WORLD_SIZE", &Environment::local_size},
    {"MASTER_ADDR", &Environment::master_address},
    {"MASTER_PORT", &Environment::master_port},
    {"TORCHELASTIC_USE_AGENT_STORE", &Environment::agent_store},
    {"TORCHELASTIC_RESTART_COUNT", &Environment::restart_count},
    {"INGOT_HEARTBEATS", &Environment::heartbeats},
    {"INGOT_SEAT", &Environment::seat},
    {"SLURM_JOB_ID", &Environment::slurm_job_id},
    {"SLURM_NTASKS", &Environment::slurm_ntasks},
    {"SLURM_STEP_ID", &Environment::slurm_step_id},
    {"SLURM_STEP_NUM_TASKS", &Environment::slurm_step_tasks},
    {"SLURM_PROCID", &Environment::slurm_process},
    {"SLURM_LOCALID", &Environment::slurm_local_id},
    {"SLURM_STEP_NODELIST", &Environment::slurm_step_nodes},
    {"SLURM_STEP_TASKS_PER_NODE", &Environment::slurm_tasks_per_node},
    {"SLURMD_NODENAME", &Environment::slurm_node},
    {"OMPI_COMM_WORLD_RANK", &Environment::ompi_rank},
    {"OMPI_COMM_WORLD_SIZE", &Environment::ompi_world_size},
    {"OMPI_COMM_WORLD_LOCAL_RANK", &Environment::ompi_local_rank},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", &Environment::ompi_local_size},
    {"OMPI_MCA_orte_hnp_uri", &Environment::ompi_uri},
    {"PATH", &Environment::path, false},
};

constexpr const char* kAwsVariables[] = {
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
    // Services that give keys.
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT"};

}  // namespace

const char* Environment::aws_variable(const std::string& name) const {
  if (name == "HOME") return home.empty() ? nullptr : home.c_str();
  const auto found = aws.find(name);
  return found == aws.end() ? nullptr : found->second.c_str();
}

std::string Environment::cache_folder() const {
  if (!ingot_cache.empty()) return ingot_cache;
  if (!xdg_cache_home.empty()) return xdg_cache_home + "/ingot";
  return home.empty() ? "" : home + "/.cache/ingot";
}

std::vector<std::pair<std::string, std::string>> Environment::set_variables() const {
  std::vector<std::pair<std::string, std::string>> set;
  for (const auto& variable : kVariables) {
    if (variable.shown && !(this->*variable.field).empty()) set.emplace_back(variable.name, this->*variable.field);
  }
  return set;
}

Environment read_environment(const std::function<const char*(const char*)>& get) {
  Environment environment;
  for (const auto& variable : kVariables) {
    if (const char* value = get(variable.name)) environment.*variable.field = value;
  }
  for (const char* name : kAwsVariables)
    if (const char* value = get(name)) environment.aws[name] = value;
  return environment;
}

const Environment& environment() {
  static const Environment once = read_environment([](const char* name) -> const char* { return std::getenv(name); });
  return once;
}

}  // namespace ingot::base
