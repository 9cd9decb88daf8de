#include "kernels/own_matmul.h"

#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/gemm_backend.h"
#include "kernels/symmetric_matmul.h"

namespace ingot::kernels {
namespace {

// Lines of elements side by side, along one dim or the other: copied when they are neither.
at::Tensor in_lines(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous(); }

bool is_amd() {
#ifdef INGOT_X86_ISAS
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_own_matmul(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cpu::pair_unit_of_matrices() != cpu::PairUnit::none;
  return dtype == at::kFloat && cpu::best_isa() != cpu::Isa::portable;
}

bool prefers_own_matmul(at::ScalarType dtype) {
  return has_own_matmul(dtype) && (dtype == at::kBFloat16 || (cpu::best_isa() == cpu::Isa::avx512 && is_amd()));
}

bool takes_own_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  const auto dtype = a.scalar_type();
  if (!device::is_cpu(a) || device::is_gpu(a) || b.scalar_type() != dtype || (out != dtype && out != at::kFloat)) return false;
  return gemm_backend() == GemmBackend::own ? has_own_matmul(dtype) : gemm_backend() == GemmBackend::standard && prefers_own_matmul(dtype);
}

const cpu::GemmKernel& best_gemm_kernel(at::ScalarType dtype) {
#ifdef INGOT_X86_ISAS
  if (dtype == at::kBFloat16) return cpu::best_pair_unit() == cpu::PairUnit::amx ? cpu::amx::pair_gemm : cpu::avx512_bf16::pair_gemm;
  if (cpu::best_isa() == cpu::Isa::avx512) return cpu::avx512::float_gemm;
  if (cpu::best_isa() == cpu::Isa::avx2) return cpu::avx2::float_gemm;
#endif
  TORCH_CHECK(dtype == at::kFloat, "no pairs of bf16 are multiplied on this CPU");
  return cpu::portable::float_gemm;
}

void own_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const MatmulTerms& terms) {
  own_matmul_into(out, a, b, overwrite, terms, best_gemm_kernel(a.scalar_type()));
}

void own_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const MatmulTerms& terms,
                     const cpu::GemmKernel& kernel) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const auto dtype = a.scalar_type();
  TORCH_INTERNAL_ASSERT(out.size(0) == m && out.size(1) == n && b.size(0) == k && (n <= 1 || out.stride(1) == 1) &&
                        (dtype == at::kBFloat16 || dtype == at::kFloat) && b.scalar_type() == dtype &&
                        (out.scalar_type() == dtype || (out.scalar_type() == at::kFloat && !terms.is_symmetric && !terms.other.defined())));
  TORCH_INTERNAL_ASSERT(!terms.other.defined() || (terms.other.sizes() == out.sizes() && terms.other.scalar_type() == dtype &&
                                                   (n <= 1 || terms.other.stride(1) == 1)));
  if (m == 0 || n == 0 || k == 0) {
    if (overwrite) out.zero_();
    return;
  }
  const auto left = in_lines(a), right = in_lines(b);
  cpu::Gemm g{.m = m,
              .n = n,
              .k = k,
              .a = left.const_data_ptr(),
              .b = right.const_data_ptr(),
              .a_row = left.stride(0),
              .a_column = left.stride(1),
              .b_row = right.stride(0),
              .b_column = right.stride(1),
              .c = out.mutable_data_ptr(),
              .c_row = out.stride(0),
              .is_bf16 = out.scalar_type() == at::kBFloat16,
              .adds = !overwrite,
              .scale = static_cast<float>(terms.scale),
              .other = terms.other.defined() ? terms.other.const_data_ptr() : nullptr,
              .other_row = terms.other.defined() ? terms.other.stride(0) : 0,
              .other_scale = static_cast<float>(terms.other_scale),
              .is_symmetric = terms.is_symmetric};
  kernel.lay_out(g);
  const auto packed = at::empty({g.a_panels * g.a_panel_size + g.b_panels * g.b_panel_size}, a.options());
  const auto scratch = at::empty({cpu::workers_for(g.tasks) * g.scratch_floats}, a.options().dtype(at::kFloat));
  const double flops = terms.is_symmetric ? symmetric_matmul_flops(1, m, k) : 2.0 * static_cast<double>(m * k) * static_cast<double>(n);
  if (device::counted("aten::mm", {left, right, terms.other}, {out}, flops)) return;
  auto* const areas = static_cast<char*>(packed.mutable_data_ptr());
  g.packed_b = areas;
  g.packed_a = areas + g.b_panels * g.b_panel_size * static_cast<int64_t>(packed.element_size());
  float* const area = scratch.mutable_data_ptr<float>();
  cpu::parallel_tasks(g.b_tasks + g.a_tasks,
                      [&](int64_t task, int64_t) { task < g.b_tasks ? kernel.pack_b(g, task) : kernel.pack_a(g, task - g.b_tasks); });
  cpu::parallel_tasks(g.tasks, [&](int64_t task, int64_t worker) { kernel.multiply(g, task, area + worker * g.scratch_floats); });
  if (g.is_symmetric) cpu::parallel_tasks(g.mirrored, [&](int64_t task, int64_t) { kernel.mirror(g, task); });
}

}  // namespace ingot::kernels
