// One step of a run: gradient norm and clipped update of `count` tensors [rows, width].
#include "optim/operators.h"

#include <ATen/Parallel.h>

#include "kernels/operators/helpers.h"
#include "layers/operators.h"
#include "layers/operators/helpers.h"
#include "optim/optimizer.h"

namespace ingot::optim {
namespace {

using kernels::Operator, kernels::OperatorCall, kernels::OperatorSizes, kernels::Shapes, kernels::Size, kernels::WorkKind;
using Kind = layers::Parameter::Kind;

OperatorCall update(const OperatorSizes& s, Kind kind, int64_t count) {
  std::vector<layers::Parameter> described;
  for (int64_t i = 0; i < count; ++i) described.push_back({.name = std::to_string(i), .shape = {s.rows, s.width}, .kind = kind});
  const auto list = layers::random_parameters(std::move(described), s);
  for (const auto& p : list->all()) p->accumulate(s.normal(p->shape));
  const auto optimizer = std::make_shared<Optimizer>(*list, OptimizerConfig{});
  OperatorCall call;
  call.is_repeatable = true;
  call.count = count;
  call.forward = [list, optimizer](const kernels::TensorList&) -> kernels::TensorList {
    bool overwrite = false;
    for (const auto& p : list->all()) p->gradient_buffer(overwrite);  // as if backward had just filled it
    optimizer->step(1e-6, 10 + optimizer->gradient_norm().norm);
    return {};
  };
  return call;
}

std::vector<Size> vector_sizes(bool quick) {
  return kernels::grid(quick ? std::vector<int64_t>{256, 65536, 4 << 20} : std::vector<int64_t>{256, 4096, 65536, 1 << 20, 16 << 20}, {1});
}

std::vector<Size> matrix_sizes(bool quick) {
  std::vector<Size> sizes;
  for (const int64_t side : quick ? std::vector<int64_t>{32, 128, 384} : std::vector<int64_t>{16, 32, 64, 128, 256, 512, 1024})
    for (const int64_t width : {side, 3 * side}) sizes.emplace_back(side, width);
  return sizes;
}

std::vector<Operator> update_operators() {
  return {{.name = "adamw",
           .kind = WorkKind::adamw,
           .traced = {{"adamw", false,
                       [](const Shapes& in, const Shapes&) {
                         int64_t elements = 0;  // masters come first, then as many gradients and moments each
                         for (size_t i = 0; i < in.size() / 4; ++i) elements += kernels::elements(in[i]);
                         return Size{elements, 1};
                       }},
                      {"square_sum"},
                      {"add_chunks"}},
           .fused_on = {device::Target::cpu, device::Target::gpu},
           .make = [](const OperatorSizes& s) { return update(s, Kind::embedding, 1); },
           .measured = vector_sizes},
          {.name = "muon",
           .kind = WorkKind::muon,
           .traced = {{"momentum"}, {"apply_direction"}},
           .fused_on = {device::Target::cpu, device::Target::gpu},
           // Enough matrices that each thread has its own, as in a model.
           .make = [](const OperatorSizes& s) { return update(s, Kind::matrix, 2 * at::get_num_threads()); },
           .measured = matrix_sizes}};
}

}  // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = [] {
    auto list = layers::operators();
    for (auto& op : update_operators()) list.push_back(std::move(op));
    return list;
  }();
  return all;
}

}  // namespace ingot::optim
