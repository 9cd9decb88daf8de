#include "optim/dion.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/work_scope.h"
#include "device/virtual_device.h"
#include "kernels/initialise.h"
#include "kernels/matmul.h"
#include "kernels/stochastic_rounding.h"

namespace ingot::optim {
namespace {

// What the slots of a group are multiplied with, for each parameter [matrices, rows or cols, rank]; one block of memory, to be summed at
// once.
struct Factors {
  at::Tensor all;
  std::map<const layers::Parameter*, at::Tensor> of;
};

Factors zeros(const OwnersShare& group, int64_t dim_from_last) {
  std::vector<tensor::Shape> shapes;
  int64_t elements = 0;
  for (const auto* m : group.matrices) {
    const auto& basis = m->state[0];
    const auto& shape = m->parameter->shape;
    shapes.push_back({basis.size(0), shape[shape.size() - static_cast<size_t>(dim_from_last)], basis.size(2)});
    elements += tensor::element_count(shapes.back());
  }
  Factors factors{at::zeros({elements}, group.matrices.front()->state[0].options()), {}};
  int64_t at = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t count = tensor::element_count(shapes[i]);
    factors.of[group.matrices[i]->parameter] = factors.all.narrow(0, at, count).view(shapes[i]);
    at += count;
  }
  return factors;
}

// A part of one matrix in a slice, and which rows and columns of which matrix of its stack it is.
struct Piece {
  at::Tensor elements;  // [rows, cols], a view
  int64_t matrix, first_row, first_col;
  at::Tensor rows_of(const at::Tensor& factor) const { return factor[matrix].narrow(0, first_row, elements.size(0)); }
  at::Tensor cols_of(const at::Tensor& factor) const { return factor[matrix].narrow(0, first_col, elements.size(1)); }
};

template <class Visit>
void for_each_piece(const Slot& slot, int64_t first_matrix, const at::Tensor& flat, const Visit& visit) {
  for (const auto& region : slot.shard.regions()) {
    const auto stack = matrices_of(region, flat);
    const auto& offset = region.box.offset;
    const size_t dims = offset.size();
    for (int64_t i = 0; i < stack.size(0); ++i)
      visit(Piece{stack[i], dims == 3 ? offset[0] - first_matrix + i : 0, offset[dims - 2], offset[dims - 1]});
  }
}

}  // namespace

int64_t Dion::rank_of(const OptimizerConfig& config, int64_t rows, int64_t cols) {
  const auto smaller = static_cast<double>(std::min(rows, cols));
  return std::max<int64_t>(1, std::llround(config.rank_fraction * smaller));
}

std::vector<MatrixState> Dion::matrix_states(const layers::Parameter& p) const {
  const int64_t rows = p.shape[p.shape.size() - 2], cols = p.shape.back();
  return {{"basis", {cols, rank_of(config_, rows, cols)}}};
}

void Dion::prepare(const RuleShare& share, const Team& team) {
  home_ = &share.home;
  groups_ = by_owners(share, team);
  begin_bases();
}

// The same on all ranks: normals by name and place.
void Dion::begin_bases() const {
  for (const auto& group : groups_)
    for (const auto* m : group.matrices) {
      const auto& basis = m->state[0];
      if (device::is_counting(basis)) continue;
      const tensor::LogicalTensor all{
          "optimizer.basis." + m->parameter->name, tensor::DType::fp32, {m->first_matrix + basis.size(0), basis.size(1), basis.size(2)}};
      kernels::initialise(basis, 0, all, {{m->first_matrix, 0, 0}, basis.sizes().vec()}, tensor::Initial::normal(1));
    }
}

void Dion::update(const Update& update) {
  if (update.step == 1) begin_bases();  // also where moments were forgotten
  const base::WorkScope scope("dion", base::WorkKind::muon);
  for (const auto& group : groups_) update_group(group, update);
}

void Dion::update_group(const OwnersShare& group, const Update& update) const {
  const auto left = zeros(group, 2), right = zeros(group, 1);  // of rows, and of columns
  std::map<const layers::Parameter*, const MatrixSlot*> matrices;
  for (const auto* m : group.matrices) matrices[m->parameter] = m;
  const auto for_each_slot = [&](const StateHome::TensorsOf& tensors_of, const auto& work) {
    home_->visit(group.slots, tensors_of, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) work(i);
    });
  };
  const auto momentum_of = [](Slot& slot) { return std::vector{&slot.state[0]}; };
  // In fp32 where it is kept in bf16: what `change` does to it is rounded then.
  const auto change_momentum = [&](Slot& slot, const char* pass, const auto& change) {
    auto& momentum = slot.state[0];
    if (momentum.scalar_type() != at::kBFloat16) return change(momentum);
    const auto fp32 = momentum.to(at::kFloat);
    change(fp32);
    momentum.copy_(kernels::round_stochastically(fp32, kernels::rounding_key(pass + slot.shard.parameter->name, update.step)));
  };

  for_each_slot(momentum_of, [&](size_t i) {
    auto& slot = *group.slots[i];
    const auto& m = *matrices.at(slot.shard.parameter);
    change_momentum(slot, "B.", [&](const at::Tensor& momentum) {
      momentum.add_(slot.shard.gradient_slice(), update.gradient_scale);
      for_each_piece(slot, m.first_matrix, momentum, [&](const Piece& piece) {
        kernels::matmul_into(piece.rows_of(left.of.at(m.parameter)), piece.elements, piece.cols_of(m.state[0]), /*overwrite=*/false);
      });
    });
  });
  if (group.group) group.group->all_reduce(left.all);
  for (const auto& [parameter, columns] : left.of) columns.copy_(std::get<0>(at::linalg_qr(columns)));

  for_each_slot(momentum_of, [&](size_t i) {
    const auto& slot = *group.slots[i];
    const auto& m = *matrices.at(slot.shard.parameter);
    const auto b = slot.state[0].to(left.all.scalar_type());
    for_each_piece(slot, m.first_matrix, b, [&](const Piece& piece) {
      kernels::matmul_into(piece.cols_of(right.of.at(m.parameter)), piece.elements.t(), piece.rows_of(left.of.at(m.parameter)),
                           /*overwrite=*/false);
    });
  });
  if (group.group) group.group->all_reduce(right.all);
  std::map<const layers::Parameter*, at::Tensor> directions;  // Q, and zeros for columns that stayed
  for (const auto* m : group.matrices) {
    const auto& r = right.of.at(m->parameter);
    const auto norms = r.square().sum(1, /*keepdim=*/true).sqrt_();
    // What rounding of B leaves of a direction that it does not have: of products in fp32 or fp64, or of its numbers in bf16.
    const auto& shape = m->parameter->shape;
    const bool is_bf16 = r.scalar_type() == at::kFloat && config_.moments_dtype == "bf16";
    const double rounding = r.scalar_type() == at::kDouble ? 1e-12
                            : is_bf16                      ? std::ldexp(1.0, -7) / std::sqrt(static_cast<double>(shape[shape.size() - 2]))
                                                           : 1e-6;
    const auto counts = norms.gt(norms.square().sum(2, /*keepdim=*/true).sqrt_() * rounding);
    const auto normalised = r / norms;
    m->state[0].copy_(at::where(counts, normalised, m->state[0]));
    directions[m->parameter] = normalised.masked_fill(counts.logical_not(), 0);
  }

  const auto all_of = [](Slot& slot) {
    std::vector<at::Tensor*> tensors = {&slot.state[0]};
    if (slot.has_master) tensors.push_back(&slot.master);
    return tensors;
  };
  for_each_slot(all_of, [&](size_t i) {
    auto& slot = *group.slots[i];
    const auto& m = *matrices.at(slot.shard.parameter);
    const auto& p = left.of.at(m.parameter);
    const auto kept = right.of.at(m.parameter) * (config_.momentum - 1);
    change_momentum(slot, "M.", [&](const at::Tensor& momentum) {
      for_each_piece(slot, m.first_matrix, momentum, [&](const Piece& piece) {
        kernels::matmul_into(piece.elements, piece.rows_of(p), piece.cols_of(kept).t(), /*overwrite=*/false);
      });
    });
    const auto& shape = m.parameter->shape;
    const double size = static_cast<double>(shape[shape.size() - 2]) * static_cast<double>(shape.back()) / static_cast<double>(p.size(2));
    const auto step = directions.at(m.parameter) * (-update.lr * config_.rms_match * std::sqrt(size / m.parameter->width));
    slot.master.mul_(1 - update.lr * slot.weight_decay);
    for_each_piece(slot, m.first_matrix, slot.master, [&](const Piece& piece) {
      kernels::matmul_into(piece.elements, piece.rows_of(p), piece.cols_of(step).t(), /*overwrite=*/false);
    });
    if (slot.has_master) slot.shard.value.copy_(slot.master);
  });
}

}  // namespace ingot::optim
