#include "kernels/grouped_matmul.h"

#include <algorithm>

#include "device/device.h"
#include "device/stream.h"
#include "device/virtual_device.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kStep = 8;  // elements: rows must begin at multiples of 16 bytes

double flops_of(int64_t rows, int64_t k, int64_t n) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(k) * static_cast<double>(n);
}

/// body(group, its first row, its rows), of groups that have rows; `ends` on the host.
template <class Body>
void for_each_group(const at::Tensor& ends, const Body& body) {
  const auto* end = ends.const_data_ptr<int32_t>();
  int64_t from = 0;
  for (int64_t g = 0; g < ends.numel(); from = end[g++])
    if (end[g] > from) body(g, from, end[g] - from);
}

// [groups, m, n]
at::Tensor gradients_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  if (!device::is_virtual(a.device())) return at::_grouped_mm(a.t(), b, ends);
  auto out = at::empty({ends.numel(), a.size(1), b.size(1)}, a.options());
  device::note("grouped_gemm.gradient", {a, b}, {out}, flops_of(a.size(0), a.size(1), b.size(1)));
  if (device::is_counting(a)) return out;
  device::launch({a, b, ends, out}, [](const auto& host) {
    host[3].zero_();
    for_each_group(host[2], [&](int64_t g, int64_t from, int64_t rows) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, from, rows).to(at::kFloat); };
      host[3][g].copy_(part(host[0]).t().mm(part(host[1])));
    });
  });
  return out;
}

}  // namespace

bool takes_grouped_matmul(const at::Tensor& rows, const at::Tensor& weights) {
  return device::is_gpu(rows) && rows.scalar_type() == at::kBFloat16 && weights.scalar_type() == at::kBFloat16 &&
         weights.size(1) % kStep == 0 && weights.size(2) % kStep == 0;
}

at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& ends) {
  if (!device::is_virtual(rows.device())) return at::_grouped_mm(rows, weights, ends);
  auto out = at::empty({rows.size(0), weights.size(2)}, rows.options());
  // The weights of groups without rows are not read; there are at most as many groups as rows.
  const auto read = weights.narrow(0, 0, std::min(weights.size(0), rows.size(0)));
  device::note("grouped_gemm", {rows, read}, {out}, flops_of(rows.size(0), rows.size(1), weights.size(2)));
  if (device::is_counting(rows)) return out;
  device::launch({rows, weights, ends, out}, [](const auto& host) {
    for_each_group(host[2], [&](int64_t g, int64_t from, int64_t count) {
      host[3].narrow(0, from, count).copy_(host[0].narrow(0, from, count).to(at::kFloat).mm(host[1][g].to(at::kFloat)));
    });
  });
  return out;
}

void grouped_gradient_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends, bool overwrite) {
  const auto gradients = gradients_of(a, b, ends);
  overwrite ? out.copy_(gradients) : out.add_(gradients);
}

}  // namespace ingot::kernels
