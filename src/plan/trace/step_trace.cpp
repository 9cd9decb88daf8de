#include "plan/trace/step_trace.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "comm/recording_fabric.h"
#include "device/tracer.h"
#include "mesh/groups.h"
#include "plan/trace/update_trace.h"
#include "train/check_layout.h"
#include "train/parallel_model.h"
#include "train/phases.h"

namespace ingot::plan {
namespace {

using mesh::Axis;

const train::Phase& phase_of(const std::vector<train::Phase>& phases, int64_t number) {
  if (number < 0 || number >= static_cast<int64_t>(phases.size()))
    throw base::ConfigError("the run has {} phase{}, numbered from 0; there is no phase {}", phases.size(), phases.size() == 1 ? "" : "s",
                            number);
  return phases[static_cast<size_t>(number)];
}

train::TrainingSetup setup_of(const TraceRequest& request, const train::Phase& phase, at::Device device) {
  const auto& config = request.config;
  train::TrainingSetup setup{.model = config.model,
                             .optimizer = phase.optimizer,
                             .parallel = config.parallel,
                             .precision = config.train.precision,
                             .device = device,
                             .recompute = models::recompute_from_name(config.train.recompute),
                             .offloads_activations = config.train.offload == "activations",
                             .microbatch = config.train.microbatch_size,
                             .routing_losses = train::routing_losses_of(config.train),
                             .z_loss = config.train.z_loss,
                             .mtp_loss = config.train.mtp_loss,
                             .preferences = {config.train.dpo_beta, config.train.dpo_label_smoothing},
                             .seed = static_cast<uint64_t>(config.train.seed),
                             .is_reproducible = config.train.reproducible};
  setup.model.rope_base = phase.rope_base;
  if (setup.parallel.bucket_mib <= 0) setup.parallel.bucket_mib = traced_bucket_mib(0, request.target);
  return setup;
}

data::Batch batch_of(const train::Phase& phase, const mesh::Mesh& mesh) {
  const auto [first, rows] = data::share_of(0, phase.batch_size, mesh.position(Axis::data), mesh.size(Axis::data));
  const auto tokens = static_cast<size_t>(rows * phase.data.seq_len);
  data::Batch batch{.batch = rows, .seq = phase.data.seq_len};
  batch.inputs.assign(tokens, 0);
  batch.targets.assign(tokens, 0);
  batch.document_starts.assign(tokens, 0);
  if (phase.data.packing == "pairs") {  // one in each row
    batch.pair_starts.assign(tokens, 0);
    batch.reference_margins.assign(tokens, std::nan(""));
    for (size_t at = 0; at < tokens; at += static_cast<size_t>(phase.data.seq_len)) batch.reference_margins[at] = 0;
  }
  // Where documents see themselves alone, each row has a border: masks and positions are made for it.
  if (phase.data.reset_documents && phase.data.seq_len > 1)
    for (int64_t row = 1; row <= rows; ++row)
      batch.document_starts[static_cast<size_t>(row * phase.data.seq_len - 1)] = static_cast<int32_t>(phase.data.seq_len - 1);
  return batch;
}

std::string layout_of(const mesh::Mesh& mesh) {
  std::vector<std::string> axes;
  for (const Axis axis : {Axis::pipeline, Axis::data, Axis::context, Axis::tensor, Axis::tensor_sequence, Axis::expert})
    if (mesh.size(axis) > 1) axes.push_back(fmt::format("{} {}", mesh::name_of(axis), mesh.size(axis)));
  return axes.empty() ? "one rank" : base::join(axes, " x ");
}

// "forward/layer 12/attention" -> "layer/attention"
std::string activation_name(const std::string& path) {
  std::string name;
  for (const auto& part : base::split(path, '/')) {
    constexpr std::string_view kNode = "Function";  // an autograd node: the scope around it has the better name, if there is one
    const bool is_node = part.ends_with(kNode);
    if (part == "forward" || (is_node && !name.empty() && name != "layer")) continue;
    if (!name.empty()) name += '/';
    name += part.starts_with("layer ") ? "layer" : is_node ? part.substr(0, part.size() - kNode.size()) : part;
  }
  return name.empty() ? "other" : name;
}

}  // namespace

const char* name_of(StepPart part) {
  switch (part) {
    case StepPart::data: return "data";
    case StepPart::forward: return "forward";
    case StepPart::backward: return "backward";
    case StepPart::optimizer: return "optimizer";
    case StepPart::other: return "other";
  }
  return "";
}

StepPart StepTrace::part_of(int32_t scope) const {
  if (trace.is_backward(scope)) return StepPart::backward;
  const auto is_in = [&](const char* name) { return trace.enclosing(scope, name) >= 0; };
  if (is_in("backward")) return StepPart::backward;
  if (is_in("forward")) return StepPart::forward;
  if (is_in("optimizer") || is_in("gradient_norm")) return StepPart::optimizer;
  return is_in("data") ? StepPart::data : StepPart::other;
}

std::map<std::string, int64_t> StepTrace::peak_by_name() const {
  std::map<int32_t, int64_t> by_scope;
  for (const size_t i : trace.alive_at(trace.peak_position)) by_scope[trace.allocations[i].scope] += trace.allocations[i].bytes;
  std::map<std::string, int64_t> names;
  for (const auto& [scope, bytes] : by_scope) {
    const auto is_in = [&](const char* name) { return trace.enclosing(scope, name) >= 0; };
    if (is_in("weights")) names["weights"] += bytes;
    else if (is_in("gradients")) names["gradients"] += bytes;
    else if (part_of(scope) == StepPart::optimizer) names["optimizer"] += bytes;
    else if (part_of(scope) == StepPart::backward) names["backward"] += bytes;
    else names[activation_name(trace.path_of(scope))] += bytes;
  }
  if (trace.before_bytes > 0) names["before the trace"] = trace.before_bytes;
  return names;
}

StepTrace trace_step(const TraceRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  const auto phases = train::lay_out_phases(request.config);
  const auto& phase = phase_of(phases, request.phase);
  if (request.rank < 0 || request.rank >= request.world)
    throw base::ConfigError("there is no rank {} among {} ranks", request.rank, request.world);
  StepTrace result;
  const device::CountingDevice counting(request.target, request.expert_load);
  const auto world = comm::recorded_world(request.rank, request.world);
  mesh::Groups groups(*world, request.config.parallel);
  train::check_layout(request.config, groups.mesh());
  result.layout = layout_of(groups.mesh());
  device::Tracer tracer(counting.device());
  {
    tracer.record_operations(false);
    train::ParallelModel model(setup_of(request, phase, counting.device()), groups);
    const auto batch = batch_of(phase, groups.mesh());
    model.step().run(batch, phase.peak_lr);  // what is allocated once comes to be
    result.parameters = model.model().parameters().weight_elements();
    result.tokens = batch.batch * batch.seq / groups.mesh().size(Axis::context) / groups.mesh().size(Axis::tensor_sequence);
    result.rest_bytes = device::memory_use(counting.device()).allocated_bytes;
    tracer.record_operations(true);
    tracer.restart_peak();
    model.step().run(batch, phase.peak_lr);
    result.trace = tracer.finish();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace ingot::plan
