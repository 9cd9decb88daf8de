#include "kernels/pair_matmul.h"

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

const uint16_t* data(const at::Tensor& x) { return static_cast<const uint16_t*>(x.const_data_ptr()); }

}  // namespace

bool has_pair_matmul() { return cpu::best_pair_unit() == cpu::PairUnit::amx; }

bool takes_pair_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  return gemm_backend() == GemmBackend::standard && device::is_cpu(a) && !device::is_gpu(a) && a.scalar_type() == at::kBFloat16 &&
         b.scalar_type() == at::kBFloat16 && (out == at::kFloat || out == at::kBFloat16) && has_pair_matmul();
}

const cpu::PairGemmKernel& best_pair_gemm() {
#ifdef INGOT_X86_ISAS
  return cpu::amx::pair_gemm;
#else
  TORCH_CHECK(false, "no pairs of bf16 are multiplied on this CPU");
#endif
}

void pair_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const PairTerms& terms,
                      const cpu::PairGemmKernel& kernel) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  TORCH_INTERNAL_ASSERT(out.size(0) == m && out.size(1) == n && b.size(0) == k && (n <= 1 || out.stride(1) == 1) &&
                        a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 &&
                        (out.scalar_type() == at::kBFloat16 || !(terms.is_symmetric || terms.other.defined())) &&
                        (!terms.other.defined() || (terms.other.sizes() == out.sizes() && (n <= 1 || terms.other.stride(1) == 1))));
  if (m == 0 || n == 0 || k == 0) {
    if (overwrite) out.zero_();
    return;
  }
  const auto left = in_lines(a), right = in_lines(b);
  cpu::PairGemm g{.m = m,
                  .n = n,
                  .k = k,
                  .a = data(left),
                  .b = data(right),
                  .a_row = left.stride(0),
                  .a_column = left.stride(1),
                  .b_row = right.stride(0),
                  .b_column = right.stride(1),
                  .c = out.mutable_data_ptr(),
                  .c_row = out.stride(0),
                  .is_bf16 = out.scalar_type() == at::kBFloat16,
                  .adds = !overwrite,
                  .scale = static_cast<float>(terms.scale),
                  .other = terms.other.defined() ? data(terms.other) : nullptr,
                  .other_row = terms.other.defined() ? terms.other.stride(0) : 0,
                  .other_scale = static_cast<float>(terms.other_scale),
                  .is_symmetric = terms.is_symmetric};
  kernel.lay_out(g);
  const auto packed = at::empty({(g.a_panels + g.b_panels) * g.panel_size}, a.options());
  const auto scratch = at::empty({cpu::workers_for(g.tasks) * g.scratch_floats}, a.options().dtype(at::kFloat));
  const double flops = terms.is_symmetric ? symmetric_matmul_flops(1, m, k) : 2.0 * static_cast<double>(m * k) * static_cast<double>(n);
  if (device::counted("aten::mm", {left, right, terms.other}, {out}, flops)) return;
  g.packed_b = static_cast<uint16_t*>(packed.mutable_data_ptr());
  g.packed_a = g.packed_b + g.b_panels * g.panel_size;
  float* const area = scratch.mutable_data_ptr<float>();
  cpu::parallel_tasks(g.b_tasks + g.a_tasks,
                      [&](int64_t task, int64_t) { task < g.b_tasks ? kernel.pack_b(g, task) : kernel.pack_a(g, task - g.b_tasks); });
  cpu::parallel_tasks(g.tasks, [&](int64_t task, int64_t worker) { kernel.multiply(g, task, area + worker * g.scratch_floats); });
  if (g.is_symmetric) cpu::parallel_tasks((m + 31) / 32, [&](int64_t panel, int64_t) { kernel.mirror(g, panel); });
}

}  // namespace ingot::kernels
