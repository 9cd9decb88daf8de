#include "kernels/cpu_matmul.h"

#include <algorithm>

#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/gemm_backend.h"
#include "kernels/symmetric_matmul.h"

#ifdef INGOT_X86_ISAS
#include <cpuid.h>
#endif

namespace ingot::kernels {
namespace {

// Lines of elements side by side, along one dim or the other: copied when they are neither.
at::Tensor in_lines(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous(); }

// Of AMD: those before have vector units of half the width, which MKL uses all of.
bool is_zen_5_or_later() {
#ifdef INGOT_X86_ISAS
  if (!__builtin_cpu_is("amd")) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  return ((eax >> 8) & 0xf) + ((eax >> 20) & 0xff) >= 0x1a;
#else
  return false;
#endif
}

}  // namespace

bool has_cpu_matmul(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cpu::pair_unit_of_matrices() != cpu::PairUnit::none;
  return dtype == at::kFloat && cpu::best_isa() != cpu::Isa::portable;
}

bool prefers_cpu_matmul(at::ScalarType dtype) {
  static const bool is_wide = cpu::best_isa() == cpu::Isa::avx512 && is_zen_5_or_later();
  return has_cpu_matmul(dtype) && (dtype == at::kBFloat16 || is_wide);
}

bool takes_cpu_matmul(at::ScalarType dtype) {
  const auto backend = gemm_backend();
  return backend == GemmBackend::ingot ? has_cpu_matmul(dtype) : backend == GemmBackend::standard && prefers_cpu_matmul(dtype);
}

bool takes_cpu_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  const auto dtype = a.scalar_type();
  return device::is_cpu(a) && !device::is_gpu(a) && b.scalar_type() == dtype && (out == dtype || out == at::kFloat) &&
         takes_cpu_matmul(dtype);
}

const cpu::GemmKernel& best_gemm_kernel(at::ScalarType dtype) {
  TORCH_CHECK(dtype == at::kFloat || has_cpu_matmul(dtype), "this CPU has no unit that multiplies matrices of ", dtype);
#ifdef INGOT_X86_ISAS
  if (dtype == at::kBFloat16) return cpu::pair_unit_of_matrices() == cpu::PairUnit::amx ? cpu::amx::pair_gemm : cpu::avx512_bf16::pair_gemm;
  if (cpu::best_isa() == cpu::Isa::avx512) return cpu::avx512::float_gemm;
  if (cpu::best_isa() == cpu::Isa::avx2) return cpu::avx2::float_gemm;
#endif
  return cpu::portable::float_gemm;
}

namespace {

// One matmul, laid out; its operands live as long.
struct Laid {
  at::Tensor out, left, right, other;
  cpu::Gemm gemm;
  double flops;
  int64_t packed() const { return gemm.a_panels * gemm.a_panel_size + gemm.b_panels * gemm.b_panel_size; }
  int64_t tasks_to_pack() const { return gemm.a_tasks + gemm.b_tasks; }
};

void check(const CpuMatmul& one) {
  const auto& [out, a, b, overwrite, terms] = one;
  const auto dtype = a.scalar_type();
  const bool is_wide = out.scalar_type() == at::kFloat && dtype != at::kFloat;
  TORCH_INTERNAL_ASSERT(out.size(0) == a.size(0) && out.size(1) == b.size(1) && b.size(0) == a.size(1) &&
                        (out.size(1) <= 1 || out.stride(1) == 1) && (dtype == at::kBFloat16 || dtype == at::kFloat) &&
                        b.scalar_type() == dtype && (out.scalar_type() == dtype || is_wide));
  TORCH_INTERNAL_ASSERT(!terms.is_symmetric || (out.size(0) == out.size(1) && !is_wide));
  TORCH_INTERNAL_ASSERT(!terms.other.defined() || (!is_wide && terms.other.sizes() == out.sizes() && terms.other.scalar_type() == dtype &&
                                                   (out.size(1) <= 1 || terms.other.stride(1) == 1)));
}

Laid laid_out(const CpuMatmul& one, const cpu::GemmKernel& kernel, int64_t workers) {
  const auto& [out, a, b, overwrite, terms] = one;
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  Laid laid{.out = out, .left = in_lines(a), .right = in_lines(b), .other = terms.other, .gemm = {}, .flops = 0};
  laid.gemm = {.m = m,
               .n = n,
               .k = k,
               .a = laid.left.const_data_ptr(),
               .b = laid.right.const_data_ptr(),
               .a_row = laid.left.stride(0),
               .a_column = laid.left.stride(1),
               .b_row = laid.right.stride(0),
               .b_column = laid.right.stride(1),
               .c = out.mutable_data_ptr(),
               .c_row = out.stride(0),
               .is_bf16 = out.scalar_type() == at::kBFloat16,
               .adds = !overwrite,
               .scale = static_cast<float>(terms.scale),
               .other = terms.other.defined() ? terms.other.const_data_ptr() : nullptr,
               .other_row = terms.other.defined() ? terms.other.stride(0) : 0,
               .other_scale = static_cast<float>(terms.other_scale),
               .is_symmetric = terms.is_symmetric};
  kernel.lay_out(laid.gemm, workers);
  const int64_t tile = a.scalar_type() == at::kBFloat16 ? kCpuSymmetricTile : gpu::kSymmetricTile;
  laid.flops = terms.is_symmetric ? symmetric_matmul_flops(1, m, k, tile) : 2.0 * static_cast<double>(m * k) * static_cast<double>(n);
  return laid;
}

// body(matmul, its task, worker) over the tasks of all.
template <class Count, class Body>
void share_out(std::vector<Laid>& all, const Count& count, const Body& body) {
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const auto& laid : all) ends.push_back(end += count(laid));
  cpu::parallel_tasks(end, [&](int64_t task, int64_t worker) {
    const auto one = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), task) - ends.begin());
    body(all[one], task - (one > 0 ? ends[one - 1] : 0), worker);
  });
}

void run(std::vector<Laid>& all, const cpu::GemmKernel& kernel) {
  int64_t elements = 0, tasks = 0, floats = 0;
  for (const auto& laid : all) elements += laid.packed(), tasks += laid.gemm.tasks, floats = std::max(floats, laid.gemm.scratch_floats);
  const auto options = all.front().left.options();
  const auto packed = at::empty({elements}, options);
  const auto scratch = at::empty({cpu::workers_for(tasks) * floats}, options.dtype(at::kFloat));
  bool is_counted = false;
  for (const auto& laid : all)
    is_counted = device::counted("aten::mm", {laid.left, laid.right, laid.other}, {laid.out}, laid.flops) || is_counted;
  if (is_counted) return;
  auto* at = static_cast<char*>(packed.mutable_data_ptr());
  const auto size = static_cast<int64_t>(packed.element_size());
  for (auto& laid : all) {
    auto& g = laid.gemm;
    g.packed_b = at;
    g.packed_a = at + g.b_panels * g.b_panel_size * size;
    at += laid.packed() * size;
  }
  float* const area = scratch.mutable_data_ptr<float>();
  share_out(
      all, [](const Laid& laid) { return laid.tasks_to_pack(); },
      [&](const Laid& laid, int64_t task, int64_t) {
        const auto& g = laid.gemm;
        task < g.b_tasks ? kernel.pack_b(g, task) : kernel.pack_a(g, task - g.b_tasks);
      });
  share_out(
      all, [](const Laid& laid) { return laid.gemm.tasks; },
      [&](const Laid& laid, int64_t task, int64_t worker) { kernel.multiply(laid.gemm, task, area + worker * floats); });
  const auto mirrored = [](const Laid& laid) { return laid.gemm.is_symmetric ? laid.gemm.mirrored : 0; };
  if (std::any_of(all.begin(), all.end(), mirrored))
    share_out(all, mirrored, [&](const Laid& laid, int64_t task, int64_t) { kernel.mirror(laid.gemm, task); });
}

}  // namespace

void cpu_matmuls_into(const std::vector<CpuMatmul>& all, const cpu::GemmKernel* kernel) {
  constexpr int64_t kMostPackedBytes = int64_t{64} << 20;  // of several together
  std::vector<Laid> group;
  int64_t bytes = 0;
  const auto run_group = [&](const cpu::GemmKernel& with) {
    if (!group.empty()) run(group, with);
    group.clear();
    bytes = 0;
  };
  const int64_t workers = cpu::available_workers(), count = std::ssize(all);
  for (const auto& one : all) {
    check(one);
    const auto& [out, a, b, overwrite, terms] = one;
    if (out.numel() == 0 || a.numel() == 0) {
      if (overwrite) out.zero_();
      if (terms.other.defined()) out.add_(terms.other, terms.other_scale);
      continue;
    }
    const auto& best = kernel != nullptr ? *kernel : best_gemm_kernel(a.scalar_type());
    auto laid = laid_out(one, best, (workers + count - 1) / count);
    const int64_t own_bytes = laid.packed() * static_cast<int64_t>(a.element_size());
    if (bytes + own_bytes > kMostPackedBytes) run_group(best);
    bytes += own_bytes;
    group.push_back(std::move(laid));
  }
  if (!group.empty()) run_group(kernel != nullptr ? *kernel : best_gemm_kernel(group.front().left.scalar_type()));
}

void cpu_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const MatmulTerms& terms) {
  cpu_matmuls_into({{out, a, b, overwrite, terms}});
}

}  // namespace ingot::kernels
