#include "bench/gemm_backend_setting.h"

#include <ATen/Parallel.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/load/reader.h"
#include "comm/world.h"
#include "device/device.h"
#include "kernels/gemm_backend.h"
#include "kernels/gemm_tuning.h"
#include "layers/dtype.h"
#include "plan/gemm_backend_choice.h"
#include "plan/rates.h"
#include "plan/run/shape.h"
#include "plan/time.h"
#include "train/checkpointing.h"
#include "train/parallel_model.h"
#include "train/phases.h"
#include "train/run_checkpoints.h"

namespace ingot::bench {
namespace {

namespace fs = std::filesystem;

// What a run that goes on began with; nothing for a new one. Runs of before there was a choice had the default.
// One that is not there is told about when it is loaded.
std::optional<std::string> begun_with(const train::RunOptions& options) {
  const auto& run_dir = options.run_dir;
  const auto& resume = options.resume;
  if (resume == "never") return std::nullopt;
  fs::path from;
  if (resume != "auto") {
    try {
      from = train::resume_path(resume, options.storage_of);
    } catch (const base::Error&) {
      return std::nullopt;
    }
  }
  try {
    train::RunConfig begun;
    if (!from.empty())
      train::settings_of(begun).load_toml(train::config_of(checkpoint::Reader(from, {.storage = &options.storage_of(from)})), resume);
    else if (fs::exists(run_dir / "config.toml")) begun = train::read_config((run_dir / "config.toml").string(), {});
    else return std::nullopt;
    return begun.train.gemm_backend == "auto" ? "default" : begun.train.gemm_backend;
  } catch (const base::Error& failure) {
    base::log_warning("the library that this run began with is not known ({}); matmuls go through the default one", failure.what());
    return "default";
  }
}

// By the matmuls of a step of the first phase.
std::string fastest(const train::RunConfig& config, const mesh::Mesh& mesh, const Company& company) {
  const auto dtype = layers::dtype_name(config.train.precision);
  const auto device = device::device_named(config.train.device).str();
  const auto profile = plan::cached_profile(plan::describe_machine(at::get_num_threads(), company.side_by_side(), device),
                                            base::environment().cache_folder());
  if (!profile || profile->libraries.empty() || !knows(*profile, dtype)) return "default";
  const auto model = models::create_model(config.model, train::layout_of(mesh, config.parallel, config.model));
  plan::PipelineFacts pipelines;
  const auto shape = plan::shape_of(config, train::lay_out_phases(config).front(), mesh, pipelines);
  const auto choice = plan::choose_library(*profile, dtype, [&](const plan::MachineProfile& one) {
    const auto time = plan::predict_step_time(*model, shape, one);
    return time.gemm_s + time.head_s;
  });
  for (const auto& time : choice.times)
    if (time.library == choice.library && choice.library != "default")
      base::log_info(
          "matmuls go through {}: {:.0f} % faster than the default library for this model, as measured (train.gemm_backend = \"default\" "
          "goes "
          "without)",
          choice.library, 100 * time.gain);
  return choice.library;
}

// Ranks that compute the same layers, routers among them, must round alike, and with "tuned" each chooses for itself.
bool ranks_repeat_layers(const train::RunConfig& config) { return config.parallel.tensor > 1 && !config.parallel.sequence_parallel; }

// The file of a rank's choices below its run's directory; brought there from beside the checkpoint that the run goes on from.
fs::path file_of_choices(const fs::path& run_dir, const std::string& resume, int rank) {
  const auto name = fs::path("gemm_algorithms") / fmt::format("rank_{:05}.json", rank);
  const auto file = run_dir / name;
  if (resume == "auto" || resume == "never" || fs::exists(file)) return file;
  const auto before = fs::path(resume).parent_path().parent_path() / name;  // of <run>/checkpoints/step_00000100
  try {
    if (fs::exists(before)) {
      base::make_directories(file.parent_path());
      base::write_file_atomically(file, base::read_file(before));
      return file;
    }
    base::log_warning("no {} with the algorithms that GEMMs had before: they are chosen anew, and results may differ in the last digits",
                      before.string());
  } catch (const base::Error& failure) {
    base::log_warning("{}; algorithms of GEMMs are chosen anew, and results may differ in the last digits", failure.what());
  }
  return file;
}

}  // namespace

void choose_gemm_backend(train::RunConfig& config, const train::RunOptions& options, const mesh::Mesh& mesh, at::Device device,
                         const Company& company) {
  auto& name = config.train.gemm_backend;
  const auto dtype = layers::precision_named(config.train.precision).dtype;
  const bool is_free = name == "auto";
  bool is_kept = false;
  if (is_free && company.is_first()) {
    const auto before = begun_with(options);
    is_kept = before.has_value();
    name = before ? *before : fastest(config, mesh, company);
    if (name == "tuned" && !before && ranks_repeat_layers(config)) name = "default";
    try {
      kernels::gemm_backend_named(name, dtype, device);
    } catch (const base::ConfigError& missing) {
      base::log_warning("{}; this run began with it, and from here on its numbers differ in the last digits", missing.what());
      name = "default";
    }
  }
  if (is_free && company.world) name = comm::broadcast_text(company.world->everyone(), name, 0);
  const auto library = kernels::gemm_backend_named(name, dtype, device);
  if (library == kernels::GemmBackend::tuned) {
    if (ranks_repeat_layers(config))
      throw base::ConfigError(
          "train.gemm_backend = \"tuned\": without sequence parallelism tensor-parallel ranks repeat layers, which must round alike, "
          "and each would choose its own algorithms; set parallel.sequence_parallel = true or train.gemm_backend = \"default\"");
    kernels::keep_gemm_choices(device, file_of_choices(options.run_dir, options.resume, mesh.rank()),
                               kernels::gemm_choices_file(base::environment().cache_folder(), device), company.local_rank == 0);
  }
  kernels::use_gemm_backend(library);
  if (company.is_first() && name != "default" && (is_kept || !is_free))
    base::log_info("matmuls go through {}, {}", name, is_kept ? "as from the start of this run" : "as train.gemm_backend says");
}

}  // namespace ingot::bench
