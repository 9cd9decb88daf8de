#include "cli/planner.h"

#include <algorithm>

#include "base/error.h"
#include "plan/cluster_profile.h"
#include "train/check_layout.h"
#include "train/parallel_model.h"
#include "train/run_checkpoints.h"

namespace ingot::cli {

using plan::Choice;
using plan::Judged;

Planner::Planner(train::RunConfig config, schedule::Cluster cluster, int64_t program_bytes)
    : config_(std::move(config)),
      program_bytes_(program_bytes),
      messages_(std::move(cluster)),
      profile_(plan::profile_of(messages_.cluster(), config_.train.precision)),
      rates_(profile_, config_.train.precision) {
  train::check(config_);
  phase_ = train::lay_out_phases(config_).front();
  model_ = models::create_model(config_.model);
}

mesh::Mesh Planner::mesh_of(const Choice& choice, int stage) const {
  const auto world = static_cast<int>(choice.ranks());
  return {choice.parallel, stage * (world / static_cast<int>(choice.parallel.pipeline)), world};
}

void Planner::check(const Choice& choice) {
  auto config = config_;
  config.parallel = choice.parallel;
  config.train.microbatch_size = choice.microbatch;
  train::check_layout(config, mesh_of(choice, 0));
  parts_.clear();
  present_.clear();
  part(choice, 0);
}

bool Planner::is_possible(const Choice& choice) {
  try {
    check(choice);
    messages_.predict(part(choice, 0), shape(choice, 0), {});  // whose schedules ask for divisors of their own
    return true;
  } catch (const base::ConfigError&) {
    return false;
  }
}

plan::RunShape Planner::shape(const Choice& choice, int stage) {
  auto config = config_;
  config.parallel = choice.parallel;
  config.train.microbatch_size = choice.microbatch;
  auto shape = shape_of(config, phase_, mesh_of(choice, stage), pipelines_);
  shape.recompute = choice.recompute;
  shape.threads = 1;
  shape.is_here = false;
  shape.bucket_bytes = std::max<int64_t>(shape.bucket_bytes, int64_t{32} << 20);
  return shape;
}

const models::Model& Planner::part(const Choice& choice, int stage) {
  const auto& p = choice.parallel;
  const auto key = fmt::format("{} {} {} {} {} {} {} {}", p.pipeline, p.data, p.sequence, p.sequence_method, p.tensor, p.tensor_sequence,
                               p.expert, p.expert_tensor);
  if (key != present_) {
    parts_.clear();
    present_ = key;
  }
  auto& known = parts_[stage];
  if (!known) known = models::create_model(config_.model, train::layout_of(mesh_of(choice, stage), p, config_.model));
  return *known;
}

std::vector<int> Planner::stages_of(const Choice& choice) const {
  const auto count = static_cast<int>(choice.parallel.pipeline);
  if (count == 1) return {0};
  if (count == 2) return {0, 1};
  return {0, 1, count - 1};
}

int64_t Planner::state_bytes(const Choice& choice) {
  int64_t most = 0;
  for (const int stage : stages_of(choice)) most = std::max(most, plan::predict_state_bytes(part(choice, stage), shape(choice, stage)));
  return most + program_bytes_;
}

plan::StepMemory Planner::memory(const Choice& choice, int stage) {
  return plan::predict_memory(part(choice, stage), shape(choice, stage), program_bytes_);
}

plan::StepMemory Planner::memory(const Choice& choice) {
  plan::StepMemory most;
  for (const int stage : stages_of(choice)) {
    const auto own = memory(choice, stage);
    if (own.total_bytes() > most.total_bytes()) most = own;
  }
  return most;
}

Judged Planner::judge(const Choice& choice, const plan::StepMemory& memory) {
  Judged judged{.choice = choice, .memory = memory, .time = {}, .messages = {}};
  for (const int stage : stages_of(choice)) {
    const auto run = shape(choice, stage);
    const auto time = plan::predict_step_time(part(choice, stage), run, rates_);
    if (time.total_s() <= judged.time.total_s()) continue;
    judged.time = time;
    judged.bubble = run.bubble;
    judged.messages = messages_.predict(part(choice, stage), run, time);
  }
  return judged;
}

plan::SearchResult Planner::search(int64_t devices, int64_t memory_bytes, const std::function<void(int64_t, int64_t)>& on_mesh) {
  const auto& m = config_.model;
  const bool has_experts =
      std::any_of(model_->parameters().all().begin(), model_->parameters().all().end(), [](const auto& p) { return p->is_expert; });
  const plan::SearchSpace space{
      .devices = devices,
      .devices_per_node = cluster().devices_per_node,
      .layers = m.layers,
      .heads = m.heads,
      .experts = m.experts,
      .has_experts = has_experts,
      .mixes_linearly = m.family == "linear_llama",
      .batch = phase_.batch_size,
      .seq = phase_.data.seq_len,
      .memory_bytes = memory_bytes,
      .least_compute_s = flops_per_token() * static_cast<double>(tokens_per_step()) / (peak_flops() * static_cast<double>(devices))};
  const plan::Judge judge{[this](const Choice& c) { return is_possible(c); }, [this](const Choice& c) { return state_bytes(c); },
                          [this](const Choice& c) { return memory(c); },
                          [this](const Choice& c, const plan::StepMemory& memory) { return this->judge(c, memory); }};
  return plan::search(space, judge, on_mesh);
}

Choice Planner::configured(int64_t devices) const {
  Choice choice{.parallel = config_.parallel,
                .microbatch = config_.train.microbatch_size,
                .recompute = models::recompute_from_name(config_.train.recompute)};
  auto& p = choice.parallel;
  const int64_t others = p.pipeline * p.sequence * p.tensor * p.tensor_sequence;
  p.data = mesh::Mesh(p, 0, static_cast<int>(devices)).size(mesh::Axis::data);
  if (choice.microbatch == 0) choice.microbatch = std::max<int64_t>(1, phase_.batch_size / std::max<int64_t>(1, devices / others));
  return choice;
}

double Planner::mfu(const Judged& judged) const {
  return flops_per_token() * static_cast<double>(tokens_per_step()) /
         (judged.step_s() * peak_flops() * static_cast<double>(judged.choice.ranks()));
}

}  // namespace ingot::cli
