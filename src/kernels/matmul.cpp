#include "kernels/matmul.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/product_library.h"

namespace ingot::kernels {
namespace {

bool needs_widening(const at::Tensor& a) {
  if (!a.is_cpu() || a.scalar_type() != at::kBFloat16) return false;
  const auto library = product_library();
  return library == ProductLibrary::widened || (library == ProductLibrary::usual && !cpu_has_bf16_products());
}

// oneDNN has no products of nothing.
bool takes_onednn(const at::Tensor& a, const at::Tensor& b) {
  return product_library() == ProductLibrary::onednn && a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
         a.numel() > 0 && b.numel() > 0;
}

constexpr int64_t kMostOfBlas = std::numeric_limits<int>::max();

bool sums_in_fp32(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  return out == at::kFloat && a.is_cpu() && a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 &&
         product_library() == ProductLibrary::usual && sums_bf16_in_fp32() && std::max({a.size(0), a.size(1), b.size(1)}) < kMostOfBlas;
}

at::Tensor product_of(const at::Tensor& a, const at::Tensor& b) { return takes_onednn(a, b) ? multiply_by_onednn(a, b) : at::mm(a, b); }

}  // namespace

bool cpu_has_bf16_products() {
#if defined(__x86_64__)
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0;
  return supported;
#else
  return false;
#endif
}

int64_t rows_of_known_kernel(int64_t rows, const at::Tensor& operand) {
  const bool makes_kernels = operand.is_cpu() && operand.scalar_type() == at::kBFloat16 && !needs_widening(operand);
  if (!makes_kernels || rows <= 0) return rows;
  const auto step = std::max<int64_t>(16, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows))) / 8);
  return (rows + step - 1) / step * step;
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  if (a.scalar_type() == dtype && !needs_widening(a)) return product_of(a, b);
  if (a.is_cuda() && a.scalar_type() == at::kBFloat16 && dtype == at::kFloat) return at::mm(a, b, dtype);
  if (sums_in_fp32(a, b, dtype)) {
    auto out = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
    sum_bf16_in_fp32(out, a, b, /*overwrite=*/true);
    return out;
  }
  if (a.scalar_type() == at::kBFloat16 && dtype != at::kFloat && !needs_widening(a)) return at::mm(a, b).to(dtype);
  return product_of(a.to(at::kFloat), b.to(at::kFloat)).to(dtype);
}

void matmul_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool overwrite) {
  if (sums_in_fp32(a, b, out.scalar_type())) return sum_bf16_in_fp32(out, a, b, overwrite);
  if (a.scalar_type() != out.scalar_type() || needs_widening(a)) {
    if (out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble) {
      const auto wide = out.scalar_type();
      at::addmm_out(out, out, a.to(wide), b.to(wide), overwrite ? 0 : 1, 1);
    } else {
      const auto product = matmul(a, b, out.scalar_type());
      overwrite ? out.copy_(product) : out.add_(product);
    }
    return;
  }
  // mm writes straight into a strided view as long as its columns are contiguous.
  if (overwrite && takes_onednn(a, b)) out.copy_(multiply_by_onednn(a, b));
  else if (overwrite) at::mm_out(out, a, b);
  else at::addmm_out(out, out, a, b, 1, 1);
}

}  // namespace ingot::kernels
