#include "plan/memory.h"

#include <algorithm>
#include <vector>

#include "base/page_pool.h"
#include "checkpoint/save/snapshot.h"
#include "kernels/cpu_memory.h"
#include "optim/update_rule.h"

namespace ingot::plan {
namespace {

using Kind = layers::Parameter::Kind;

// Under ZeRO a stage's tensors are this rank's share of them, rounded up.
int64_t share(const RunShape& run, int64_t stage, const layers::Parameter& p, const parallel::Layout& layout) {
  const int64_t count = p.local_elements(), holders = run.holders(p, layout);
  return run.zero >= stage ? (count + holders - 1) / holders : count;
}

bool comes_and_goes(const layers::Parameter& p) { return p.kind == Kind::matrix || p.kind == Kind::embedding || p.kind == Kind::head; }

// Elements that the optimizer keeps of a parameter beside its value, of which `elements` are this rank's.
int64_t state_elements(const optim::UpdateRules& rules, const layers::Parameter& p, int64_t elements) {
  return p.is_trained() ? rules.state_elements(p, elements) : 2 * elements;  // the moments of a balancing bias
}

void add_state(const models::Model& model, const RunShape& run, StepMemory& memory) {
  const optim::UpdateRules rules(run.optimizer);
  const int64_t narrow = run.element_bytes(), wide = std::max<int64_t>(4, narrow);
  for (const auto& p : model.parameters().all()) {
    const int64_t count = p->local_elements(), own = p->keeps_fp32 ? wide : narrow;
    if (!p->is_trained()) {
      memory.weights_bytes += count * own;
      memory.optimizer_bytes += state_elements(rules, *p, count) * own;
      continue;
    }
    const int64_t updated = share(run, 1, *p, model.layout());
    memory.weights_bytes += (comes_and_goes(*p) ? share(run, 3, *p, model.layout()) : count) * own;
    memory.gradients_bytes += share(run, 2, *p, model.layout()) * wide;
    if (own < wide) memory.optimizer_bytes += updated * wide;  // the master
    memory.optimizer_bytes += state_elements(rules, *p, updated) * wide;
  }
}

// Whole blocks of memory.
int64_t checkpoint_bytes(const models::Model& model, const RunShape& run) {
  if (!run.saves_checkpoints && run.memory_staging_bytes == 0) return 0;
  const int64_t bytes = predict_saved_bytes(model, run);
  const auto staging = [&](int64_t limit) {
    constexpr int64_t kBlock = checkpoint::kUsualBlockBytes;
    return (std::min(bytes, limit) + kBlock - 1) / kBlock * kBlock;
  };
  return (run.saves_checkpoints ? staging(run.staging_limit_bytes > 0 ? run.staging_limit_bytes : bytes) : 0) +
         staging(run.memory_staging_bytes);
}

// What ZeRO 2 and 3 bring together for a while: of the blocks two at a time, the ends of the model once each (parallel/buckets.h).
int64_t gathered_bytes(const models::Model& model, const RunShape& run) {
  if (run.zero < 2) return 0;
  const int64_t narrow = run.element_bytes(), wide = std::max<int64_t>(4, narrow);
  std::vector<int64_t> weights(static_cast<size_t>(model.config().layers), 0), gradients = weights;
  int64_t ends = 0;
  for (const auto& p : model.parameters().all()) {
    if (!p->is_trained() || run.holders(*p, model.layout()) == 1) continue;
    if (p->kind == Kind::embedding || p->kind == Kind::head) {
      ends += p->local_elements() * (wide + (run.zero == 3 ? narrow : 0));
    } else if (p->layer >= 0 && p->layer < model.config().layers) {
      gradients[static_cast<size_t>(p->layer)] += p->local_elements() * wide;
      if (run.zero == 3 && comes_and_goes(*p)) weights[static_cast<size_t>(p->layer)] += p->local_elements() * narrow;
    }
  }
  int64_t bucket = *std::max_element(gradients.begin(), gradients.end());
  if (run.zero == 2 && bucket > 0) bucket = std::max(run.bucket_bytes, bucket);
  return ends + 2 * bucket + 2 * *std::max_element(weights.begin(), weights.end());
}

// Muon takes a direction and a result for all its matrices at once, and each thread works on one of them. A matrix that an axis cuts is
// first brought together where it is worked on: on all that have a part, or on one of them and sent back (parallel/matrix_exchange.h).
int64_t update_bytes(const models::Model& model, const RunShape& run) {
  const int64_t wide = std::max<int64_t>(4, run.element_bytes());
  const bool spread = run.optimizer.spread_orthogonalisation;
  const optim::UpdateRules rules(run.optimizer);
  int64_t directions = 0, travelling = 0, gathered = 0, returning = 0, whole_work = 0, gathered_work = 0;
  for (const auto& p : model.parameters().all()) {
    if (!p->is_trained() || rules.of(*p).predicted_as() != "muon") continue;
    const int64_t own = share(run, 1, *p, model.layout()) * wide, parts = RunShape::parts(*p, model.layout());
    const int64_t rows = p->shape[p->shape.size() - 2], cols = p->shape.back(), small = std::min(rows, cols);
    const int64_t work = (3 * rows * cols + 5 * small * small) * wide;
    if (parts == 1) {
      directions += 2 * own;
      whole_work = std::max(whole_work, run.threads * work);
      continue;
    }
    const int64_t worked_on = spread ? own : own * parts, elsewhere = worked_on - worked_on / parts;
    directions += own;
    gathered += worked_on;
    travelling += 2 * elsewhere;  // as they leave and as they arrive
    returning += spread ? 2 * elsewhere : 0;
    gathered_work = std::max(gathered_work, work);  // one after the other
  }
  return directions + std::max({travelling + whole_work, travelling + gathered, 2 * gathered + std::max(returning, gathered_work)});
}

int64_t training_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  const auto& pass = traces.of(model, run.pass_of(model));
  const auto span = span_of(model);
  return pass.peak_bytes(span) + (run.kept_microbatches - 1) * pass.kept_bytes(span);
}

int64_t validation_bytes(const models::Model& model, const RunShape& run, PassTraces& traces) {
  return run.validation_batch > 0 ? traces.of(model, run.validation_pass_of(model)).peak_bytes(span_of(model)) : 0;
}

}  // namespace

int64_t StepMemory::working_bytes() const { return std::max({forward_backward_bytes, update_bytes, validation_bytes}); }

const char* StepMemory::peak_phase() const {
  return working_bytes() == forward_backward_bytes ? "forward and backward" : working_bytes() == update_bytes ? "update" : "validation";
}

StepMemory predict_memory(const models::Model& model, const RunShape& run, int64_t program_bytes) {
  PassTraces traces;
  return predict_memory(model, run, program_bytes, traces);
}

StepMemory predict_memory(const models::Model& model, const RunShape& run, int64_t program_bytes, PassTraces& traces) {
  StepMemory memory;
  memory.program_bytes = program_bytes;
  memory.shared_bytes = run.shared_bytes;
  memory.checkpoint_bytes = checkpoint_bytes(model, run);
  add_state(model, run, memory);
  memory.forward_backward_bytes = training_bytes(model, run, traces) + gathered_bytes(model, run);
  memory.update_bytes = update_bytes(model, run);
  memory.validation_bytes = validation_bytes(model, run, traces);
  const bool has_pool = run.is_here && model.device().is_cpu() && kernels::page_pool_is_wanted();
  if (has_pool)
    memory.reserve_bytes = (memory.state_bytes() + memory.working_bytes()) / static_cast<int64_t>(base::PagePool::kReserveShare);
  return memory;
}

// All ranks of a stage share out what it holds, whoever holds what.
int64_t predict_saved_bytes(const models::Model& model, const RunShape& run) {
  const int64_t wide = std::max<int64_t>(4, run.element_bytes());
  const int64_t writers = run.replicas * model.layout().tensor.size * model.layout().tensor_sequence.size;
  const optim::UpdateRules rules(run.optimizer);
  int64_t bytes = 0;
  for (const auto& p : model.parameters().all()) {
    const int64_t elements = tensor::element_count(p->shape);
    bytes += (elements + state_elements(rules, *p, elements)) * wide / writers;
  }
  return bytes;
}

int64_t predict_state_bytes(const models::Model& model, const RunShape& run) {
  StepMemory memory;
  add_state(model, run, memory);
  return memory.state_bytes();
}

}  // namespace ingot::plan
