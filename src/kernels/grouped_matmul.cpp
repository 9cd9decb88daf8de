#include "kernels/grouped_matmul.h"

#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/virtual_device.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kStep = 8;  // elements: rows must begin at multiples of 16 bytes
constexpr int64_t kMostGroups = 1023;

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

// What libtorch's kernel demands of operands in 8 bits (ATen/native/cuda/GroupedBlas.cpp), which the emulated device should demand, too.
void check_codes(const at::Tensor& a, const at::Tensor& b, const GroupedCodes& left, const GroupedCodes& right, const at::Tensor& ends) {
  constexpr int64_t kCodes = 16;
  const int64_t scaled = b.dim() == 2 ? ends.numel() : 1, n = b.size(-1), k = b.size(-2);
  const auto is_code = [](const at::Tensor& x) { return x.scalar_type() == at::kFloat8_e4m3fn; };
  const bool is_right = is_code(a) && is_code(b) && ends.scalar_type() == at::kInt && ends.numel() <= kMostGroups && a.size(1) == k &&
                        k % kCodes == 0 && n % kCodes == 0 && a.stride(1) == 1 && a.stride(0) % kCodes == 0 && b.stride(-2) == 1 &&
                        b.stride(-1) >= k && b.stride(-1) % kCodes == 0 && (b.dim() == 2 || b.size(0) == ends.numel()) &&
                        left.scales.is_contiguous() && left.scales.numel() == scaled * a.size(0) && right.scales.is_contiguous() &&
                        right.scales.numel() == (b.dim() == 2 ? scaled : b.size(0)) * n;
  if (!is_right) throw base::Error(fmt::format("no grouped GEMM of codes {} x {} in {} groups", a.sizes(), b.sizes(), ends.numel()));
}

at::Tensor multiply_codes(const at::Tensor& a, const GroupedCodes& left, const at::Tensor& b, const GroupedCodes& right,
                          const at::Tensor& ends) {
  return at::_scaled_grouped_mm(a, b, left.scales, right.scales, ends, {}, {}, at::kBFloat16, /*use_fast_accum=*/false);
}

// [groups, m, n]
at::Tensor gradients_of(const GroupedCodes& a, const GroupedCodes& b, const at::Tensor& ends, int64_t rows) {
  const auto right = b.values.t();
  if (!device::is_virtual(a.values.device())) return multiply_codes(a.values, a, right, b, ends);
  check_codes(a.values, right, a, b, ends);
  const int64_t m = a.values.size(0), n = b.values.size(0);
  auto out = at::empty({ends.numel(), m, n}, a.values.options().dtype(at::kBFloat16));
  device::note("scaled_grouped_gemm.gradient", {a.values, b.values}, {out}, flops_of(rows, m, n));
  if (device::is_counting(out)) return out;
  device::launch({a.values, b.values, a.scales, b.scales, ends, out}, [m, n](const auto& host) {
    const int64_t groups = host[4].numel();
    const auto scale = host[2].view({groups, m, 1}), of_b = host[3].view({groups, 1, n});
    host[5].zero_();
    for_each_group(host[4], [&](int64_t g, int64_t from, int64_t columns) {
      if (columns % 16 != 0) throw base::Error(fmt::format("group {} of a grouped GEMM of codes sums over {} columns", g, columns));
      const auto part = [&](const at::Tensor& x) { return x.narrow(1, from, columns).to(at::kFloat); };
      host[5][g].copy_(part(host[0]).mm(part(host[1]).t()) * scale[g] * of_b[g]);
    });
  });
  return out;
}

}  // namespace

bool takes_grouped_matmul(const at::Tensor& rows, const at::Tensor& weights) {
  return device::is_gpu(rows) && rows.scalar_type() == at::kBFloat16 && weights.scalar_type() == at::kBFloat16 &&
         weights.size(1) % kStep == 0 && weights.size(2) % kStep == 0 && weights.size(0) <= kMostGroups;
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

at::Tensor grouped_matmul(const GroupedCodes& rows, const GroupedCodes& weights, const at::Tensor& ends) {
  if (!device::is_virtual(rows.values.device())) return multiply_codes(rows.values, rows, weights.values, weights, ends);
  check_codes(rows.values, weights.values, rows, weights, ends);
  const auto& values = weights.values;
  auto out = at::empty({rows.values.size(0), values.size(2)}, rows.values.options().dtype(at::kBFloat16));
  const auto read = values.narrow(0, 0, std::min(values.size(0), rows.values.size(0)));  // as above
  device::note("scaled_grouped_gemm", {rows.values, read}, {out}, flops_of(rows.values.size(0), values.size(1), values.size(2)));
  if (device::is_counting(out)) return out;
  device::launch({rows.values, values, rows.scales, weights.scales, ends, out}, [](const auto& host) {
    for_each_group(host[4], [&](int64_t g, int64_t from, int64_t count) {
      const auto product = host[0].narrow(0, from, count).to(at::kFloat).mm(host[1][g].to(at::kFloat));
      host[5].narrow(0, from, count).copy_(product * host[2].narrow(0, from, count).unsqueeze(1) * host[3][g]);
    });
  });
  return out;
}

void grouped_gradient_into(at::Tensor out, const GroupedCodes& a, const GroupedCodes& b, const at::Tensor& ends, int64_t rows,
                           bool overwrite) {
  const auto gradients = gradients_of(a, b, ends, rows);
  overwrite ? out.copy_(gradients) : out.add_(gradients);
}

}  // namespace ingot::kernels
