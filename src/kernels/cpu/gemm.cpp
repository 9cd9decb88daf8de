#include "kernels/cpu/gemm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

// Fortran's interface with 32-bit integers; weak, since a torch built without MKL need not export it.
extern "C" [[gnu::weak]] void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const float* alpha,
                                     const float* a, const int* a_step, const float* b, const int* b_step, const float* beta, float* c,
                                     const int* c_step);

namespace ingot::kernels::cpu {
namespace {

at::Tensor view(const Factor& x, int64_t rows, int64_t columns) {
  const auto strides = x.transposed ? std::array{int64_t{1}, x.step} : std::array{x.step, int64_t{1}};
  return at::from_blob(const_cast<float*>(x.data), {rows, columns}, strides, at::kFloat);
}

void gemm_by_aten(int64_t m, int64_t n, int64_t k, float alpha, const Factor& a, const Factor& b, float beta, float* c, int64_t c_step) {
  auto out = at::from_blob(c, {m, n}, {c_step, 1}, at::kFloat);
  const auto product = at::mm(view(a, m, k), view(b, k, n)).mul_(alpha);
  if (beta == 0) out.copy_(product);
  else out.mul_(beta).add_(product);
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, float alpha, const Factor& a, const Factor& b, float beta, float* c, int64_t c_step) {
  if (m == 0 || n == 0) return;
  const bool fits = std::max({m, n, k, a.step, b.step, c_step}) <= std::numeric_limits<int>::max();
  if (sgemm_ == nullptr || !fits || k == 0) return gemm_by_aten(m, n, k, alpha, a, b, beta, c, c_step);
  // Read by columns, as Fortran does, row-major memory holds the transposes: c^T = b^T a^T.
  const int rows = static_cast<int>(n), columns = static_cast<int>(m), depth = static_cast<int>(k);
  const int a_step = static_cast<int>(std::max<int64_t>(a.step, 1)), b_step = static_cast<int>(std::max<int64_t>(b.step, 1)), out_step = static_cast<int>(c_step);
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &rows, &columns, &depth, &alpha, b.data, &b_step, a.data, &a_step, &beta, c,
         &out_step);
}

}  // namespace ingot::kernels::cpu
