#include "plan/replay.h"

#include <algorithm>

namespace ingot::plan {

using layers::ActivationId;
using layers::Operation;
using models::Recompute;

namespace {

bool contains(const std::vector<ActivationId>& ids, ActivationId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// Products side by side belong to one linear layer.
bool same_layer(const Operation& a, const Operation& b) {
  return a.kind == Operation::Kind::product && b.kind == a.kind && a.inputs == b.inputs;
}

}  // namespace

void Meter::take(int64_t bytes) {
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

void Meter::touch(int64_t bytes) { peak_bytes_ = std::max(peak_bytes_, live_bytes_ + bytes); }

Replay::Replay(const layers::Workload& work, Meter& meter, bool widens_products)
    : work_(work),
      meter_(meter),
      widens_products_(widens_products),
      live_(work.activation_count()),
      has_gradient_(work.activation_count()),
      saves_(work.activation_count()) {}

void Replay::forward(Recompute recompute) {
  if (work_.operations().empty()) return;  // this stage of a pipeline has none of it
  const size_t end = work_.operations().size();
  for (const auto id : work_.entering()) {
    meter_.take(work_.activation(id).bytes());
    live_[static_cast<size_t>(id)] = true;
    if (recompute == Recompute::full) hold(id);
  }
  const size_t kept_end = recompute == Recompute::none ? end : recompute == Recompute::full ? 0 : work_.feed_forward_begin();
  run_forward(0, kept_end, true);
  if (recompute == Recompute::selective)
    for (const auto id : read_from_before(kept_end)) hold(id);
  run_forward(kept_end, end, false);
}

void Replay::backward(Recompute recompute) {
  if (work_.operations().empty()) return;  // this stage of a pipeline has none of it
  const auto& operations = work_.operations();
  for (const auto id : operations.back().outputs) {
    meter_.take(work_.activation(id).bytes());
    has_gradient_[static_cast<size_t>(id)] = true;
  }
  const size_t kept_end = recompute == Recompute::none ? operations.size() : recompute == Recompute::full ? 0 : work_.feed_forward_begin();
  if (recompute != Recompute::none) {
    // The second run's outputs and the gradients it starts from stay until it is done (layers/recompute.cpp).
    int64_t outputs_bytes = 0;
    for (const auto id : operations.back().outputs) outputs_bytes += work_.activation(id).bytes();
    meter_.take(2 * outputs_bytes);
    run_forward(kept_end, operations.size(), true);
    run_backward(kept_end, operations.size());
    meter_.give(2 * outputs_bytes);
    const auto held = recompute == Recompute::full ? work_.entering() : read_from_before(kept_end);
    for (const auto id : held) release(id);
  }
  run_backward(0, kept_end);
  for (size_t id = 0; id < has_gradient_.size(); ++id) {
    if (has_gradient_[id]) meter_.give(work_.activation(static_cast<ActivationId>(id)).bytes());
    has_gradient_[id] = false;
  }
}

void Replay::inference() {
  if (work_.operations().empty()) return;  // this stage of a pipeline has none of it
  for (const auto id : work_.entering()) {
    meter_.take(work_.activation(id).bytes());
    live_[static_cast<size_t>(id)] = true;
  }
  run_forward(0, work_.operations().size(), false);
}

void Replay::run_forward(size_t begin, size_t end, bool keep) {
  for (size_t i = begin; i < end; ++i) {
    const auto& op = work_.operations()[i];
    for (const auto id : op.outputs) {
      if (live_[static_cast<size_t>(id)]) continue;
      meter_.take(work_.activation(id).bytes());
      live_[static_cast<size_t>(id)] = true;
    }
    if (keep)
      for (const auto id : op.saved) hold(id);
    meter_.touch(op.forward_scratch_bytes + widening_bytes(i));
    for (const auto* side : {&op.inputs, &op.outputs}) {
      for (const auto id : *side) {
        const auto at = static_cast<size_t>(id);
        if (!live_[at] || saves_[at] > 0 || is_read_after(id, i)) continue;
        meter_.give(work_.activation(id).bytes());
        live_[at] = false;
      }
    }
  }
}

void Replay::run_backward(size_t begin, size_t end) {
  const auto& operations = work_.operations();
  for (size_t i = end; i-- > begin;) {
    const auto& op = operations[i];
    for (const auto id : op.inputs) {
      const auto at = static_cast<size_t>(id);
      // A second gradient of the same tensor exists until it is added to the first; linear layers add by themselves.
      if (has_gradient_[at] && i + 1 < end && same_layer(op, operations[i + 1])) continue;
      has_gradient_[at] ? meter_.touch(work_.activation(id).bytes()) : meter_.take(work_.activation(id).bytes());
      has_gradient_[at] = true;
    }
    int64_t again_bytes = 0;
    if (op.repeated_in_backward)
      for (const auto id : op.outputs) again_bytes += work_.activation(id).bytes();
    meter_.touch(op.backward_scratch_bytes + widening_bytes(i) + again_bytes);
    for (const auto id : op.saved) release(id);
    for (const auto id : op.outputs) {
      const auto at = static_cast<size_t>(id);
      const bool made_before = i > begin && contains(operations[i - 1].outputs, id);
      if (!has_gradient_[at] || made_before) continue;
      meter_.give(work_.activation(id).bytes());
      has_gradient_[at] = false;
    }
  }
}

void Replay::hold(ActivationId id) {
  const auto at = static_cast<size_t>(id);
  if (!live_[at]) meter_.take(work_.activation(id).bytes());
  live_[at] = true;
  ++saves_[at];
}

void Replay::release(ActivationId id) {
  const auto at = static_cast<size_t>(id);
  if (--saves_[at] > 0 || !live_[at]) return;
  meter_.give(work_.activation(id).bytes());
  live_[at] = false;
}

bool Replay::is_read_after(ActivationId id, size_t operation) const {
  const auto& operations = work_.operations();
  return std::any_of(operations.begin() + static_cast<std::ptrdiff_t>(operation) + 1, operations.end(),
                     [id](const Operation& op) { return contains(op.inputs, id); });
}

// Products of bf16 go through fp32 copies of both operands and of the result, before the result is narrowed.
int64_t Replay::product_scratch_bytes(const Operation& op) const {
  if (!widens_products_ || op.kind != Operation::Kind::product || op.element_bytes != 2) return 0;
  return 4 * (op.rows * op.in + op.in * op.out + op.rows * op.out) + 2 * op.rows * std::max(op.in, op.out);
}

// Of an operation's own product, or the largest inside of it.
int64_t Replay::widening_bytes(size_t operation) const {
  const auto& operations = work_.operations();
  if (operations[operation].is_inner) return 0;
  int64_t most = product_scratch_bytes(operations[operation]);
  for (size_t i = operation + 1; i < operations.size() && operations[i].is_inner; ++i)
    most = std::max(most, product_scratch_bytes(operations[i]));
  return most;
}

std::vector<ActivationId> Replay::read_from_before(size_t begin) const {
  std::vector<ActivationId> ids, made;
  for (size_t i = begin; i < work_.operations().size(); ++i) {
    const auto& op = work_.operations()[i];
    for (const auto id : op.inputs)
      if (!contains(made, id) && !contains(ids, id)) ids.push_back(id);
    made.insert(made.end(), op.outputs.begin(), op.outputs.end());
  }
  return ids;
}

}  // namespace ingot::plan
