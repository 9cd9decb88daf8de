#include "plan/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "layers/cost.h"
#include "plan/cluster_profile.h"

namespace ingot::plan {

std::string format_step_time(double seconds) {
  return seconds < 100 ? fmt::format("{:.1f} ms", seconds * 1e3) : base::format_duration(seconds);
}

namespace {

using base::format_bytes;
using base::format_count;

const char* name_of(models::Recompute recompute) {
  return recompute == models::Recompute::none ? "none" : recompute == models::Recompute::selective ? "selective" : "full";
}

}  // namespace

PlanMaker::PlanMaker(const MachineProfile& profile, const std::string& precision, int64_t world) {
  const auto dtype = layers::dtype_name(precision);
  peak_flops_ = profile.peak_gemm(dtype);
  if (precision == "fp64") return;  // runs in fp64 are for tests: the machine is not measured for them
  if (world > 1) {
    try {
      communication_.emplace(cluster_of(profile, dtype, world, 0));
    } catch (const base::ProfileError&) {
      knows_communication_ = false;
    }
  }
  try {
    prices_.emplace(Rates(profile, dtype), communication_ ? communication_->transport() : Transport{});
  } catch (const base::ProfileError& unknown) {
    why_no_time_ = unknown.what();
  }
}

Plan PlanMaker::make(const models::Model& model, const models::Model& part, const RunShape& run, int64_t program_bytes,
                     int64_t device_memory_bytes) {
  Plan plan;
  plan.parameters = model.parameters().weight_elements();
  plan.active_parameters = model.active_elements();
  plan.tokens_per_step = run.batch * run.seq;
  plan.flops_per_token = model.training_flops_per_token(run.seq);
  plan.peak_flops = peak_flops_;
  plan.ranks_per_sequence = part.layout().tensor.size * part.layout().sequence.size * part.layout().stage.size;
  plan.knows_communication = knows_communication_;
  plan.why_no_time = why_no_time_;
  plan.memory = predict_memory(part, run, program_bytes, prices_ ? prices_->traces() : untimed_);
  plan.device_memory_bytes = device_memory_bytes;
  if (!prices_) return plan;
  plan.time = predict_step_time(part, run, *prices_);
  if (communication_) plan.communication = communication_->predict(part, run, plan.time, *prices_);
  return plan;
}

std::string describe(const Plan& plan, const models::Model& model, const RunShape& run, const MachineProfile& profile) {
  const auto& c = model.config();
  const auto& m = plan.memory;
  const auto& t = plan.time;
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) { text += fmt::format("  {:<26}{}\n", label, value); };
  text += fmt::format("model: {} with {} layers, hidden {}, vocabulary {}\n", c.family, c.layers, c.hidden, c.vocab_size);
  line("parameters", fmt::format("{} ({})", format_count(static_cast<double>(plan.parameters)), plan.parameters));
  line("active, no embeddings", format_count(static_cast<double>(plan.active_parameters)));
  line("FLOPs per token", format_count(plan.flops_per_token) + ", forward and backward");
  text += fmt::format("step: {} sequences of {} tokens ({} tokens), {} at a time, {}, recompute {}, {}\n", run.batch, run.seq,
                      plan.tokens_per_step, run.sequences_at_once(), run.precision, name_of(run.recompute), run.optimizer.name);
  text += "memory, predicted\n";
  line("weights", format_bytes(m.weights_bytes));
  line("gradients", format_bytes(m.gradients_bytes));
  line("masters and moments", format_bytes(m.optimizer_bytes));
  line("forward and backward", format_bytes(m.forward_backward_bytes) + ", activations and work areas");
  line("update", format_bytes(m.update_bytes));
  if (m.validation_bytes > 0) line("validation", format_bytes(m.validation_bytes));
  line("program", format_bytes(m.program_bytes));
  if (m.gemm_kernels_bytes > 0) line("kernels of its GEMMs", format_bytes(m.gemm_kernels_bytes));
  if (m.reserve_bytes > 0) line("allocator's reserve", format_bytes(m.reserve_bytes));
  if (m.graphs_bytes > 0) line("kept by graphs of passes", format_bytes(m.graphs_bytes));
  if (m.shared_bytes > 0) line("shared with other ranks", format_bytes(m.shared_bytes));
  if (m.checkpoint_bytes > 0) line("checkpoint under way", format_bytes(m.checkpoint_bytes));
  const bool fits = plan.device_memory_bytes <= 0 || m.total_bytes() <= plan.device_memory_bytes;
  line("peak", fmt::format("{} in {}, of {} there{}", format_bytes(m.total_bytes()), m.peak_phase(), format_bytes(plan.device_memory_bytes),
                           fits ? "" : ": it does not fit"));
  if (m.host_bytes > 0) line("host", format_bytes(m.host_bytes) + ", of its pinned memory beside the GPU");
  if (!plan.has_time()) return text + "step time: not predicted, the profile has no measurements of " + run.precision + "\n";
  text += fmt::format("step time, predicted from the profile of {} ({}, {} threads, {})\n", profile.host, profile.cpu, profile.threads,
                      profile.date);
  line("matmul", format_step_time(t.gemm_s));
  line("attention", format_step_time(t.attention_s));
  line("head and loss", format_step_time(t.head_s));
  line("other kernels", format_step_time(t.kernels_s));
  if (t.recompute_s > 0) line("recomputation", format_step_time(t.recompute_s));
  if (t.waiting_s > 0) line("waiting for other stages", format_step_time(t.waiting_s));
  line("optimizer", format_step_time(t.optimizer_s));
  if (t.between_s > 0) line("between operations", format_step_time(t.between_s));
  if (t.uneven_s > 0) line("waiting for slower ranks", format_step_time(t.uneven_s));
  const auto& w = plan.communication;
  for (const auto& [label, seconds] : {std::pair{"communication in blocks", w.blocks_s},
                                       {"communication of gradients", w.gradients_s},
                                       {"communication of experts", w.experts_s},
                                       {"communication of stages", w.stages_s},
                                       {"communication of the update", w.update_s}})
    if (seconds > 0) line(label, format_step_time(seconds));
  if (!plan.knows_communication) line("communication", "count as free: this machine's were not measured; ingot bench all does that");
  line("step",
       fmt::format("{}, {} tokens/s, {:.1f} % MFU", format_step_time(plan.step_s()), format_count(plan.tokens_per_s()), 100 * plan.mfu()));
  return text + layers::kMfuConvention + "\n";
}

nlohmann::ordered_json to_json(const StepTime& time, const StepCommunication& communication) {
  return {{"matmul", time.gemm_s * 1e3},
          {"attention", time.attention_s * 1e3},
          {"head", time.head_s * 1e3},
          {"kernels", time.kernels_s * 1e3},
          {"recompute", time.recompute_s * 1e3},
          {"waiting", time.waiting_s * 1e3},
          {"optimizer", time.optimizer_s * 1e3},
          {"between", time.between_s * 1e3},
          {"uneven", time.uneven_s * 1e3},
          {"communication_blocks", communication.blocks_s * 1e3},
          {"communication_gradients", communication.gradients_s * 1e3},
          {"communication_experts", communication.experts_s * 1e3},
          {"communication_stages", communication.stages_s * 1e3},
          {"communication_update", communication.update_s * 1e3},
          {"total", (time.total_s() + communication.total_s()) * 1e3}};
}

nlohmann::ordered_json to_json(const Plan& plan, const models::Model& model, const RunShape& run, const MachineProfile& profile) {
  const auto& m = plan.memory;
  const auto& t = plan.time;
  nlohmann::ordered_json json = {{"family", model.config().family},
                                 {"parameters", plan.parameters},
                                 {"active_parameters", plan.active_parameters},
                                 {"flops_per_token", plan.flops_per_token},
                                 {"tokens_per_step", plan.tokens_per_step},
                                 {"batch_size", run.batch},
                                 {"microbatch_size", run.sequences_at_once()},
                                 {"seq_len", run.seq},
                                 {"precision", run.precision},
                                 {"recompute", name_of(run.recompute)},
                                 {"optimizer", run.optimizer.name},
                                 {"mfu_convention", layers::kMfuConvention},
                                 {"memory_bytes", to_json(m)},
                                 {"profile",
                                  {{"host", profile.host},
                                   {"cpu", profile.cpu},
                                   {"device", profile.device},
                                   {"threads", profile.threads},
                                   {"date", profile.date},
                                   {"quick", profile.quick}}}};
  json["memory_bytes"]["device"] = plan.device_memory_bytes;
  if (!plan.has_time()) {
    json["step_ms"] = nullptr;
    return json;
  }
  json["step_ms"] = to_json(t, plan.communication);
  json["tokens_per_s"] = plan.tokens_per_s();
  json["gemm_peak_flops_per_s"] = plan.peak_flops;
  json["mfu"] = plan.mfu();
  return json;
}

}  // namespace ingot::plan
