#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "base/work_scope.h"
#include "device/device.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/update.h"

namespace ingot::optim {

// On unlike machines all do what all can.
Iterates Muon::iterates_of(const layers::ParameterList& parameters, const Team& team) const {
  const auto& all = parameters.all();
  const auto device = all.front()->value.device();
  const bool on_cpu = !device::is_gpu(device);
  if (config_.newton_schulz_precision == "own") return Iterates::own;
  const bool is_asked_for = config_.newton_schulz_precision == "bf16";
  if (!is_asked_for && all.front()->wide_type() == at::kDouble) return Iterates::own;
  const auto mine = is_asked_for ? iterates_in_bf16(on_cpu) : fastest_iterates(on_cpu);
  if (!team.everyone || team.everyone->size() == 1) return mine;
  const auto least = at::full({1}, static_cast<int>(mine), at::kInt);
  team.everyone->all_reduce(least, comm::Reduction::min);
  return static_cast<Iterates>(least.item<int>());
}

void Muon::prepare(const RuleShare& share, const Team& team) {
  iterates_ = iterates_of(share.parameters, team);
  home_ = &share.home;
  for (auto& owned : by_owners(share, team)) {
    auto& entry = groups_.emplace_back(Matrices{std::move(owned), nullptr});
    if (!entry.group) continue;
    std::vector<const parallel::Shard*> shards;
    for (const auto* slot : entry.slots) shards.push_back(&slot->shard);
    const parallel::MatrixExchange::Known known{.parameters = entry.taken, .slices_of = team.slices_of};
    const auto cost_of = [steps = config_.newton_schulz_steps, how = iterates_](int64_t rows, int64_t cols) {
      return newton_schulz_flops(rows, cols, steps, how);
    };
    const auto result_dtype = iterates_ == Iterates::own ? std::nullopt : std::optional(at::kBFloat16);
    entry.exchange = std::make_unique<parallel::MatrixExchange>(share.parameters, shards, *entry.group, config_.spread_orthogonalisation,
                                                                cost_of, result_dtype, known);
  }
}

void Muon::update(const Update& update) {
  if (groups_.empty()) return;
  const base::WorkScope scope("muon", base::WorkKind::muon);
  std::vector<std::vector<at::Tensor>> directions;
  // All that must travel is on its way before the first orthogonalisation.
  for (const auto& group : groups_) {
    auto& own = directions.emplace_back();
    const auto momentum_of = [](Slot& slot) { return std::vector{&slot.state[0]}; };
    home_->visit(group.slots, momentum_of, [&](size_t begin, size_t end) {
      std::vector<kernels::MomentumTensors> all;
      for (size_t i = begin; i < end; ++i) {
        const auto& slot = *group.slots[i];
        all.push_back(
            {slot.state[0], slot.shard.gradient_slice(), kernels::rounding_key("momentum." + slot.shard.parameter->name, update.step)});
      }
      for (auto& direction : kernels::momentum_update(all, {config_.momentum, update.gradient_scale, config_.nesterov}))
        own.push_back(std::move(direction));
    });
    if (group.exchange) group.exchange->start(own);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& group = groups_[g];
    orthogonalise(group, directions[g]);
    const auto factors = scale(group, directions[g]);
    const auto master_of = [](Slot& slot) { return slot.has_master ? std::vector{&slot.master} : std::vector<at::Tensor*>(); };
    home_->visit(group.slots, master_of, [&](size_t begin, size_t end) {
      std::vector<kernels::DirectedTensors> all;
      for (size_t i = begin; i < end; ++i) {
        const auto& slot = *group.slots[i];
        const double step = update.lr * factors[i] / std::sqrt(slot.shard.parameter->width);
        all.push_back({slot.master, directions[g][i], slot.shard.value, 1 - update.lr * slot.weight_decay, step});
      }
      kernels::apply_directions(all);
    });
  }
}

std::vector<double> Muon::scale(const Matrices& group, std::vector<at::Tensor>&) const {
  std::vector<double> factors;
  for (const auto* slot : group.slots) {
    const auto& shape = slot->shard.parameter->shape;
    factors.push_back(config_.rms_match * std::sqrt(static_cast<double>(std::max(shape[shape.size() - 2], shape.back()))));
  }
  return factors;
}

void Muon::orthogonalise(const Matrices& group, std::vector<at::Tensor>& directions) const {
  if (!group.exchange) {
    for (size_t i = 0; i < directions.size(); ++i) directions[i] = directions[i].view(group.slots[i]->shard.parameter->local_shape());
    directions = newton_schulz(directions, quintics_, Threads::share_matrices, iterates_);
    for (auto& direction : directions) direction = direction.view(-1);
    return;
  }
  const auto whole = group.exchange->whole();
  const auto results = newton_schulz(whole, quintics_, Threads::share_matrices, iterates_);
  for (size_t i = 0; i < whole.size(); ++i) whole[i].copy_(results[i]);
  group.exchange->finish(newton_schulz(group.exchange->gathered(), quintics_, Threads::share_gemms, iterates_));
}

}  // namespace ingot::optim
