#include "cli/forecast.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "bench/suite.h"
#include "comm/rank_environment.h"
#include "device/device.h"
#include "kernels/cpu_memory.h"
#include "kernels/matmul.h"
#include "layers/dtype.h"
#include "train/parallel_model.h"
#include "train/run_checkpoints.h"
#include "train/step.h"

namespace ingot::cli {
namespace {

struct PhasePlan {
  std::string name;
  plan::RunShape shape;
  plan::Plan plan;
};

struct Forecasts {
  std::unique_ptr<models::Model> model, part;  // the whole, and what one rank holds
  plan::MachineProfile profile;
  std::vector<PhasePlan> phases;
};

// A plan for many ranks, made by one of them alone, does not know how many of them share a machine: then they do not share cores.
double ranks_per_core(const mesh::Mesh& mesh) {
  const auto ranks = comm::rank_environment(base::environment());
  if (ranks.size < mesh.world()) return 1;
  return std::max(1.0, static_cast<double>(ranks.local_size * at::get_num_threads()) / base::usable_cores());
}

// Runs in fp64 are for tests and are not predicted.
bool is_predicted(const train::RunConfig& config) { return config.train.precision != "fp64"; }

// For ranks that are not there: what ingot bench all measured of as many, else of one.
plan::MachineProfile profile_of_plan(const train::RunConfig& config, int64_t ranks) {
  if (!is_predicted(config)) return {};
  const auto device = device::device_named(config.train.device).str();
  const auto cache = base::environment().cache_folder();
  if (ranks > 1) {
    const bench::Company planned{.local_size = static_cast<int>(ranks)};
    if (auto known = plan::cached_profile(plan::describe_machine(at::get_num_threads(), planned.side_by_side(), device), cache))
      return *known;
  }
  return bench::profile_for(config.train.precision, device, cache);
}

Forecasts make_forecasts(const train::RunConfig& config, const mesh::Mesh& mesh, plan::MachineProfile profile, int64_t program) {
  train::check(config);
  Forecasts all{models::create_model(config.model),
                models::create_model(config.model, train::layout_of(mesh, config.parallel, config.model)),
                std::move(profile),
                {}};
  const auto device = device::device_named(config.train.device).str();
  PipelineFacts pipelines;
  for (const auto& phase : train::lay_out_phases(config)) {
    auto shape = shape_of(config, phase, mesh, pipelines);
    shape.documents = documents_of(phase);
    if (device == "cpu") shape.ranks_per_core = ranks_per_core(mesh);
    add_host_memory(config, mesh, all.part->layout(), shape);
    all.phases.push_back({phase.name, shape, plan::make_plan(*all.model, *all.part, shape, all.profile, program)});
  }
  return all;
}

}  // namespace

// One step of a very small model brings in the code that the run will use, and large products the libraries' packing buffers.
int64_t program_bytes(const train::RunConfig& config) {
  auto shape = config.model;
  shape.layers = 1, shape.hidden = 64, shape.vocab_size = 64, shape.heads = 2, shape.kv_heads = 2, shape.head_dim = 32, shape.ffn = 64;
  shape.experts = 2, shape.top_k = 1, shape.expert_ffn = 64, shape.router_hidden = 16, shape.rope_fraction = 0.5;
  shape.pad_id = shape.bos_id = shape.eos_id = -1;
  {
    const auto model = models::create_model(shape);
    model->allocate(layers::compute_dtype(config.train.precision));
    model->initialise(0);
    optim::Optimizer optimizer(model->parameters(), config.optimizer);
    data::Batch batch{.batch = 2, .seq = 64};
    batch.inputs.assign(128, 1), batch.targets.assign(128, 1), batch.document_starts.assign(128, 0);
    train::TrainingStep(*model, optimizer, models::recompute_from_name(config.train.recompute), 0).run(batch, 0);
    const auto narrow = layers::compute_dtype(config.train.precision);
    for (const int64_t inner : {256, 2048}) {
      at::mm(at::ones({2048, inner}), at::ones({inner, 2048}));
      if (narrow == at::kBFloat16) kernels::matmul(at::ones({2048, inner}, narrow), at::ones({inner, 2048}, narrow), at::kFloat);
    }
  }
  kernels::release_freed_memory();
  return base::resident_bytes();
}

const PipelineFacts::Facts& PipelineFacts::of(const parallel::PipelineShape& shape) {
  const std::array<int, 4> key = {static_cast<int>(shape.schedule), shape.stages, shape.chunks, shape.microbatches};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  parallel::check(shape);
  const auto timeline = parallel::simulate(shape, {});
  return known_[key] = {timeline.kept, timeline.bubble};
}

std::vector<int64_t> documents_of(const train::Phase& phase) {
  constexpr int64_t kRows = 16;
  if (!phase.data.reset_documents) return {};
  std::vector<int64_t> lengths;
  try {
    for (const auto& source : phase.data.sources)
      if (!std::filesystem::exists(data::dataset_prefix(source.path).string() + ".idx")) return {};
    const data::Loader loader(phase.data, data::Split::train);
    const auto batch = loader.batch(0, std::min(kRows, loader.samples()));
    for (int64_t row = 0; row < batch.batch; ++row) {
      const auto* starts = batch.document_starts.data() + row * batch.seq;
      int64_t from = 0;
      for (int64_t token = 1; token <= batch.seq; ++token) {
        if (token < batch.seq && starts[token] == starts[token - 1]) continue;
        lengths.push_back(token - from);
        from = token;
      }
    }
  } catch (const base::Error&) {
    return {};  // training says what is wrong with the data
  }
  return lengths;
}

plan::RunShape shape_of(const train::RunConfig& config, const train::Phase& phase, const mesh::Mesh& mesh, PipelineFacts& pipelines) {
  const int64_t ranks = mesh.size(mesh::Axis::data);
  const auto share = [&](int64_t batch) { return std::max<int64_t>(1, batch / ranks); };
  plan::RunShape shape{.batch = share(phase.batch_size),
                       .microbatch = config.train.microbatch_size,
                       .seq = phase.data.seq_len,
                       .precision = config.train.precision};
  shape.recompute = models::recompute_from_name(config.train.recompute);
  shape.optimizer = phase.optimizer;
  shape.validation_batch = config.train.validation_every > 0 && data::has_validation(phase.data) ? share(phase.batch_size) : 0;
  shape.threads = at::get_num_threads();
  shape.world = mesh.world();
  shape.target = device::is_cpu(device::device_named(config.train.device)) ? device::Target::cpu : device::Target::gpu;
  shape.replicas = ranks * mesh.size(mesh::Axis::context);
  shape.zero = config.parallel.zero;
  if (const int stages = mesh.size(mesh::Axis::pipeline); stages > 1) {
    const auto microbatches = static_cast<int>(std::max<int64_t>(1, shape.microbatches()));
    const parallel::PipelineShape pipeline{parallel::schedule_from_name(config.parallel.pipeline_schedule), stages,
                                           static_cast<int>(config.parallel.pipeline_chunks), microbatches};
    const auto& facts = pipelines.of(pipeline);
    shape.kept_microbatches = facts.kept[static_cast<size_t>(mesh.position(mesh::Axis::pipeline))] / pipeline.chunks;
    shape.bubble = facts.bubble;
    shape.weights_later = pipeline.schedule == parallel::Schedule::zero_bubble;
  }
  shape.bucket_bytes = static_cast<int64_t>(config.parallel.bucket_mib * (1 << 20));
  return shape;
}

void add_host_memory(const train::RunConfig& config, const mesh::Mesh& mesh, const parallel::Layout& layout, plan::RunShape& shape) {
  shape.saves_checkpoints = config.checkpoint.every > 0;
  shape.staging_limit_bytes = config.checkpoint.staging_mib << 20;
  shape.memory_staging_bytes = config.checkpoint.memory_every > 0 ? train::RunCheckpoints::kMemoryStagingBytes : 0;
  if (mesh.world() > 1 && device::device_named(config.train.device).is_cpu())
    shape.shared_bytes = train::shared_bytes(mesh, config.parallel, layout);
}

RunForecast forecast_of(const train::RunConfig& config, const mesh::Mesh& mesh, const bench::Company& company, int64_t program) {
  plan::MachineProfile profile;
  if (is_predicted(config))
    profile = bench::profile_for(config.train.precision, device::device_named(config.train.device).str(),
                                 base::environment().cache_folder(), company);
  if (!company.is_first()) {
    base::reset_peak_memory();
    return {};
  }
  const auto all = make_forecasts(config, mesh, profile, program);
  base::reset_peak_memory();
  RunForecast run;
  auto& forecast = run.numbers;
  const auto& first = all.phases.front().plan;
  forecast.gemm_flops = first.peak_flops;
  for (const auto& phase : all.phases) {
    forecast.step_ms.push_back(phase.plan.step_s() * 1e3);
    forecast.memory_bytes = std::max(forecast.memory_bytes, phase.plan.memory.total_bytes());
  }
  const auto record = known_outcomes();
  for (const auto& phase : all.phases) {
    PhaseForecast entry{phase.name, identity_of(config, mesh, *all.model, phase.shape, all.profile), {}};
    entry.calibration = calibrate(entry.outcome, phase.plan.step_s(), forecast.memory_bytes, record);
    forecast.calibrated_step_ms.push_back(entry.outcome.calibrated_step_s * 1e3);
    forecast.calibrated_memory_bytes = std::max(forecast.calibrated_memory_bytes, entry.outcome.calibrated_memory_bytes);
    run.phases.push_back(std::move(entry));
  }
  const int64_t machine = first.machine_memory_bytes;
  if (all.profile.device == "cpu" && forecast.memory_bytes > machine)
    base::log_warning(
        "this run is predicted to need {:.1f} GiB of memory and the machine has {:.1f}; a smaller train.microbatch_size or train.recompute "
        "= \"full\" needs less",
        static_cast<double>(forecast.memory_bytes) / (1 << 30), static_cast<double>(machine) / (1 << 30));
  return run;
}

std::string dry_run(const train::RunConfig& config, const mesh::Mesh& mesh, bool json) {
  const auto all = make_forecasts(config, mesh, profile_of_plan(config, mesh.world()), program_bytes(config));
  const auto record = known_outcomes();
  if (json) {
    auto phases = nlohmann::ordered_json::array();
    for (const auto& phase : all.phases) {
      nlohmann::ordered_json entry = {{"phase", phase.name}};
      entry.update(plan::to_json(phase.plan, *all.model, phase.shape, all.profile));
      auto outcome = identity_of(config, mesh, *all.model, phase.shape, all.profile);
      const auto calibration = calibrate(outcome, phase.plan.step_s(), phase.plan.memory.total_bytes(), record);
      entry["calibrated"] = plan::to_json(outcome, calibration, plan::last_like(outcome, record));
      phases.push_back(std::move(entry));
    }
    return nlohmann::ordered_json{{"phases", std::move(phases)}}.dump(2) + "\n";
  }
  std::string text;
  for (const auto& phase : all.phases) {
    if (all.phases.size() > 1) text += "phase '" + phase.name + "'\n";
    text += plan::describe(phase.plan, *all.model, phase.shape, all.profile);
    auto outcome = identity_of(config, mesh, *all.model, phase.shape, all.profile);
    const auto calibration = calibrate(outcome, phase.plan.step_s(), phase.plan.memory.total_bytes(), record);
    if (phase.plan.has_time()) text += plan::describe(outcome, calibration, plan::last_like(outcome, record));
  }
  return text;
}

}  // namespace ingot::cli
