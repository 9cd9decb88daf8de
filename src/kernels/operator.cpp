#include "kernels/operator.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/rows_parallel.h"
#include "kernels/operators/helpers.h"

namespace ingot::kernels {

at::Tensor OperatorSizes::normal(at::IntArrayRef sizes) const {
  constexpr int64_t kDrawn = 65537;  // a prime: no two rows of a matrix are alike
  const auto options = at::TensorOptions().device(device);
  const int64_t count = c10::multiply_integers(sizes), whole = count / kDrawn;
  if (whole < 2) return at::randn(sizes, options);
  const auto drawn = at::randn({kDrawn}, options);
  auto all = at::empty({count}, options);
  all.narrow(0, 0, whole * kDrawn).view({whole, kDrawn}).copy_(drawn.expand({whole, kDrawn}));
  all.narrow(0, whole * kDrawn, count - whole * kDrawn).copy_(drawn.narrow(0, 0, count - whole * kDrawn));
  return all.view(sizes);
}

at::Tensor OperatorSizes::leaf(at::IntArrayRef sizes, at::ScalarType of) const { return normal(sizes).to(of).set_requires_grad(true); }

at::Tensor OperatorSizes::indices(int64_t limit, at::IntArrayRef sizes) const {
  return at::randint(limit, sizes, at::TensorOptions().dtype(at::kLong)).to(device);
}

bool OperatorCall::has_backward() const {
  return std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) { return x.requires_grad(); });
}

const Operator* find_operator(const std::vector<Operator>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Operator& op) { return op.name == name; });
  return found == all.end() ? nullptr : &*found;
}

namespace {

const TracedKernel* find_kernel(const Operator& op, std::string_view name) {
  const auto found = std::find_if(op.traced.begin(), op.traced.end(), [&](const TracedKernel& kernel) { return kernel.name == name; });
  return found == op.traced.end() ? nullptr : &*found;
}

}  // namespace

const Operator* operator_of_kernel(const std::vector<Operator>& all, std::string_view traced_name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Operator& op) { return find_kernel(op, traced_name) != nullptr; });
  return found == all.end() ? nullptr : &*found;
}

std::optional<MeasuredSize> measured_size(const std::vector<Operator>& all, std::string_view traced_name, const Shapes& inputs,
                                          const Shapes& outputs) {
  const auto* op = operator_of_kernel(all, traced_name);
  const auto* kernel = op ? find_kernel(*op, traced_name) : nullptr;
  if (!kernel || !kernel->size || !op->measured) return std::nullopt;
  const auto [rows, width] = kernel->size(inputs, outputs);
  return MeasuredSize{op->name, rows, width, kernel->is_backward};
}

std::vector<int64_t> token_rows(bool quick, int64_t factor) {
  auto rows = quick ? std::vector<int64_t>{128, 2048} : std::vector<int64_t>{32, 256, 1024, 4096, 16384};
  for (auto& r : rows) r *= factor;
  return rows;
}

Operator token_operator(TokenKernel k) {
  return {.name = k.name,
          .kind = k.kind,
          .traced = {{k.name, false, k.forward_size}, {k.backward_name, true, k.backward_size}},
          .fused_on = std::move(k.fused_on),
          .make = k.make,
          .cost = k.cost,
          .measured = [](bool quick) { return grid(token_rows(quick), doubling(256, quick ? 1024 : 2048, quick)); },
          .checked = std::move(k.checked)};
}

std::vector<int64_t> doubling(int64_t low, int64_t high, bool quick) {
  std::vector<int64_t> all = {low};
  while (all.back() < high) all.push_back(quick ? high : 2 * all.back());
  return all;
}

std::vector<Size> grid(const std::vector<int64_t>& rows, const std::vector<int64_t>& widths) {
  std::vector<Size> sizes;
  for (const int64_t r : rows)
    for (const int64_t w : widths) sizes.emplace_back(r, w);
  return sizes;
}

int64_t elements(const device::Trace::TensorShape& shape) {
  return std::accumulate(shape.sizes.begin(), shape.sizes.end(), int64_t{1}, std::multiplies<>());
}

int64_t row_sums_scratch(int64_t rows, int64_t width) {
  const int64_t runs = cpu::row_runs(rows);
  return runs == 1 ? 0 : runs * width * 4;
}

}  // namespace ingot::kernels
