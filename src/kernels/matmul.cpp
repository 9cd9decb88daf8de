#include "kernels/matmul.h"

#include "device/device.h"
#include "device/stream.h"
#include "device/virtual_device.h"
#include "kernels/cpu_matmul.h"
#include "kernels/gemm_backend.h"
#include "kernels/gemm_tuning.h"

namespace ingot::kernels {
namespace {

bool is_on_host(const at::Tensor& a) { return device::is_cpu(a) && !device::is_gpu(a); }

bool needs_upcast(const at::Tensor& a) {
  if (!is_on_host(a) || a.scalar_type() != at::kBFloat16) return false;
  return gemm_backend() == GemmBackend::upcast || (gemm_backend() != GemmBackend::onednn && !cpu_has_bf16_products());
}

// oneDNN has no GEMMs of nothing.
bool takes_onednn(const at::Tensor& a, const at::Tensor& b) {
  return gemm_backend() == GemmBackend::onednn && is_on_host(a) && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
         a.numel() > 0 && b.numel() > 0;
}

// GPUs have it; the CPU underneath an emulated device has not.
at::Tensor mm_into_fp32(const at::Tensor& a, const at::Tensor& b) {
  if (!device::is_emulated(a.device())) return at::mm(a, b, at::kFloat);
  auto out = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
  device::note("aten::mm", {a, b}, {out}, 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1)));
  device::launch({a, b, out}, [](const auto& host) { host[2].copy_(at::mm(host[0].to(at::kFloat), host[1].to(at::kFloat))); });
  return out;
}

// out [m, n] = (overwrite ? 0 : out) + a b on a GPU: bf16 operands whose products it sums in fp32.
void sum_into_fp32(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool overwrite) {
  if (!device::is_virtual(a.device())) {
    overwrite ? at::mm_out(out, a, b, at::kFloat) : at::addmm_out(out, out, a, b, at::kFloat);
    return;
  }
  const double flops = 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1));
  overwrite ? device::note("aten::mm", {a, b}, {out}, flops) : device::note("aten::addmm", {out, a, b}, {out}, flops);
  if (device::is_counting(a)) return;
  device::launch({a, b, out}, [overwrite](const auto& host) {
    auto sum = host[2];
    at::addmm_out(sum, sum, host[0].to(at::kFloat), host[1].to(at::kFloat), overwrite ? 0 : 1, 1);
  });
}

bool is_tuned(const at::Tensor& a) { return gemm_backend() == GemmBackend::tuned && device::is_gpu(a) && !device::is_counting(a); }

// By the algorithm that was measured to be fastest; false where that is not the choice, or there is none.
bool ran_tuned(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const at::Tensor& bias = {}) {
  return is_tuned(a) && run_tuned({out, a, b, bias, !overwrite});
}

// The same in `dtype`; undefined for false.
at::Tensor tuned_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  if (!is_tuned(a)) return {};
  const auto out = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  return ran_tuned(out, a, b, /*overwrite=*/true) ? out : at::Tensor();
}

at::Tensor matmul_of_cpu(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  auto out = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  cpu_matmul_into(out, a, b, /*overwrite=*/true);
  return out;
}

at::Tensor gemm_of(const at::Tensor& a, const at::Tensor& b) {
  if (takes_cpu_matmul(a, b, a.scalar_type())) return matmul_of_cpu(a, b, a.scalar_type());
  return takes_onednn(a, b) ? multiply_by_onednn(a, b) : at::mm(a, b);
}

}  // namespace

bool cpu_has_bf16_products() {
#if defined(__x86_64__)
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0;
  return supported;
#else
  return false;
#endif
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  if (auto out = tuned_matmul(a, b, dtype); out.defined()) return out;
  if (takes_cpu_matmul(a, b, dtype)) return matmul_of_cpu(a, b, dtype);
  if (a.scalar_type() == dtype && !needs_upcast(a)) return gemm_of(a, b);
  if (device::is_gpu(a) && a.scalar_type() == at::kBFloat16 && dtype == at::kFloat) return mm_into_fp32(a, b);
  if (a.scalar_type() == at::kBFloat16 && dtype != at::kFloat && !needs_upcast(a)) return at::mm(a, b).to(dtype);
  return gemm_of(a.to(at::kFloat), b.to(at::kFloat)).to(dtype);
}

void matmul_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool overwrite) {
  if (ran_tuned(out, a, b, overwrite)) return;
  if (takes_cpu_matmul(a, b, out.scalar_type())) return cpu_matmul_into(out, a, b, overwrite);
  if (device::is_gpu(a) && a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 && out.scalar_type() == at::kFloat)
    return sum_into_fp32(out, a, b, overwrite);
  if (a.scalar_type() != out.scalar_type() || needs_upcast(a)) {
    if (out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble) {
      const auto wide_a = a.to(out.scalar_type()), wide_b = b.to(out.scalar_type());
      if (takes_cpu_matmul(wide_a, wide_b, out.scalar_type())) cpu_matmul_into(out, wide_a, wide_b, overwrite);
      else at::addmm_out(out, out, wide_a, wide_b, overwrite ? 0 : 1, 1);
    } else {
      const auto gemm = matmul(a, b, out.scalar_type());
      overwrite ? out.copy_(gemm) : out.add_(gemm);
    }
    return;
  }
  // mm writes straight into a strided view as long as its columns are contiguous.
  if (overwrite && takes_onednn(a, b)) out.copy_(multiply_by_onednn(a, b));
  else if (takes_onednn(a, b) && prefers_cpu_matmul(a.scalar_type())) cpu_matmul_into(out, a, b, overwrite);
  else if (overwrite) at::mm_out(out, a, b);
  else at::addmm_out(out, out, a, b, 1, 1);
}

void matmul_with_bias_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (!device::is_gpu(a)) {
    matmul_into(out, a, b, /*overwrite=*/true);
    out.add_(bias);
    return;
  }
  if (ran_tuned(out, a, b, /*overwrite=*/true, bias)) return;
  if (!device::is_virtual(a.device())) {
    at::addmm_out(out, bias, a, b);
    return;
  }
  device::note("aten::addmm", {bias, a, b}, {out}, 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1)));
  if (device::is_counting(a)) return;
  device::launch({out, bias, a, b}, [](const auto& host) {
    auto sum = host[0];
    at::mm_out(sum, host[2], host[3]);
    sum.add_(host[1]);
  });
}

void matmul_of_any_rows_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  const bool needs_kernels = is_on_host(a) && a.scalar_type() == at::kBFloat16 && out.scalar_type() == at::kBFloat16 && !needs_upcast(a) &&
                             !takes_cpu_matmul(a, b, out.scalar_type());
  if (!needs_kernels) return matmul_into(out, a, b, /*overwrite=*/true);
  constexpr int64_t step = 64;  // rows of oneDNN's kernels; the rest is filled up with zeros, and should be small
  const int64_t rows = a.size(0);
  int64_t from = 0;
  for (; from + step <= rows; from += step) matmul_into(out.narrow(0, from, step), a.narrow(0, from, step), b, /*overwrite=*/true);
  const int64_t rest = rows - from;
  if (rest == 0) return;
  auto filled = at::zeros({step, a.size(1)}, a.options());
  filled.narrow(0, 0, rest).copy_(a.narrow(0, from, rest));
  out.narrow(0, from, rest).copy_(matmul(filled, b, out.scalar_type()).narrow(0, 0, rest));
}

at::Tensor baddbmm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double beta, double alpha) {
  if (!takes_cpu_matmul(a, b, a.scalar_type())) {
    if (c.defined()) return at::baddbmm(c, a, b, beta, alpha);
    const auto product = at::bmm(a, b);
    return alpha == 1 ? product : product * alpha;
  }
  auto out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  std::vector<CpuMatmul> all;
  for (int64_t i = 0; i < a.size(0); ++i)
    all.push_back({out[i], a[i], b[i], /*overwrite=*/true, {.scale = alpha, .other = c.defined() ? c[i] : c, .other_scale = beta}});
  cpu_matmuls_into(all);
  return out;
}

}  // namespace ingot::kernels
