// Forms of the same iteration on x [m, n], m <= n, A = x x^T, B = a I + b A + c A^2:
//
//   direct: x <- B x. FLOPs per step 2 m^2 n (A) + 2 m^3 (A^2) + 2 m^2 n.
//   gram:   every factor is a polynomial of the first A, so all commute: Q <- B Q and A <- B A B on [m, m] matrices, and
//           x <- Q x once at the end. Four products of m^3 a step instead of any with n: half the work at n = 3 m. It squares
//           the condition number: directions below 3e-4 of the norm come out with an error of some 1e-3, which Muon does not
//           see; so fp64, the reference, never takes it.
//
// A, A^2, B A, B A B and B Q are symmetric: only the blocks on and above the diagonal are multiplied, the rest is mirrored. In bf16
// (kernels/symmetric_matmul.h) that is done from kLeastInBf16 on, a choice that was not measured on GPUs: 5/8 of the FLOPs, as much as the
// kernel's mma.sync reaches on Hopper of the library's wgmma; others gain before that, and CPUs with small tiles from two of them on.
#include "optim/newton_schulz.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/work_scope.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu_matmul.h"
#include "kernels/gemm_tuning.h"
#include "kernels/matmul.h"
#include "kernels/symmetric_matmul.h"

namespace ingot::optim {
namespace {

constexpr int64_t kBlock = 128;  // of symmetric products: small enough to save most of the half, large enough for full GEMM speed
constexpr int64_t kLeastInBf16 = 4 * kBlock;

// Whether half of a product [m, m] is mirrored.
bool saves_half(int64_t m, Iterates iterates) {
  switch (iterates) {
    case Iterates::own: return m >= 2 * kBlock;
    case Iterates::bf16: return false;
    case Iterates::bf16_symmetric: return m >= kLeastInBf16;
    case Iterates::bf16_small_tiles: return m >= 2 * kernels::kCpuSymmetricTile;
  }
  return false;
}

bool takes_gram_form(int64_t small, int64_t large, int64_t steps) { return 2 * large >= 3 * small && steps > 1; }

// p q^T where the product is known to be symmetric; p, q [m, k] fp32. scale times that, and other_scale times another symmetric one.
at::Tensor symmetric_product(const at::Tensor& p, const at::Tensor& q, double scale = 1, const at::Tensor& other = {},
                             double other_scale = 0) {
  const int64_t m = p.size(0);
  auto out = at::empty({m, m}, p.options());
  if (kernels::takes_cpu_matmul(p, q, at::kFloat)) {
    kernels::cpu_matmul_into(out, p, q.t(), /*overwrite=*/true, {scale, other, other_scale, saves_half(m, Iterates::own)});
    return out;
  }
  const auto scaled = [&](const at::Tensor& product) {
    if (scale != 1) product.mul_(scale);
    return other.defined() ? product.add_(other, other_scale) : product;
  };
  if (!saves_half(m, Iterates::own)) return scaled(kernels::matmul(p, q.t(), at::kFloat));
  for (int64_t from = 0; from < m; from += kBlock) {
    const int64_t rows = std::min(kBlock, m - from);
    auto strip = out.narrow(0, from, rows).narrow(1, from, m - from);
    at::mm_out(strip, p.narrow(0, from, rows), q.narrow(0, from, m - from).t());
    if (from + rows < m)
      out.narrow(0, from + rows, m - from - rows).narrow(1, from, rows).copy_(strip.narrow(1, rows, m - from - rows).t());
  }
  return scaled(out);
}

// a I + b A + c A^2
at::Tensor polynomial_of(const at::Tensor& gram, const Quintic& q) {
  auto out = symmetric_product(gram, gram, q.c, gram, q.b);
  out.diagonal().add_(q.a);
  return out;
}

at::Tensor by_direct_form(at::Tensor x, const Quintics& steps) {
  for (const auto& q : steps) x = kernels::matmul(polynomial_of(symmetric_product(x, x), q), x, at::kFloat);
  return x;
}

at::Tensor by_gram_form(const at::Tensor& x, const Quintics& steps) {
  auto gram = symmetric_product(x, x);
  at::Tensor factor;
  for (size_t step = 0; step < steps.size(); ++step) {
    const auto polynomial = polynomial_of(gram, steps[step]);
    factor = factor.defined() ? symmetric_product(polynomial, factor) : polynomial;
    if (step + 1 < steps.size()) gram = symmetric_product(symmetric_product(polynomial, gram), polynomial);
  }
  return kernels::matmul(factor, x, at::kFloat);
}

// The definition, without any short cut.
at::Tensor by_definition(at::Tensor x, const Quintics& steps) {
  for (const auto& q : steps) {
    const auto gram = at::mm(x, x.t());
    x = q.a * x + at::mm(q.b * gram + q.c * at::mm(gram, gram), x);
  }
  return x;
}

// Matrices of one shape [b, m, n] in bf16, m <= n: three batched products a step and nothing between them. The products' own last step adds
// what the polynomial adds; a is not in it, since eight bits would round the small entries beside it away. Nor is there a form by the Gram
// matrix, whose squared condition number is not for eight bits either.
at::Tensor orthogonalise_together(const at::Tensor& matrices, const Quintics& steps, Iterates iterates) {
  auto x = (matrices / (at::linalg_vector_norm(matrices, 2, {1, 2}, /*keepdim=*/true) + 1e-7)).to(at::kBFloat16).contiguous();
  const bool halves = saves_half(x.size(1), iterates);
  for (const auto& q : steps) {
    const auto gram = halves ? kernels::symmetric_matmul(x) : kernels::baddbmm({}, x, x.mT(), 1, 1);
    const auto polynomial = halves ? kernels::symmetric_matmul(gram, gram, q.c, q.b) : kernels::baddbmm(gram, gram, gram, q.b, q.c);
    x = kernels::baddbmm(x, polynomial, x, q.a, 1);
  }
  return x;
}

at::Tensor orthogonalise(const at::Tensor& matrix, const Quintics& steps, Iterates iterates) {
  const bool tall = matrix.size(0) > matrix.size(1);
  auto x = tall ? matrix.t() : matrix;
  if (iterates != Iterates::own) {
    x = orthogonalise_together(x.unsqueeze(0), steps, iterates)[0];
    return tall ? x.t() : x;
  }
  x = x.contiguous();
  x = x / (x.norm() + 1e-7);
  if (x.scalar_type() == at::kDouble) x = by_definition(x, steps);
  else x = takes_gram_form(x.size(0), x.size(1), std::ssize(steps)) ? by_gram_form(x, steps) : by_direct_form(x, steps);
  return tall ? x.t() : x;
}

struct Task {
  at::Tensor from, to;  // [rows, cols]
  double cost(int64_t steps, Iterates iterates) const { return newton_schulz_flops(from.size(0), from.size(1), steps, iterates); }
};

// Groups of one shape, a bounded number of elements each: a hundred matrices cost a GPU as many launches as one.
void run_together(const std::vector<Task>& tasks, const Quintics& steps, Iterates iterates) {
  constexpr int64_t kMostElements = int64_t{1} << 27;
  std::map<std::pair<int64_t, int64_t>, std::vector<const Task*>> by_shape;
  for (const auto& task : tasks) by_shape[{task.from.size(0), task.from.size(1)}].push_back(&task);
  for (const auto& [shape, all] : by_shape) {
    const auto [rows, cols] = shape;
    const auto at_once = static_cast<size_t>(std::clamp<int64_t>(kMostElements / std::max<int64_t>(1, rows * cols), 1, std::ssize(all)));
    for (size_t first = 0; first < all.size(); first += at_once) {
      std::vector<at::Tensor> group, results;
      for (size_t i = first; i < std::min(all.size(), first + at_once); ++i) {
        group.push_back(rows > cols ? all[i]->from.t() : all[i]->from);
        results.push_back(rows > cols ? all[i]->to.t() : all[i]->to);
      }
      at::_foreach_copy_(results, orthogonalise_together(at::stack(group), steps, iterates).unbind());
    }
  }
}

// On a counting device one task runs after another; the work areas of as many as there are threads live at a time.
template <class Run>
void count_side_by_side(std::vector<Task>& tasks, const Run& run) {
  const auto device = tasks.front().to.device();
  std::vector<int64_t> areas;
  for (auto& task : tasks) {
    const device::PeakSince peak(device);
    const kernels::cpu::AsInsideATask one_worker;
    run(task);
    areas.push_back(peak.bytes());
  }
  std::sort(areas.rbegin(), areas.rend());
  areas.resize(std::min(areas.size(), static_cast<size_t>(at::get_num_threads())));
  const int64_t together = std::accumulate(areas.begin(), areas.end(), int64_t{0});
  static_cast<void>(at::empty({together}, at::TensorOptions().dtype(at::kByte).device(device)));
}

}  // namespace

Iterates iterates_in_bf16(bool on_cpu) {
  const bool has_small_tiles = on_cpu && kernels::takes_cpu_matmul(at::kBFloat16);
  return has_small_tiles ? Iterates::bf16_small_tiles : Iterates::bf16_symmetric;
}

Iterates fastest_iterates(bool on_cpu) {
  const auto in_bf16 = iterates_in_bf16(on_cpu);
  return !on_cpu || in_bf16 == Iterates::bf16_small_tiles ? in_bf16 : Iterates::own;
}

double newton_schulz_flops(int64_t rows, int64_t cols, int64_t steps, Iterates iterates) {
  const auto m = static_cast<double>(std::min(rows, cols)), n = static_cast<double>(std::max(rows, cols)), s = static_cast<double>(steps);
  const int64_t small = std::min(rows, cols), large = std::max(rows, cols);
  static_assert(kBlock == kernels::gpu::kSymmetricTile);
  const int64_t tile = iterates == Iterates::bf16_small_tiles ? kernels::kCpuSymmetricTile : kernels::gpu::kSymmetricTile;
  const auto symmetric = [&](int64_t k) {  // with inner side k
    return saves_half(small, iterates) ? kernels::symmetric_matmul_flops(1, small, k, tile) : 2 * m * m * static_cast<double>(k);
  };
  if (iterates != Iterates::own || !takes_gram_form(small, large, steps)) return s * (symmetric(large) + symmetric(small) + 2 * m * m * n);
  return symmetric(large) + (s + 3 * (s - 1)) * symmetric(small) + 2 * m * m * n;
}

std::vector<at::Tensor> newton_schulz(const std::vector<at::Tensor>& tensors, const Quintics& steps, Threads threads, Iterates iterates) {
  const base::WorkScope scope("newton_schulz", base::WorkKind::muon);
  const kernels::UntunedGemms data_parallel_ranks_repeat_this;
  std::vector<at::Tensor> results;
  std::vector<Task> tasks;
  for (const auto& x : tensors) {
    results.push_back(at::empty_like(x, at::MemoryFormat::Contiguous));
    const auto from = x.reshape({-1, x.size(-2), x.size(-1)}), to = results.back().view({-1, x.size(-2), x.size(-1)});
    for (int64_t i = 0; i < from.size(0); ++i) tasks.push_back({from[i], to[i]});
  }
  const auto run = [&](Task& task) {
    const at::NoGradGuard no_grad;  // per thread
    task.to.copy_(orthogonalise(task.from, steps, iterates));
  };
  const bool on_cpu = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& x) { return device::is_cpu(x); });
  const bool on_gpu = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& x) { return device::is_gpu(x); });
  if (on_gpu && iterates != Iterates::own) {
    const at::NoGradGuard no_grad;
    run_together(tasks, steps, iterates);
    return results;
  }
  // One matrix to a thread, the large ones first; with fewer matrices than threads the products themselves are parallel.
  if (!on_cpu || threads == Threads::share_gemms || static_cast<int64_t>(tasks.size()) < 2 * at::get_num_threads()) {
    for (auto& task : tasks) run(task);
    return results;
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const Task& a, const Task& b) { return a.cost(std::ssize(steps), iterates) > b.cost(std::ssize(steps), iterates); });
  if (device::is_counting(tensors.front())) return count_side_by_side(tasks, run), results;
  kernels::cpu::parallel_tasks(static_cast<int64_t>(tasks.size()), [&](int64_t task, int64_t) { run(tasks[static_cast<size_t>(task)]); });
  return results;
}

at::Tensor newton_schulz(const at::Tensor& x, const Quintics& steps) { return newton_schulz(std::vector{x}, steps)[0]; }

}  // namespace ingot::optim
