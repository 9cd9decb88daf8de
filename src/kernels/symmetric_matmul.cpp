#include "kernels/symmetric_matmul.h"

#include "device/device.h"
#include "kernels/cpu_matmul.h"
#include "kernels/matmul.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

using gpu::MatrixRows, gpu::SymmetricMatmulProblem;

constexpr const char *kName = "symmetric_matmul", *kSymbol = "ingot_symmetric_matmul";

// Emulated and counting devices stand for GPUs that do.
bool prefers_own(at::Device device) {
  if (device::is_virtual(device)) return true;
  auto* const prefers = device::gpu_function<int(int)>("ingot_prefers_symmetric_matmul");
  return prefers != nullptr && prefers(device.index()) != 0;
}

// In vectors of 16 bytes; undefined is, too.
bool are_vectors(const at::Tensor& x) {
  const auto is_fit = [&](int64_t dim) { return x.size(dim) == 1 || x.stride(dim) % 8 == 0; };
  return !x.defined() || (x.scalar_type() == at::kBFloat16 && x.stride(2) == 1 && is_fit(0) && is_fit(1) && x.storage_offset() % 8 == 0);
}

bool is_fused(const at::Tensor& p, const at::Tensor& c) {
  constexpr int64_t kMostBlocks = int64_t{1} << 31;
  const int64_t tiles = (p.size(1) + gpu::kSymmetricTile - 1) / gpu::kSymmetricTile;
  return device::is_gpu(p) && p.numel() > 0 && p.size(1) % 8 == 0 && p.size(2) < kMostBlocks && are_vectors(p) && are_vectors(c) &&
         p.size(0) * tiles * (tiles + 1) / 2 < kMostBlocks && prefers_own(p.device());
}

MatrixRows rows(const at::Tensor& x) {
  return x.defined() ? MatrixRows{static_cast<uint16_t*>(address(x)), x.stride(0), x.stride(1)} : MatrixRows{};
}

// What the kernel gives, but for the order in which it adds.
void on_host(const at::Tensor& p, const at::Tensor& c, const at::Tensor& out, double alpha, double beta) {
  const auto wide = p.to(at::kFloat);
  auto sum = at::bmm(wide, wide.mT()).mul_(alpha);
  if (c.defined()) sum.add_(c, beta);
  out.copy_(sum.triu() + sum.triu(1).mT());
}

// Of tiles those on and above the diagonal: by a kernel that knows it, or strip by strip.
at::Tensor on_cpu(const at::Tensor& p, const at::Tensor& c, double alpha, double beta) {
  const int64_t m = p.size(1);
  auto out = at::empty({p.size(0), m, m}, p.options());
  const bool takes_own = takes_cpu_matmul(p, p, p.scalar_type());
  for (int64_t i = 0; i < p.size(0); ++i) {
    const auto matrix = p[i], other = c.defined() ? c[i] : c, to = out[i];
    if (takes_own) {
      cpu_matmul_into(to, matrix, matrix.t(), /*overwrite=*/true, {alpha, other, beta, /*is_symmetric=*/true});
      continue;
    }
    for (int64_t from = 0; from < m; from += gpu::kSymmetricTile) {
      const int64_t rows = std::min<int64_t>(gpu::kSymmetricTile, m - from), columns = m - from;
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, from, rows).narrow(1, from, columns); };
      const auto strip = matmul(matrix.narrow(0, from, rows), matrix.narrow(0, from, columns).t(), at::kFloat).mul_(alpha);
      if (other.defined()) strip.add_(part(other), beta);
      part(to).copy_(strip);
      to.narrow(0, from + rows, columns - rows).narrow(1, from, rows).copy_(part(to).narrow(1, rows, columns - rows).t());
    }
  }
  return out;
}

}  // namespace

at::Tensor symmetric_matmul(const at::Tensor& p, const at::Tensor& c, double alpha, double beta) {
  if (device::is_cpu(p) && !device::is_gpu(p)) return on_cpu(p, c, alpha, beta);
  if (!is_fused(p, c)) return baddbmm(c, p, p.mT(), beta, alpha);
  const int64_t batch = p.size(0), m = p.size(1), k = p.size(2);
  const auto out = at::empty({batch, m, m}, p.options());
  device::note(kName, {p, c}, {out}, symmetric_matmul_flops(batch, m, k));
  if (device::is_counting(p)) return out;
  if (device::is_virtual(p.device())) {
    device::launch({p, c, out}, [=](const auto& host) { on_host(host[0], host[1], host[2], alpha, beta); });
    return out;
  }
  const SymmetricMatmulProblem problem{batch, m, k, rows(p), rows(c), rows(out), static_cast<float>(alpha), static_cast<float>(beta)};
  detail::launch_on_gpu<SymmetricMatmulProblem>({.name = kName, .symbol = kSymbol}, problem, p.device());
  return out;
}

double symmetric_matmul_flops(int64_t batch, int64_t m, int64_t k, int64_t tile) {
  double elements = 0;
  for (int64_t row = 0; row < m; row += tile) elements += static_cast<double>(std::min(tile, m - row)) * static_cast<double>(m - row);
  return 2 * static_cast<double>(batch) * elements * static_cast<double>(k);
}

}  // namespace ingot::kernels
