#include "plan/time.h"

#include <map>

#include "optim/update_rule.h"
#include "plan/rates.h"

namespace ingot::plan {
namespace {

using layers::Operation;
using layers::Workload;

class Clock {
 public:
  /// `documents`: as in RunShape.
  Clock(const Rates& rates, const Workload& work, const std::vector<int64_t>& documents = {}, bool learns = true)
      : rates_(rates), work_(work), documents_(documents), learns_(learns) {}

  /// Adds operations [begin, end), forward or backward, to `time`.
  void forward(size_t begin, size_t end, StepTime& time) const {
    for (size_t i = begin; i < end; ++i) add(work_.operations()[i], false, time);
  }
  void backward(size_t begin, size_t end, StepTime& time) const {
    for (size_t i = begin; i < end; ++i) add(work_.operations()[i], true, time);
    const double sums_s = factor(WorkKind::elementwise) * meeting_gradients_s();
    time.kernels_s += sums_s;
    time.by_name["gradients"] += sums_s;
  }

 private:
  void add(const Operation& op, bool backward, StepTime& time) const {
    const bool wide = op.element_bytes > work_.element_bytes();
    const double count = static_cast<double>(op.count);
    if (op.name == "head") {
      if (!backward)
        time.head_s += factor(WorkKind::head) * count * (product_s(op, Pass::forward, wide) + (learns_ ? gradients_s(op, wide) : 0));
    } else if (op.kind == Operation::Kind::product) {
      time.products_s += factor(WorkKind::products) * (count * (backward ? gradients_s(op, wide) : product_s(op, Pass::forward, wide)) +
                                                       rates_.operation_s() / 2 * (op.is_inner ? count : 1));
    } else if (op.kind == Operation::Kind::attention) {
      time.attention_s += factor(WorkKind::attention) * rates_.attention_s(op, backward, documents_);
    } else {
      const double seconds = factor(kind_of_kernel(op.name)) * kernel_s(op, backward);
      (op.name == "cross_entropy" ? time.head_s : time.kernels_s) += seconds;
      time.by_name[op.name] += seconds;
    }
  }

  double factor(WorkKind kind) const { return rates_.within_steps().of(kind); }

  double product_s(const Operation& op, Pass pass, bool wide) const { return rates_.product_s(pass, op.rows, op.in, op.out, wide); }

  double gradients_s(const Operation& op, bool wide) const {
    const double again = op.repeated_in_backward ? product_s(op, Pass::forward, wide) : 0;
    return again + product_s(op, Pass::grad_input, wide) + product_s(op, Pass::grad_weight, wide);
  }

  double kernel_s(const Operation& op, bool backward) const {
    if (op.rows == 0) return 0;  // counted with another operation
    return static_cast<double>(op.count) * single_kernel_s(op, backward);
  }

  double single_kernel_s(const Operation& op, bool backward) const {
    const double again = backward && op.repeated_in_backward ? rates_.kernel_s(op.name, op.rows, op.width, false).value_or(0) : 0;
    if (const auto known = rates_.kernel_s(op.name, op.rows, op.width, backward)) return again + *known;
    if (op.scratch_moved_bytes > 0) return backward ? 0 : rates_.move_s(op.scratch_moved_bytes);
    double bytes = 0;
    for (const auto* side : {&op.inputs, &op.outputs})
      for (const auto id : *side) bytes += static_cast<double>(work_.activation(id).bytes());
    if (op.is_inner) bytes = 2 * static_cast<double>(op.rows * op.width * op.element_bytes);
    return rates_.move_s(bytes) * (backward ? layers::kBackwardFactor : 1);
  }

  // A tensor that several operations read gets as many gradients, which are added up pairwise.
  double meeting_gradients_s() const {
    std::map<layers::ActivationId, int> readers;
    const Operation* before = nullptr;
    for (const auto& op : work_.operations()) {
      // Products side by side belong to one layer, which adds up by itself.
      const bool same_layer =
          before && before->kind == Operation::Kind::product && op.kind == Operation::Kind::product && before->inputs == op.inputs;
      for (const auto id : op.inputs) readers[id] += same_layer ? 0 : 1;
      before = &op;
    }
    double seconds = 0;
    for (const auto& [id, count] : readers) seconds += (count - 1) * rates_.move_s(3 * static_cast<double>(work_.activation(id).bytes()));
    return seconds;
  }

  const Rates& rates_;
  const Workload& work_;
  std::vector<int64_t> documents_;
  bool learns_;  // the head makes its gradients with its losses
};

void add_block(const Workload& work, models::Recompute recompute, const Rates& rates, const std::vector<int64_t>& documents,
               StepTime& time) {
  const Clock clock(rates, work, documents);
  const size_t end = work.operations().size();
  clock.forward(0, end, time);
  clock.backward(0, end, time);
  if (recompute == models::Recompute::none) return;
  StepTime again;
  clock.forward(recompute == models::Recompute::full ? 0 : work.feed_forward_begin(), end, again);
  time.recompute_s += again.passes_s();
}

void add_optimizer(const models::Model& model, const RunShape& run, const Rates& rates, StepTime& time) {
  const optim::UpdateRules rules(run.optimizer);
  double muon_s = 0, adamw_s = 0;
  for (const auto& p : model.parameters().all()) {
    if (!p->is_trained()) continue;
    const int64_t own = p->local_elements();
    const double share = run.zero > 0 ? 1.0 / static_cast<double>(run.holders(*p, model.layout())) : 1;
    if (rules.of(*p).name() == "muon") {
      const int64_t rows = p->shape[p->shape.size() - 2], cols = p->shape.back();
      // Of matrices that are cut, the ranks with parts of them work on an equal number each, or all on all.
      const int64_t repeats = run.optimizer.spread_orthogonalisation ? 1 : RunShape::parts(*p, model.layout());
      const double matrices = static_cast<double>(own * repeats) / static_cast<double>(rows * cols);
      // Measured with five iterations.
      const double iterations = static_cast<double>(run.optimizer.newton_schulz_steps) / 5;
      muon_s += share * matrices * iterations * rates.kernel_s("muon", rows, cols, false).value_or(0);
    } else {
      adamw_s += share * rates.kernel_s("adamw", own, 1, false).value_or(rates.move_s(28 * static_cast<double>(own)));
    }
  }
  muon_s *= rates.within_steps().of(WorkKind::muon);
  adamw_s *= rates.within_steps().of(WorkKind::adamw);
  time.optimizer_s = muon_s + adamw_s;
  time.by_name["muon"] = muon_s;
  time.by_name["adamw"] = adamw_s;
}

void scale(std::map<std::string, double>& seconds, double by) {
  for (auto& [name, value] : seconds) value *= by;
}

}  // namespace

std::map<WorkKind, double> StepTime::by_kind() const {
  std::map<WorkKind, double> kinds;
  const auto add = [&](WorkKind kind, double seconds) {
    if (seconds > 0) kinds[kind] += seconds;
  };
  add(WorkKind::products, products_s);
  add(WorkKind::attention, attention_s);
  add(WorkKind::head, head_s);
  add(WorkKind::recomputation, recompute_s);
  add(WorkKind::communication, waiting_s + uneven_s);
  add(WorkKind::unattributed, between_s);
  // The head's own time has its kernel in it already.
  for (const auto& [name, seconds] : by_name)
    if (name != "cross_entropy") add(kind_of_kernel(name), seconds);
  return kinds;
}

StepTime predict_step_time(const models::Model& model, const RunShape& run, const MachineProfile& profile) {
  return predict_step_time(model, run, Rates(profile, run.precision));
}

StepTime predict_step_time(const models::Model& model, const RunShape& run, const Rates& rates) {
  StepTime micro;
  // Ranks that share a row see parts of its documents, which are not looked into.
  const bool is_whole = model.layout().sequence.size == 1 && model.layout().tensor_sequence.size == 1;
  const auto workload = [&] {
    return Workload(run.sequences_at_once(), run.seq / model.layout().sequence.size, run.element_bytes(), run.circumstances());
  };
  for (auto describe : {&models::Model::describe_embedding, &models::Model::describe_head}) {
    auto work = workload();
    (model.*describe)(work);
    const Clock clock(rates, work);
    clock.forward(0, work.operations().size(), micro);
    clock.backward(0, work.operations().size(), micro);
  }
  std::optional<Workload> before;  // most blocks are like the one before them
  StepTime block;
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    if (!model.layout().stage.holds(layer)) continue;
    auto work = workload();
    model.describe_block(layer, work);
    if (!before || *before != work) {
      block = {};
      add_block(work, run.recompute, rates, is_whole ? run.documents : std::vector<int64_t>{}, block);
      before = std::move(work);
    }
    micro.products_s += block.products_s, micro.attention_s += block.attention_s, micro.kernels_s += block.kernels_s;
    micro.head_s += block.head_s, micro.recompute_s += block.recompute_s;
    for (const auto& [name, seconds] : block.by_name) micro.by_name[name] += seconds;
  }
  const auto times = static_cast<double>(run.microbatches());
  StepTime step = micro;
  for (double* part : {&step.products_s, &step.attention_s, &step.kernels_s, &step.head_s, &step.recompute_s}) *part *= times;
  scale(step.by_name, times);
  // While a rank waits for other stages, those that share its core work.
  step.waiting_s = std::max(0.0, step.passes_s() * (run.bubble / (1 - run.bubble) - (run.ranks_per_core - 1)));
  add_optimizer(model, run, rates, step);
  step.between_s = rates.within_steps().between() * (step.passes_s() + step.optimizer_s);
  if (run.world > 1) step.uneven_s = rates.within_steps().uneven() * (step.passes_s() + step.optimizer_s + step.between_s);
  // Ranks that share a core take turns on it.
  for (double* part :
       {&step.products_s, &step.attention_s, &step.kernels_s, &step.head_s, &step.recompute_s, &step.optimizer_s, &step.between_s})
    *part *= run.ranks_per_core;
  scale(step.by_name, run.ranks_per_core);
  return step;
}

double predict_validation_s(const models::Model& model, const RunShape& run, const Rates& rates) {
  if (run.validation_batch == 0) return 0;
  const int64_t seq = (run.validation_seq > 0 ? run.validation_seq : run.seq) / model.layout().sequence.size;
  StepTime time;
  const auto add = [&](const auto& describe) {
    Workload work(run.validation_batch, seq, run.element_bytes(), run.circumstances());
    describe(work);
    Clock(rates, work, {}, /*learns=*/false).forward(0, work.operations().size(), time);
  };
  add([&](Workload& work) { model.describe_embedding(work); });
  for (int64_t layer = 0; layer < model.config().layers; ++layer)
    if (model.layout().stage.holds(layer)) add([&](Workload& work) { model.describe_block(layer, work); });
  add([&](Workload& work) { model.describe_head(work); });
  return time.passes_s() * run.ranks_per_core * static_cast<double>(model.layout().stage.size);
}

}  // namespace ingot::plan
