#include "models/decode/join.h"

#include <algorithm>

#include "kernels/cpu/rows_norm.h"

namespace ingot::models::decode {
namespace {

const float* numbers(const at::Tensor& vector) { return vector.defined() ? vector.const_data_ptr<float>() : nullptr; }

}  // namespace

void JoinStep::prepare(Pass& pass) { pass.work.floats(Slot::inverse, pass.rows()); }

void JoinStep::run(Pass& pass, const Worker& worker) {
  const auto own = share_of_rows(pass.rows(), worker);
  if (own.size() == 0) return;
  const int64_t hidden = pass.hidden, first = own.begin * hidden, count = own.size();
  float *residual = pass.residual() + first, *branch = pass.branch() + first, *normed = pass.normed() + first;
  kernels::cpu::JoinNormProblem p{};
  p.rows = count, p.width = hidden, p.eps = join_.eps, p.inverse = pass.work.floats(Slot::inverse) + own.begin;
  if (join_.has_branch && join_.behind.defined()) {
    p.residual = branch, p.weight = numbers(join_.behind), p.normed = branch;
    kernels::cpu::join_norm_forward(p, 0, count);
  }
  if (join_.has_branch && join_.scale != 1)
    for (int64_t i = 0; i < count * hidden; ++i) branch[i] *= static_cast<float>(join_.scale);
  p.residual = residual, p.weight = numbers(join_.before), p.normed = normed;
  if (join_.has_branch) {
    p.branch = branch, p.joined = residual;
    p.residual_scale = numbers(join_.residual.residual_scale), p.residual_bias = numbers(join_.residual.residual_bias);
    p.branch_scale = numbers(join_.residual.branch_scale), p.branch_bias = numbers(join_.residual.branch_bias);
  }
  if (join_.has_branch || join_.before.defined()) kernels::cpu::join_norm_forward(p, 0, count);
  if (!join_.before.defined()) std::copy_n(residual, count * hidden, normed);
}

}  // namespace ingot::models::decode
