#include "plan/run/planner.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/process.h"
#include "data/indexed_dataset.h"
#include "plan/cluster_profile.h"
#include "plan/run/loading.h"
#include "plan/run/program_memory.h"
#include "train/check_layout.h"
#include "train/parallel_model.h"

namespace ingot::plan {

schedule::Cluster cluster_with(const std::string& file, int64_t devices, double memory_gb) {
  auto cluster = schedule::read_cluster(file);
  if (memory_gb > 0) cluster.memory_bytes = memory_gb * 1e9;
  if (devices > cluster.devices_per_node) {
    if (devices % cluster.devices_per_node != 0)
      throw base::UsageError("--devices {}: {} has nodes of {}; say a multiple", devices, cluster.name, cluster.devices_per_node);
    if (cluster.network.bytes_per_s == 0) throw base::UsageError("--devices {}: {} has one node and no network", devices, cluster.name);
    cluster.nodes = devices / cluster.devices_per_node;
  }
  return cluster;
}

PlanTarget target_of(const schedule::Cluster& cluster, int64_t devices, const std::string& precision) {
  return {cluster, devices, profile_of(cluster, precision), kGpuProgramBytes, false};
}

Planner::Planner(train::RunConfig config, PlanTarget target, Topology topology)
    : config_(std::move(config)),
      target_(std::move(target)),
      communication_(target_.cluster, topology),
      prices_(Rates(target_.profile, layers::dtype_name(config_.train.precision)), communication_.transport()) {
  train::check(config_);
  phases_ = train::lay_out_phases(config_);
  model_ = models::create_model(config_.model);
  flops_per_token_ = model_->training_flops_per_token(phases_.front().data.seq_len);
  for (const auto& phase : phases_) documents_.push_back(target_.is_here ? documents_of(phase) : std::vector<int64_t>{});
}

void Planner::check(const Choice& choice) {
  auto config = config_;
  config.parallel = choice.parallel;
  config.train.microbatch_size = choice.microbatch;
  train::check_layout(config, mesh_of_stage(choice.parallel, 0, choice.ranks()));
  parts_.clear();
  present_.clear();
  part(choice, 0);
}

bool Planner::is_possible(const Choice& choice) {
  try {
    check(choice);
    return true;
  } catch (const base::ConfigError&) {
    return false;
  }
}

RunShape Planner::shape(const Choice& choice, int stage, size_t phase) {
  auto config = config_;
  config.parallel = choice.parallel;
  config.train.microbatch_size = choice.microbatch;
  auto shape = shape_of(config, phases_[phase], mesh_of_stage(choice.parallel, stage, choice.ranks()), pipelines_);
  shape.recompute = choice.recompute;
  shape.is_here = target_.is_here;
  shape.expert_load = expert_load_;
  shape.documents = documents_[phase];
  shape.target = !target_.is_here ? target_of(cluster()) : target_.profile.device == "cpu" ? device::Target::cpu : device::Target::gpu;
  if (!target_.is_here) {
    shape.threads = 1;
    shape.bucket_bytes = std::max<int64_t>(shape.bucket_bytes, int64_t{32} << 20);
    return shape;
  }
  shape.threads = target_.profile.threads;
  if (target_.profile.device != "cpu") return shape;
  shape.ranks_per_core = std::max(1.0, static_cast<double>(shape.world * shape.threads) / base::usable_cores());
  add_host_memory(config, mesh_of_stage(choice.parallel, stage, choice.ranks()), part(choice, stage).layout(), shape);
  return shape;
}

int64_t Planner::saved_bytes() {
  return predict_saved_bytes(*model_, {.precision = config_.train.precision, .optimizer = phases_.front().optimizer}, prices_.traces());
}

RunPlan Planner::run_plan(const Choice& choice, const std::vector<double>& step_s) {
  RunPlan run{.save_every = config_.checkpoint.every, .devices = choice.ranks()};
  for (size_t i = 0; i < phases_.size(); ++i) {
    run.steps += phases_[i].steps;
    run.step_s += static_cast<double>(phases_[i].steps) * step_s[i];
  }
  run.step_s /= static_cast<double>(std::max<int64_t>(1, run.steps));
  auto shape = this->shape(choice, 0);
  shape.validation_batch = config_.train.validation_every > 0 ? std::max<int64_t>(1, config_.train.batch_size / shape.replicas) : 0;
  if (shape.validation_batch > 0) {
    run.validations = (run.steps + config_.train.validation_every - 1) / config_.train.validation_every;
    run.validation_s = static_cast<double>(config_.train.validation_batches) * predict_validation_s(part(choice, 0), shape, prices_);
  }
  if (!target_.is_here) return run;
  const auto& profile = target_.profile;
  if (profile.device == "cpu") run.save_work_s = save_work_s(static_cast<double>(saved_bytes()), profile);
  run.save_write_s = save_write_s(static_cast<double>(saved_bytes()), profile);
  const LoadingShape data{.batch = phases_.front().batch_size,
                          .seq = phases_.front().data.seq_len,
                          .token_bytes = data::size_bytes(data::token_type_for(config_.model.vocab_size))};
  // A sample begins and ends within a page.
  run.load_s = random_reads_s(pages_per_iteration(data, scatter_of(data, 1)), profile);
  return run;
}

Outcome Planner::identity(const Choice& choice) {
  auto config = config_;
  config.parallel = choice.parallel;
  return identity_of(config, mesh_of_stage(choice.parallel, 0, choice.ranks()), *model_, shape(choice, 0), target_.profile);
}

const models::Model& Planner::part(const Choice& choice, int stage) {
  const auto& p = choice.parallel;
  const auto key = fmt::format("{} {} {} {} {} {} {} {}", p.pipeline, p.data, p.context, p.context_method, p.tensor, p.tensor_sequence,
                               p.expert, p.expert_tensor);
  if (key != present_) {
    parts_.clear();
    present_ = key;
  }
  auto& known = parts_[stage];
  if (!known)
    known = models::create_model(config_.model, train::layout_of(mesh_of_stage(choice.parallel, stage, choice.ranks()), p, config_.model));
  return *known;
}

// Passes without what ZeRO gathers or sums in them, which all stages of ZeRO and all pipelines share.
double Planner::least_s(const Choice& choice) {
  auto bare = choice;
  bare.recompute = models::Recompute::none;
  double most = 0;
  for (const int stage : stages_like_all(choice.parallel.pipeline)) {
    auto run = shape(bare, stage);
    run.zero = std::min<int64_t>(run.zero, 1);
    const auto pass = prices_.of(part(choice, stage), run.pass_of(part(choice, stage)), run.documents_of(part(choice, stage)));
    const double blocks_s = pass.forward.blocks_s + pass.forward.experts_s + pass.backward.blocks_s + pass.backward.experts_s;
    const double passes_s = pass.forward.compute_s() + pass.backward.compute_s() + blocks_s;
    most = std::max(most, passes_s * static_cast<double>(run.microbatches()) / (1 - run.bubble));
  }
  return most;
}

int64_t Planner::least_bytes(const Choice& choice) {
  int64_t most = 0;
  for (const int stage : stages_like_all(choice.parallel.pipeline))
    most = std::max(most, plan::least_bytes(part(choice, stage), shape(choice, stage), prices_.traces()));
  return most + target_.program_bytes;
}

StepMemory Planner::memory(const Choice& choice, int stage) {
  StepMemory most;
  for (size_t phase = 0; phase < phases_.size(); ++phase) {
    const auto own = predict_memory(part(choice, stage), shape(choice, stage, phase), target_.program_bytes, prices_.traces());
    if (own.total_bytes() > most.total_bytes()) most = own;
  }
  return most;
}

StepMemory Planner::memory(const Choice& choice) {
  StepMemory most;
  for (const int stage : stages_like_all(choice.parallel.pipeline)) {
    const auto own = memory(choice, stage);
    if (own.total_bytes() > most.total_bytes()) most = own;
  }
  return most;
}

Judged Planner::judge(const Choice& choice, const StepMemory& memory, size_t phase) {
  Judged judged{.choice = choice, .memory = memory, .time = {}, .communication = {}};
  for (const int stage : stages_like_all(choice.parallel.pipeline)) {
    const auto run = shape(choice, stage, phase);
    const auto time = predict_step_time(part(choice, stage), run, prices_);
    if (time.total_s() <= judged.time.total_s()) continue;
    judged.time = time;
    judged.bubble = run.bubble;
    judged.communication = communication_.predict(part(choice, stage), run, time, prices_);
  }
  return judged;
}

SimulatedStep Planner::simulated(const Choice& choice) {
  const auto& p = choice.parallel;
  const auto stages = static_cast<int>(p.pipeline);
  const auto first = shape(choice, 0);
  SimulatedStep step{.pipeline = {parallel::schedule_from_name(p.pipeline_schedule), stages, static_cast<int>(p.pipeline_chunks),
                                  static_cast<int>(first.microbatches())},
                     .zero = choice.ranks() == p.pipeline * p.tensor ? 0 : p.zero,
                     .communication_hides = !cluster().cores_communicate};
  // Replicas that share experts, or whose weights are gathered for every layer, keep step with each other.
  const int64_t together = p.zero >= 3 ? p.data : std::max<int64_t>(1, p.expert * p.expert_tensor / (p.tensor * p.context));
  step.replicas = p.data / together;
  step.unit_ranks = choice.ranks() / (stages * step.replicas);
  const auto known = stages_like_all(choice.parallel.pipeline);
  for (int stage = 0; stage < stages; ++stage) {
    const int like = stage + 1 == stages ? known.back() : known[std::min<size_t>(static_cast<size_t>(stage), known.size() > 1 ? 1 : 0)];
    if (stage > 1 && stage + 1 < stages) {
      step.stages.push_back(step.stages.back());
      continue;
    }
    const auto run = shape(choice, like);
    const auto& own = part(choice, like);
    const auto time = predict_step_time(own, run, prices_);
    const auto communication = communication_.predict(own, run, time, prices_);
    const auto traffic = communication_.traffic_of(own, run, prices_.traces());
    const auto handover = stages > 1 ? communication_.handover(own, run) : schedule::Duration(0);
    const auto microbatches = static_cast<double>(run.microbatches());
    // Passes are a third forward; what is repeated goes before backward. Messages within blocks: half of them each way.
    const double once_s = (time.passes_s() - time.recompute_s + time.between_s + time.uneven_s) / microbatches,
                 talk_s = (communication.blocks_s + communication.experts_s) / microbatches;
    step.stages.push_back({.forward_s = once_s / 3 + talk_s / 2,
                           .backward_s = once_s * 2 / 3 + talk_s / 2 +
                                         (time.recompute_s + communication_.contention_s(own, run, time, prices_.traces())) / microbatches,
                           .optimizer_s = time.optimizer_s + communication.update_s,
                           .sum_gradients_s = traffic.sum_gradients_s,
                           .gather_weights_s = traffic.gather_weights_s,
                           .handover_s = handover.busy_s,
                           .handover_latency_s = handover.latency_s,
                           .segments = static_cast<int>(std::max<int64_t>(1, config_.model.layers / stages))});
  }
  return first.ranks_per_core > 1 ? on_shared_cores(std::move(step), first.ranks_per_core) : step;
}

SearchResult Planner::search(int64_t devices, int64_t memory_bytes, const std::function<void(int64_t, int64_t)>& on_mesh) {
  const auto& m = config_.model;
  bool mixes_linearly = false;
  for (int64_t layer = 0; layer < m.layers; ++layer) mixes_linearly = mixes_linearly || model_->mixes_linearly(layer);
  const SearchSpace space{
      .devices = devices,
      .devices_per_node = cluster().devices_per_node,
      .layers = m.layers,
      .heads = m.heads,
      .experts = m.experts,
      .has_experts = model_->has_experts(),
      .mixes_linearly = mixes_linearly,
      .batch = phases_.front().batch_size,
      .seq = phases_.front().data.seq_len,
      .memory_bytes = memory_bytes,
      .least_compute_s = flops_per_token() * static_cast<double>(tokens_per_step()) / (peak_flops() * static_cast<double>(devices))};
  const Judge judge{[this](const Choice& c) { return is_possible(c); }, [this](const Choice& c) { return least_s(c); },
                    [this](const Choice& c) { return least_bytes(c); }, [this](const Choice& c) { return memory(c); },
                    [this](const Choice& c, const StepMemory& memory) { return this->judge(c, memory); }};
  return plan::search(space, judge, on_mesh);
}

Choice Planner::configured(int64_t devices) const {
  Choice choice{.parallel = config_.parallel,
                .microbatch = config_.train.microbatch_size,
                .recompute = models::recompute_from_name(config_.train.recompute)};
  auto& p = choice.parallel;
  const int64_t others = p.pipeline * p.context * p.tensor * p.tensor_sequence;
  p.data = mesh::Mesh(p, 0, static_cast<int>(devices)).size(mesh::Axis::data);
  if (choice.microbatch == 0) {
    int64_t batch = phases_.front().batch_size;  // of every phase it must be a part
    for (const auto& phase : phases_) batch = std::gcd(batch, phase.batch_size);
    choice.microbatch = std::max<int64_t>(1, batch / std::max<int64_t>(1, devices / others));
  }
  return choice;
}

double Planner::mfu(const Judged& judged) const {
  return flops_per_token() * static_cast<double>(tokens_per_step()) /
         (judged.step_s() * peak_flops() * static_cast<double>(judged.choice.ranks()));
}

}  // namespace ingot::plan
