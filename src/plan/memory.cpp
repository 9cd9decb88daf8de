#include "plan/memory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/page_pool.h"
#include "checkpoint/save/snapshot.h"
#include "kernels/cpu_matmul.h"
#include "kernels/cpu_memory.h"
#include "kernels/matmul.h"
#include "optim/update_rule.h"
#include "plan/work_names.h"

namespace ingot::plan {
namespace {

// Whole blocks of memory.
int64_t checkpoint_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  if (!run.saves_checkpoints && run.memory_staging_bytes == 0) return 0;
  const int64_t bytes = predict_saved_bytes(model, run, traces);
  const auto staging = [&](int64_t limit) {
    constexpr int64_t kBlock = checkpoint::kUsualBlockBytes;
    return (std::min(bytes, limit) + kBlock - 1) / kBlock * kBlock;
  };
  return (run.saves_checkpoints ? staging(run.staging_limit_bytes > 0 ? run.staging_limit_bytes : bytes) : 0) +
         staging(run.memory_staging_bytes);
}

int64_t training_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  const auto& pass = traces.of(model, run.pass_of(model));
  const auto span = span_of(model);
  return pass.peak_bytes(span) + (run.kept_microbatches - 1) * pass.kept_bytes(span);
}

// What oneDNN keeps of a GEMM in bf16 that it has made kernels for, for each shape: 0.55 MiB with AVX-512, measured over 8 and 12 shapes.
constexpr int64_t kGemmKernelsBytes = 560 << 10;

int64_t gemm_kernels_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  const bool takes_onednn = kernels::cpu_has_bf16_products() && !kernels::has_cpu_matmul(at::kBFloat16);
  if (!run.is_here || run.target != device::Target::cpu || run.dtype() != "bf16" || !takes_onednn) return 0;
  std::set<std::pair<bool, std::vector<int64_t>>> shapes;
  traces.of(model, run.pass_of(model)).visit(span_of(model), [&](const BlockPass& block) {
    for (const auto* segment : {&block.forward, &block.backward})
      for (const auto& operation : segment->operations) {
        if (!is_gemm(operation.name) || operation.outputs.empty() || operation.outputs[0].dtype != at::kBFloat16) continue;
        std::vector<int64_t> sizes;
        for (const auto& input : operation.inputs) sizes.insert(sizes.end(), input.sizes.begin(), input.sizes.end());
        shapes.emplace(operation.is_backward, std::move(sizes));
      }
  });
  return static_cast<int64_t>(shapes.size()) * kGemmKernelsBytes;
}

int64_t validation_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  return run.validation_batch > 0 ? traces.of(model, run.validation_pass_of(model)).peak_bytes(span_of(model)) : 0;
}

}  // namespace

int64_t StepMemory::working_bytes() const { return std::max({forward_backward_bytes, update_bytes, validation_bytes}); }

int64_t StepMemory::total_bytes() const {
  return program_bytes + gemm_kernels_bytes + shared_bytes + checkpoint_bytes + reserve_bytes + state_bytes() + graphs_bytes +
         working_bytes();
}

const char* StepMemory::peak_phase() const {
  return working_bytes() == forward_backward_bytes ? "forward and backward" : working_bytes() == update_bytes ? "update" : "validation";
}

nlohmann::ordered_json to_json(const StepMemory& m) {
  return {{"weights", m.weights_bytes},     {"gradients", m.gradients_bytes},
          {"optimizer", m.optimizer_bytes}, {"forward_backward", m.forward_backward_bytes},
          {"update", m.update_bytes},       {"validation", m.validation_bytes},
          {"program", m.program_bytes},     {"gemm_kernels", m.gemm_kernels_bytes},
          {"reserve", m.reserve_bytes},     {"shared", m.shared_bytes},
          {"graphs", m.graphs_bytes},       {"checkpoint", m.checkpoint_bytes},
          {"host", m.host_bytes},           {"peak", m.total_bytes()},
          {"peak_phase", m.peak_phase()}};
}

StepMemory predict_memory(const models::Model& model, const RunShape& run, int64_t program_bytes) {
  PassTraces traces;
  return predict_memory(model, run, program_bytes, traces);
}

StepMemory predict_memory(const models::Model& model, const RunShape& run, int64_t program_bytes, PassTraces& traces) {
  const bool is_cpu = run.target == device::Target::cpu;  // else what the host needs is not the device's
  StepMemory memory;
  memory.program_bytes = program_bytes;
  memory.gemm_kernels_bytes = gemm_kernels_bytes(model, run, traces);
  memory.shared_bytes = is_cpu ? run.shared_bytes : 0;
  const int64_t staging = checkpoint_bytes(model, run, traces);
  if (is_cpu) memory.checkpoint_bytes = staging;
  const auto& update = traces.update_of(model, run.update());
  memory.weights_bytes = update.weights_bytes;
  memory.gradients_bytes = update.gradients_bytes;
  memory.optimizer_bytes = update.optimizer_bytes;
  memory.host_bytes = update.host_bytes + (is_cpu ? 0 : staging);
  memory.forward_backward_bytes = training_bytes(model, run, traces);
  memory.update_bytes = update.update_bytes;
  memory.validation_bytes = validation_bytes(model, run, traces);
  if (run.uses_graphs) memory.graphs_bytes = memory.forward_backward_bytes;  // and some passes run as they are
  const bool has_pool = run.is_here && is_cpu && kernels::page_pool_is_wanted();
  if (has_pool)
    memory.reserve_bytes = (memory.state_bytes() + memory.working_bytes()) / static_cast<int64_t>(base::PagePool::kReserveShare);
  return memory;
}

// All ranks of a stage share out what it holds, whoever holds what: a rank that had the whole stage would write these tensors.
int64_t predict_saved_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  parallel::Layout whole;
  whole.stage = model.layout().stage;
  const auto stage = models::create_model(model.config(), whole);
  const int64_t writers = run.replicas * model.layout().tensor.size * model.layout().tensor_sequence.size;
  return traces.update_of(*stage, {.precision = run.precision, .optimizer = run.optimizer, .target = run.target}).saved_bytes / writers;
}

// Weights that no ZeRO stage below 3 shards, gradients that none below 2 does, an even share of the optimizer's states, activations.
int64_t least_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  const int64_t wide = std::max<int64_t>(4, run.element_bytes());
  const int64_t owners = run.replicas * model.layout().tensor.size * model.layout().tensor_sequence.size;
  const auto moment = static_cast<int64_t>(c10::elementSize(optim::moments_dtype(run.optimizer, wide == 8 ? at::kDouble : at::kFloat)));
  const optim::UpdateRules rules(run.optimizer);
  int64_t bytes = 0;
  for (const auto& p : model.parameters().all()) {
    const int64_t elements = p->local_elements();
    if (run.zero < 3) bytes += elements * run.element_bytes();
    if (!p->is_trained()) continue;
    if (run.zero < 2) bytes += elements * wide;
    if (!run.optimizer.offload) bytes += rules.state_elements(*p, tensor::element_count(p->shape)) * moment / owners;
  }
  auto bare = run;
  bare.zero = std::min<int64_t>(run.zero, 1);
  return bytes + training_bytes(model, bare, traces);
}

}  // namespace ingot::plan
