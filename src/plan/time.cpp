#include "plan/time.h"

#include "kernels/update.h"
#include "optim/update_rule.h"

namespace ingot::plan {
namespace {

// Which of the sums a kind of work belongs to.
double& sum_of(WorkKind kind, StepTime& time) {
  switch (kind) {
    case WorkKind::matmul: return time.gemm_s;
    case WorkKind::attention:
    case WorkKind::linear_attention: return time.attention_s;
    case WorkKind::head: return time.head_s;
    case WorkKind::recomputation: return time.recompute_s;
    default: return time.kernels_s;
  }
}

void add_passes(const PassTime& pass, double times, StepTime& time) {
  for (const auto* segment : {&pass.forward, &pass.backward})
    for (const auto kind : all_work_kinds()) {
      const double seconds = times * segment->of(kind);
      if (seconds == 0) continue;
      time.kinds[kind] += seconds;
      sum_of(kind, time) += seconds;
    }
}

// What an update rule without measurements of its own does, operation by operation, each with what calling it takes.
double traced_rule_s(const UpdateTrace& update, const Rates& rates) {
  double seconds = 0;
  for (const auto& op : update.operations)
    seconds += static_cast<double>(op.calls) * (price_of(op, {}, rates) + (matmul_sizes(op) ? 0 : rates.operation_s() / 3));
  return seconds;
}

void add_optimizer(const models::Model& model, const RunShape& run, PassPrices& prices, StepTime& time) {
  const auto& rates = prices.rates();
  const optim::UpdateRules rules(run.optimizer);
  double muon_s = 0, adamw_s = 0, adamw_elements = 0;
  int64_t adamw_tensors = 0;
  bool is_traced = false;
  for (const auto& p : model.parameters().all()) {
    if (!p->is_trained()) continue;
    const int64_t own = p->local_elements();
    const double share = run.zero > 0 ? 1.0 / static_cast<double>(run.holders(*p, model.layout())) : 1;
    if (rules.of(*p).predicted_as() == "muon") {
      const int64_t rows = p->shape[p->shape.size() - 2], cols = p->shape.back();
      // Of matrices that are cut, the ranks with parts of them work on an equal number each, or all on all.
      const int64_t repeats = run.optimizer.spread_orthogonalisation ? 1 : RunShape::parts(*p, model.layout());
      const double matrices = static_cast<double>(own * repeats) / static_cast<double>(rows * cols);
      // Measured with five iterations.
      const double iterations = static_cast<double>(run.optimizer.newton_schulz_steps) / 5;
      muon_s += share * matrices * iterations * rates.kernel_s("muon", rows, cols, false).value_or(0);
    } else if (rules.of(*p).predicted_as() == "dion") {
      is_traced = true;
    } else {
      adamw_elements += share * static_cast<double>(own);
      ++adamw_tensors;
    }
  }
  if (adamw_tensors > 0) {
    // Many in a call, unless their state comes one by one.
    const int64_t calls = run.optimizer.offload ? adamw_tensors : (adamw_tensors + kernels::kAdamwTensors - 1) / kernels::kAdamwTensors;
    const auto of_a_call = static_cast<int64_t>(adamw_elements / static_cast<double>(calls));
    adamw_s = static_cast<double>(calls) *
              rates.kernel_s("adamw", of_a_call, 1, false).value_or(rates.move_s(28 * static_cast<double>(of_a_call)));
  }
  if (is_traced) muon_s += traced_rule_s(prices.traces().update_of(model, run.update()), rates);
  muon_s *= rates.within_steps().of(WorkKind::muon);
  adamw_s *= rates.within_steps().of(WorkKind::adamw);
  time.optimizer_s = muon_s + adamw_s;
  time.kinds[WorkKind::muon] += muon_s;
  time.kinds[WorkKind::adamw] += adamw_s;
}

}  // namespace

std::map<WorkKind, double> StepTime::by_kind() const {
  auto all = kinds;
  if (waiting_s + uneven_s > 0) all[WorkKind::communication] += waiting_s + uneven_s;
  if (between_s > 0) all[WorkKind::unattributed] += between_s;
  return all;
}

StepTime predict_step_time(const models::Model& part, const RunShape& run, const MachineProfile& profile) {
  PassPrices prices(Rates(profile, run.dtype()));
  return predict_step_time(part, run, prices);
}

StepTime predict_step_time(const models::Model& part, const RunShape& run, PassPrices& prices) {
  const auto pass = prices.of(part, run.pass_of(part), run.documents_of(part));
  const auto& rates = prices.rates();
  StepTime step;
  add_passes(pass, static_cast<double>(run.microbatches()), step);
  // While a rank waits for other stages, those that share its core work.
  step.waiting_s = std::max(0.0, step.passes_s() * (run.bubble / (1 - run.bubble) - (run.ranks_per_core - 1)));
  add_optimizer(part, run, prices, step);
  if (run.optimizer.offload) {
    // Masters and moments come and go at the same time, beside the update.
    const double moved_s = static_cast<double>(prices.traces().update_of(part, run.update()).host_bytes) / kHostLinkBytesPerS;
    const double waited_s = std::max(0.0, moved_s - step.optimizer_s);
    step.optimizer_s += waited_s;
    step.kinds[WorkKind::adamw] += waited_s;
  }
  step.between_s = rates.within_steps().between() * (step.passes_s() + step.optimizer_s);
  if (run.world > 1) step.uneven_s = rates.within_steps().uneven() * (step.passes_s() + step.optimizer_s + step.between_s);
  // Ranks that share a core take turns on it.
  for (double* sum :
       {&step.gemm_s, &step.attention_s, &step.kernels_s, &step.head_s, &step.recompute_s, &step.optimizer_s, &step.between_s})
    *sum *= run.ranks_per_core;
  for (auto& [kind, seconds] : step.kinds) seconds *= run.ranks_per_core;
  return step;
}

double predict_validation_s(const models::Model& part, const RunShape& run, PassPrices& prices) {
  if (run.validation_batch == 0) return 0;
  const auto pass = prices.of(part, run.validation_pass_of(part));
  return pass.forward.compute_s() * run.ranks_per_core * static_cast<double>(part.layout().stage.size);
}

}  // namespace ingot::plan
