#include "optim/normuon.h"

#include <cmath>
#include <map>

namespace ingot::optim {
namespace {

// Of the rows [stack, rows] those that a slice's region touches; `first_matrix`: the first that is here.
at::Tensor rows_of(const tensor::Region& region, const at::Tensor& rows, int64_t first_matrix) {
  const auto& box = region.box;
  const size_t dims = box.extent.size();
  const int64_t matrix = dims == 3 ? box.offset[0] - first_matrix : 0, count = dims == 3 ? box.extent[0] : 1;
  return rows.narrow(0, matrix, count).narrow(1, box.offset[dims - 2], box.extent[dims - 2]);
}

}  // namespace

// Where matrices are cut the sums of squares are put together by one all_reduce, and the rest is each rank's own work.
std::vector<double> NorMuon::scale(const Matrices& matrices, std::vector<at::Tensor>& directions) const {
  int64_t all_rows = 0;
  for (const auto* rows : matrices.matrices) all_rows += rows->state[0].numel();
  const auto squares = at::zeros({all_rows}, matrices.matrices.front()->state[0].options());
  std::map<const layers::Parameter*, std::pair<at::Tensor, int64_t>> rows_by_parameter;  // [stack, rows], and the first of the stack
  int64_t at = 0;
  for (const auto* rows : matrices.matrices) {
    const auto& state = rows->state[0];
    rows_by_parameter[rows->parameter] = {squares.narrow(0, at, state.numel()).view_as(state), rows->first_matrix};
    at += state.numel();
  }
  const auto for_each_region = [&](const auto& visit) {
    for (size_t i = 0; i < matrices.slots.size(); ++i) {
      const auto& shard = matrices.slots[i]->shard;
      const auto& [rows, first_matrix] = rows_by_parameter.at(shard.parameter);
      for (const auto& region : shard.regions()) visit(matrices_of(region, directions[i]), rows_of(region, rows, first_matrix));
    }
  };
  for_each_region([](const at::Tensor& direction, const at::Tensor& sums) { sums.add_(direction.square().sum(-1)); });
  if (matrices.group) matrices.group->all_reduce(squares);
  for (const auto* rows : matrices.matrices) {
    const auto& sums = rows_by_parameter.at(rows->parameter).first;
    const auto& v = rows->state[0];
    const auto cols = static_cast<double>(rows->parameter->shape.back());
    v.mul_(config().beta2).add_(sums, (1 - config().beta2) / cols);
    const auto inverse = v.sqrt().add_(config().eps).reciprocal_();
    const auto norm = (sums * inverse.square()).sum(-1, /*keepdim=*/true).sqrt_().clamp_min_(1e-12);  // 0: of a direction of zeros
    sums.copy_(inverse.mul_(std::sqrt(static_cast<double>(v.size(-1)) * cols)).div_(norm));
  }
  for_each_region([](const at::Tensor& direction, const at::Tensor& factors) { direction.mul_(factors.unsqueeze(-1)); });
  return std::vector<double>(matrices.slots.size(), config().rms_match);
}

}  // namespace ingot::optim
