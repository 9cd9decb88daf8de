// Forms of the same iteration on x [m, n], m <= n, A = x x^T, B = a I + b A + c A^2:
//
//   direct: x <- B x. FLOPs per step 2 m^2 n (A) + 2 m^3 (A^2) + 2 m^2 n.
//   gram:   every factor is a polynomial of the first A, so all commute: Q <- B Q and A <- B A B on [m, m] matrices, and
//           x <- Q x once at the end. Four products of m^3 a step instead of any with n: half the work at n = 3 m. It squares
//           the condition number: directions below 3e-4 of the norm come out with an error of some 1e-3, which Muon does not
//           see; so fp64, the reference, never takes it.
//
// A, A^2, B A, B A B and B Q are symmetric: only the blocks on and above the diagonal are multiplied, the rest is mirrored. In bf16 the
// direct form multiplies all of them.
#include "optim/newton_schulz.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "base/work_scope.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/matmul.h"

namespace ingot::optim {
namespace {

constexpr int64_t kBlock = 128;  // of symmetric products: small enough to save most of the half, large enough for full GEMM speed

bool takes_gram_form(int64_t small, int64_t large, int64_t steps) { return 2 * large >= 3 * small && steps > 1; }

// p q^T where the product is known to be symmetric; p, q [m, k].
at::Tensor symmetric_product(const at::Tensor& p, const at::Tensor& q) {
  const int64_t m = p.size(0);
  if (m < 2 * kBlock) return at::mm(p, q.t());
  auto out = at::empty({m, m}, p.options());
  for (int64_t from = 0; from < m; from += kBlock) {
    const int64_t rows = std::min(kBlock, m - from);
    auto strip = out.narrow(0, from, rows).narrow(1, from, m - from);
    at::mm_out(strip, p.narrow(0, from, rows), q.narrow(0, from, m - from).t());
    if (from + rows < m)
      out.narrow(0, from + rows, m - from - rows).narrow(1, from, rows).copy_(strip.narrow(1, rows, m - from - rows).t());
  }
  return out;
}

// a I + b A + c A^2
at::Tensor polynomial_of(const at::Tensor& gram, const Quintic& q) {
  auto out = symmetric_product(gram, gram).mul_(q.c).add_(gram, q.b);
  out.diagonal().add_(q.a);
  return out;
}

at::Tensor by_direct_form(at::Tensor x, int64_t steps, const Quintic& q) {
  for (int64_t step = 0; step < steps; ++step) x = at::mm(polynomial_of(symmetric_product(x, x), q), x);
  return x;
}

at::Tensor by_gram_form(const at::Tensor& x, int64_t steps, const Quintic& q) {
  auto gram = symmetric_product(x, x);
  at::Tensor factor;
  for (int64_t step = 0; step < steps; ++step) {
    const auto polynomial = polynomial_of(gram, q);
    factor = factor.defined() ? symmetric_product(polynomial, factor) : polynomial;
    if (step + 1 < steps) gram = symmetric_product(symmetric_product(polynomial, gram), polynomial);
  }
  return at::mm(factor, x);
}

// The Gram matrix's squared condition number is not for eight bits. That of a is in the polynomial, so that no pass over x but the
// product is needed.
at::Tensor by_direct_form_in_bf16(const at::Tensor& x, int64_t steps, const Quintic& q) {
  auto narrow = x.to(at::kBFloat16);
  for (int64_t step = 0; step < steps; ++step) {
    const auto gram = kernels::matmul(narrow, narrow.t(), at::kFloat), narrow_gram = gram.to(at::kBFloat16);
    const auto polynomial = kernels::matmul(narrow_gram, narrow_gram, at::kFloat).mul_(q.c).add_(gram, q.b);
    polynomial.diagonal().add_(q.a);
    narrow = kernels::matmul(polynomial.to(at::kBFloat16), narrow, at::kBFloat16);
  }
  return narrow;
}

// The definition, without any short cut.
at::Tensor by_definition(at::Tensor x, int64_t steps, const Quintic& q) {
  for (int64_t step = 0; step < steps; ++step) {
    const auto gram = at::mm(x, x.t());
    x = q.a * x + at::mm(q.b * gram + q.c * at::mm(gram, gram), x);
  }
  return x;
}

at::Tensor orthogonalise(const at::Tensor& matrix, int64_t steps, const Quintic& q, Iterates iterates) {
  const bool tall = matrix.size(0) > matrix.size(1);
  auto x = (tall ? matrix.t() : matrix).contiguous();
  x = x / (x.norm() + 1e-7);
  if (iterates == Iterates::bf16) x = by_direct_form_in_bf16(x, steps, q);
  else if (x.scalar_type() == at::kDouble) x = by_definition(x, steps, q);
  else x = takes_gram_form(x.size(0), x.size(1), steps) ? by_gram_form(x, steps, q) : by_direct_form(x, steps, q);
  return tall ? x.t() : x;
}

struct Task {
  at::Tensor from, to;  // [rows, cols]
  double cost(int64_t steps, Iterates iterates) const { return newton_schulz_flops(from.size(0), from.size(1), steps, iterates); }
};

// On a counting device one task runs after another; the work areas of as many as there are threads live at a time.
template <class Run>
void count_side_by_side(std::vector<Task>& tasks, const Run& run) {
  const auto device = tasks.front().to.device();
  std::vector<int64_t> areas;
  for (auto& task : tasks) {
    const device::PeakSince peak(device);
    run(task);
    areas.push_back(peak.bytes());
  }
  std::sort(areas.rbegin(), areas.rend());
  areas.resize(std::min(areas.size(), static_cast<size_t>(at::get_num_threads())));
  const int64_t together = std::accumulate(areas.begin(), areas.end(), int64_t{0});
  static_cast<void>(at::empty({together}, at::TensorOptions().dtype(at::kByte).device(device)));
}

}  // namespace

double newton_schulz_flops(int64_t rows, int64_t cols, int64_t steps, Iterates iterates) {
  const auto m = static_cast<double>(std::min(rows, cols)), n = static_cast<double>(std::max(rows, cols)), s = static_cast<double>(steps);
  if (iterates == Iterates::bf16) return s * (4 * m * m * n + 2 * m * m * m);
  // Of a symmetric product with inner side k.
  const double share = m < 2 * kBlock ? 1 : (1 + kBlock / m) / 2;
  const auto symmetric = [&](double k) { return 2 * m * m * k * share; };
  if (!takes_gram_form(std::min(rows, cols), std::max(rows, cols), steps)) return s * (symmetric(n) + symmetric(m) + 2 * m * m * n);
  return symmetric(n) + (s + 3 * (s - 1)) * symmetric(m) + 2 * m * m * n;
}

std::vector<at::Tensor> newton_schulz(const std::vector<at::Tensor>& tensors, int64_t steps, const Quintic& quintic, Threads threads,
                                      Iterates iterates) {
  const base::WorkScope scope("newton_schulz", base::WorkKind::muon);
  std::vector<at::Tensor> results;
  std::vector<Task> tasks;
  for (const auto& x : tensors) {
    results.push_back(at::empty_like(x, at::MemoryFormat::Contiguous));
    const auto from = x.reshape({-1, x.size(-2), x.size(-1)}), to = results.back().view({-1, x.size(-2), x.size(-1)});
    for (int64_t i = 0; i < from.size(0); ++i) tasks.push_back({from[i], to[i]});
  }
  const auto run = [&](Task& task) {
    const at::NoGradGuard no_grad;  // per thread
    task.to.copy_(orthogonalise(task.from, steps, quintic, iterates));
  };
  const bool on_cpu = std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& x) { return device::is_cpu(x); });
  // One matrix to a thread, the large ones first; with fewer matrices than threads the products themselves are parallel.
  if (!on_cpu || threads == Threads::share_products || static_cast<int64_t>(tasks.size()) < 2 * at::get_num_threads()) {
    for (auto& task : tasks) run(task);
    return results;
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const Task& a, const Task& b) { return a.cost(steps, iterates) > b.cost(steps, iterates); });
  if (device::is_counting(tensors.front())) return count_side_by_side(tasks, run), results;
  kernels::cpu::parallel_tasks(static_cast<int64_t>(tasks.size()), [&](int64_t task, int64_t) { run(tasks[static_cast<size_t>(task)]); });
  return results;
}

at::Tensor newton_schulz(const at::Tensor& x, int64_t steps, const Quintic& quintic) {
  return newton_schulz(std::vector{x}, steps, quintic)[0];
}

}  // namespace ingot::optim
