// The GPU's kernels, run by the host thread by thread, against the same in fp64.
#include <gtest/gtest.h>

#include "kernels/activation.h"
#include "kernels/gpu/host_kernels.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels::gpu {
namespace {

struct Case {
  int64_t rows, width;
  at::ScalarType dtype;
  bool is_weighted;
  Gate gate = Gate::silu;
};

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item<double>();
}

class GpuKernels : public testing::TestWithParam<Case> {};

TEST_P(GpuKernels, gated_units_equal_their_definition_in_every_order_of_threads) {
  const auto& c = GetParam();
  at::manual_seed(5);
  const double wide_enough_to_clamp = c.gate == Gate::clamped ? 6 : 1;
  const auto gate_up = (at::randn({c.rows, 2 * c.width}, at::kDouble) * wide_enough_to_clamp).to(c.dtype),
             grad = at::randn({c.rows, c.width}, at::kDouble).to(c.dtype);
  const auto weight = c.is_weighted ? at::rand({c.rows}, at::kFloat) : at::Tensor();
  const auto wide = [](const at::Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; };
  const auto expected = kernels::glu_forward(wide(gate_up), wide(weight), c.gate);
  const auto [expected_grad, expected_weight_grad] = kernels::glu_backward(wide(grad), wide(gate_up), wide(weight), c.gate);
  const double tolerance = c.dtype == at::kFloat ? 2e-6 : 1e-2;
  std::vector<at::Tensor> first;
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : {0, 1, 2}) {
      const auto nan = std::numeric_limits<double>::quiet_NaN();
      auto out = at::full_like(grad, nan), grad_gate_up = at::full_like(gate_up, nan);
      auto grad_weight = c.is_weighted ? at::full_like(weight, nan) : at::Tensor();
      const cpu::GluProblem p{.rows = c.rows,
                              .width = c.width,
                              .is_bf16 = c.dtype == at::kBFloat16,
                              .gate = c.gate,
                              .gate_up = gate_up.const_data_ptr(),
                              .row_weight = numbers(weight),
                              .out = out.data_ptr(),
                              .grad = grad.const_data_ptr(),
                              .grad_gate_up = grad_gate_up.data_ptr(),
                              .grad_row_weight = c.is_weighted ? grad_weight.data_ptr<float>() : nullptr};
      kernels->glu_forward(p, seed);
      kernels->glu_backward(p, seed);
      EXPECT_LT(error_of(out, expected), tolerance);
      EXPECT_LT(error_of(grad_gate_up, expected_grad), tolerance);
      if (c.is_weighted) {
        EXPECT_LT(error_of(grad_weight, expected_weight_grad), 1e-5);
      }
      if (first.empty()) first = {out, grad_gate_up};
      EXPECT_TRUE(at::equal(out, first[0]) && at::equal(grad_gate_up, first[1])) << "seed " << seed;
    }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{18, 3}, {9, 8}, {5, 21}, {3, 4}, {2, 2056}, {1, 1}})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const bool is_weighted : {false, true})
        for (const auto gate : {Gate::silu, Gate::gelu_tanh, Gate::clamped}) all.push_back({rows, width, dtype, is_weighted, gate});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuKernels, testing::ValuesIn(cases()), [](const auto& info) {
  return fmt::format("{}x{}_{}{}{}", info.param.rows, info.param.width, c10::toString(info.param.dtype),
                     info.param.is_weighted ? "_weighted" : "",
                     info.param.gate == Gate::silu      ? ""
                     : info.param.gate == Gate::clamped ? "_clamped"
                                                        : "_gelu");
});

struct Parts {
  bool has_branch, is_scaled, has_weight;
};

class GpuJoinNorm : public testing::TestWithParam<std::tuple<Parts, std::pair<int64_t, int64_t>, at::ScalarType>> {};

// The CPU's kernels, which have tests of their own, take the same problem.
TEST_P(GpuJoinNorm, equals_the_cpus_in_every_order_of_threads) {
  const auto [parts, size, dtype] = GetParam();
  const auto [rows, width] = size;
  at::manual_seed(6);
  const auto wide = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kFloat); };
  const auto residual = wide({rows, width}), branch = parts.has_branch ? wide({rows, width}).to(dtype) : at::Tensor();
  std::vector<at::Tensor> vectors;  // scale and bias of both, weight
  for (int i = 0; i < 5; ++i) vectors.push_back((i < 4 ? parts.is_scaled : parts.has_weight) ? wide({width}) : at::Tensor());
  const auto grad_joined = parts.has_branch ? wide({rows, width}) : at::Tensor(),
             grad_normed = parts.has_weight ? wide({rows, width}).to(dtype) : at::Tensor();
  struct Results {
    at::Tensor joined, normed, inverse, grad_residual, grad_branch, sums;
  };
  const auto results_for = [&](int64_t runs) {
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    return Results{at::full_like(residual, nan), at::full({rows, width}, nan, dtype), at::full({rows}, nan),
                   at::full_like(residual, nan), at::full({rows, width}, nan, dtype), at::zeros({runs, cpu::kJoinNormSums, width})};
  };
  const auto problem_of = [&](Results& r) {
    cpu::JoinNormProblem p{};
    p.rows = rows, p.width = width, p.is_bf16 = dtype == at::kBFloat16, p.eps = 1e-5;
    p.residual = numbers(residual), p.branch = parts.has_branch ? branch.const_data_ptr() : nullptr;
    p.residual_scale = numbers(vectors[0]), p.residual_bias = numbers(vectors[1]), p.branch_scale = numbers(vectors[2]);
    p.branch_bias = numbers(vectors[3]), p.weight = numbers(vectors[4]);
    if (parts.has_branch)
      p.joined = r.joined.data_ptr<float>(), p.grad_joined = numbers(grad_joined), p.grad_branch = r.grad_branch.data_ptr();
    if (parts.has_weight)
      p.normed = r.normed.data_ptr(), p.inverse = r.inverse.data_ptr<float>(), p.grad_normed = grad_normed.const_data_ptr();
    p.grad_residual = r.grad_residual.data_ptr<float>(), p.sums = r.sums.data_ptr<float>(), p.runs = r.sums.size(0);
    return p;
  };
  auto expected = results_for(1);
  const auto on_cpu = problem_of(expected);
  cpu::join_norm_forward(on_cpu, 0, rows);
  cpu::join_norm_backward(on_cpu, 0, rows, expected.sums.data_ptr<float>());
  const double tolerance = dtype == at::kFloat ? 3e-6 : 1e-2;
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : {0, 1}) {
      auto found = results_for(std::min<int64_t>(rows, 3));
      const auto p = problem_of(found);
      kernels->join_norm_forward(p, seed);
      kernels->join_norm_backward(p, seed);
      const auto same = [&](const at::Tensor& one, const at::Tensor& other, const char* name) {
        EXPECT_LT(error_of(one, other.to(at::kDouble)), tolerance) << name << " seed " << seed;
      };
      if (parts.has_branch) same(found.joined, expected.joined, "joined"), same(found.grad_branch, expected.grad_branch, "grad_branch");
      if (parts.has_weight) same(found.normed, expected.normed, "normed"), same(found.inverse, expected.inverse, "inverse");
      same(found.grad_residual, expected.grad_residual, "grad_residual");
      for (int s = parts.has_weight ? 0 : 1; s < (parts.is_scaled ? cpu::kJoinNormSums : 1); ++s)
        same(found.sums.sum(0)[s], expected.sums[0][s], "sums");
    }
}

INSTANTIATE_TEST_SUITE_P(Parts, GpuJoinNorm,
                         testing::Combine(testing::Values(Parts{false, false, true}, Parts{true, false, true}, Parts{true, true, true},
                                                          Parts{true, false, false}, Parts{true, true, false}),
                                          testing::Values(std::pair<int64_t, int64_t>{7, 3}, std::pair<int64_t, int64_t>{5, 64},
                                                          std::pair<int64_t, int64_t>{4, 261}, std::pair<int64_t, int64_t>{2, 1024},
                                                          std::pair<int64_t, int64_t>{3, 2052}),
                                          testing::Values(at::kFloat, at::kBFloat16)));

// Of 4,100 terms in fp32, 1,025 one after another where the CPU's vectors have four lanes: 1e-6 was seen there.
constexpr double kSumOfExponentials = 4e-6;

TEST(GpuKernels, cross_entropy_equals_the_cpus) {
  enum class Gradient { none, in_place, bf16 };
  for (const int64_t vocab : {3, 64, 1001, 4100})
    for (const auto kind : {Gradient::none, Gradient::in_place, Gradient::bf16}) {
      const double z_loss = vocab == 64 ? 0.01 : 0;
      const auto logits = at::randn({5, vocab}) * 4;
      logits[1][0] = -std::numeric_limits<float>::infinity();
      const auto targets = at::tensor({int64_t{0}, vocab - 1, int64_t{-100}, vocab / 2, int64_t{1}});
      const auto run = [&](const auto& kernel) {
        auto in_place = logits.clone(), losses = at::full({5}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
        auto gradient = kind == Gradient::bf16 ? at::full_like(logits, std::numeric_limits<double>::quiet_NaN(), at::kBFloat16) : in_place;
        kernel(cpu::CrossEntropyProblem{.rows = 5,
                                        .vocab = vocab,
                                        .logits_stride = vocab,
                                        .logits = in_place.template data_ptr<float>(),
                                        .targets = targets.const_data_ptr<int64_t>(),
                                        .scale = 0.25,
                                        .losses = losses.template data_ptr<float>(),
                                        .gradient = kind == Gradient::none ? nullptr : gradient.data_ptr(),
                                        .gradient_stride = vocab,
                                        .gradient_is_bf16 = kind == Gradient::bf16,
                                        .z_loss = z_loss});
        return std::pair(gradient, losses);
      };
      const auto [expected_gradient, expected] = run([](const auto& p) { cpu::cross_entropy(p, 0, p.rows); });
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        for (const uint64_t seed : {0, 1}) {
          const auto [gradient, losses] = run([&](const auto& p) { kernels->cross_entropy(p, seed); });
          EXPECT_LT(error_of(losses, expected.to(at::kDouble)), kSumOfExponentials) << vocab;
          const auto wanted = expected_gradient.to(at::kDouble);
          if (kind == Gradient::none) EXPECT_TRUE(at::equal(gradient, logits)) << vocab;
          else if (kind == Gradient::in_place) EXPECT_LT(error_of(gradient, wanted), kSumOfExponentials) << vocab;
          else {  // a few that lie between two numbers are rounded to the other one
            const auto off = (gradient.to(at::kDouble) - wanted).abs();
            EXPECT_TRUE(off.le(wanted.abs() / 128).all().item<bool>()) << vocab;
            EXPECT_LT(off.gt(0).sum().item<int64_t>(), 1 + vocab * 5 / 100) << vocab;
          }
        }
    }
}

TEST(GpuKernels, a_part_of_cross_entropy_equals_the_cpus) {
  for (const int64_t vocab : {3, 64, 1001, 4100})
    for (const bool write : {false, true}) {
      const auto logits = at::randn({4, vocab}) * 4;
      const auto targets = at::tensor({int64_t{0}, vocab - 1, int64_t{-1}, vocab / 2});
      const auto run = [&](const auto& kernel) {
        auto in_place = logits.clone(), statistics = at::full({4, 3}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
        kernel(cpu::CrossEntropyPartProblem{4, vocab, vocab, in_place.template data_ptr<float>(), targets.const_data_ptr<int64_t>(),
                                            statistics.template data_ptr<float>(), write});
        return std::pair(in_place, statistics);
      };
      const auto [expected_exponentials, expected] = run([](const auto& p) { cpu::cross_entropy_part(p, 0, p.rows); });
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        for (const uint64_t seed : {0, 1}) {
          const auto [exponentials, statistics] = run([&](const auto& p) { kernels->cross_entropy_part(p, seed); });
          EXPECT_LT(error_of(statistics, expected.to(at::kDouble)), kSumOfExponentials) << vocab;
          EXPECT_LT(error_of(exponentials, expected_exponentials.to(at::kDouble)), kSumOfExponentials) << vocab;
        }
    }
}

TEST(GpuKernels, split_and_rotate_equals_the_cpus) {
  struct Size {
    int64_t heads, kv_heads, head_dim, half;
  };
  for (const auto& s : {Size{4, 2, 64, 32}, Size{3, 1, 16, 4}, Size{2, 2, 10, 3}, Size{1, 1, 8, 0}})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const int64_t rows = 6;
      const auto x = at::randn({rows, (s.heads + 2 * s.kv_heads) * s.head_dim}).to(dtype);
      const auto angles = at::rand({3, s.half}), cosine = angles.cos(), sine = angles.sin();
      const auto run = [&](const auto& forward, const auto& backward) {
        const auto heads = [&](int64_t count) {
          return at::full({rows, count, s.head_dim}, std::numeric_limits<double>::quiet_NaN(), dtype);
        };
        auto q = heads(s.heads), k = heads(s.kv_heads), v = heads(s.kv_heads),
             back = at::full_like(x, std::numeric_limits<double>::quiet_NaN());
        cpu::SplitRotateProblem p{rows,
                                  s.heads,
                                  s.kv_heads,
                                  s.head_dim,
                                  s.half,
                                  3,
                                  dtype == at::kBFloat16,
                                  numbers(cosine),
                                  numbers(sine),
                                  const_cast<void*>(x.const_data_ptr()),
                                  q.data_ptr(),
                                  k.data_ptr(),
                                  v.data_ptr()};
        forward(p);
        p.packed = back.data_ptr();
        backward(p);
        return std::vector{q, k, v, back};
      };
      const auto expected = run([](const auto& p) { cpu::split_rotate_forward(p, 0, p.rows); },
                                [](const auto& p) { cpu::split_rotate_backward(p, 0, p.rows); });
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
        const auto found =
            run([&](const auto& p) { kernels->split_rotate_forward(p, 1); }, [&](const auto& p) { kernels->split_rotate_backward(p, 0); });
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_LT(error_of(found[i], expected[i].to(at::kDouble)), dtype == at::kFloat ? 1e-6 : 1e-2) << i << " " << s.head_dim;
      }
    }
}

// The taps after the heads, as a backward pass has them: what the CPU's heads leave in grad_packed the GPU's taps make.
TEST(GpuKernels, cca_equals_the_cpus_at_borders_of_documents_too) {
  struct Size {
    int64_t heads, kv_heads, head_dim, half, current;
  };
  for (const auto& s : {Size{4, 2, 16, 4, 16}, Size{6, 2, 10, 5, 7}, Size{2, 1, 256, 64, 128}, Size{3, 1, 3, 1, 2}, Size{9, 1, 36, 8, 20}})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{} + {} heads of {} {}", s.heads, s.kv_heads, s.head_dim, c10::toString(dtype)));
      at::manual_seed(7);
      const int64_t seq = 7, rows = 2 * seq, all = s.heads + s.kv_heads, latent = all * s.head_dim, values = s.kv_heads * s.head_dim;
      const auto packed = at::randn({rows, latent + values}).to(dtype), mixed = at::randn({rows, latent}),
                 grad_taps = at::randn({rows, all, 2, s.head_dim});
      const auto tap0 = at::randn({latent}), tap1 = at::randn({latent}), bias0 = at::randn({latent}), bias1 = at::randn({latent}),
                 temperature = at::rand({s.kv_heads}) + 0.5;
      const auto angles = at::rand({seq, s.half}), cosine = angles.cos(), sine = angles.sin();
      auto is_start = at::zeros({rows}, at::kBool);
      is_start[3] = true;
      is_start[4] = true;
      const auto random = [&](int64_t count) { return at::randn({rows, count, s.head_dim}).to(dtype); };
      const auto grad_q = random(s.heads), grad_k = random(s.kv_heads), grad_v = random(s.kv_heads);
      for (const bool has_documents : {false, true}) {
        const auto run = [&](int64_t runs, const auto& taps, const auto& heads, const auto& heads_backward, const auto& taps_backward) {
          const auto nan = [&](at::IntArrayRef sizes, at::ScalarType of) {
            return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), of);
          };
          auto first = nan({rows, all, 2, s.head_dim}, at::kFloat), grad_mixed = nan({rows, latent}, at::kFloat),
               grad_packed = nan({rows, latent + values}, dtype), q = nan({rows, s.heads, s.head_dim}, dtype),
               k = nan({rows, s.kv_heads, s.head_dim}, dtype), v = nan({rows, s.kv_heads, s.head_dim}, dtype);
          auto head_sums = at::zeros({runs, latent + s.kv_heads}), tap_sums = at::zeros({runs, 3 * latent});
          cpu::CcaProblem p{};
          p.rows = rows, p.seq = seq, p.heads = s.heads, p.kv_heads = s.kv_heads, p.head_dim = s.head_dim, p.half = s.half;
          p.table_rows = seq, p.current = s.current, p.is_bf16 = dtype == at::kBFloat16, p.runs = runs;
          p.is_start = has_documents ? is_start.template const_data_ptr<bool>() : nullptr;
          p.packed = packed.const_data_ptr(), p.tap0 = numbers(tap0), p.tap1 = numbers(tap1), p.bias0 = numbers(bias0),
          p.bias1 = numbers(bias1);
          p.temperature = numbers(temperature), p.cosine = numbers(cosine), p.sine = numbers(sine), p.grad_taps = numbers(grad_taps);
          p.taps = first.template data_ptr<float>(), p.mixed = const_cast<float*>(numbers(mixed));
          p.q = q.data_ptr(), p.k = k.data_ptr(), p.v = v.data_ptr();
          taps(p);
          heads(p);
          p.q = grad_q.data_ptr(), p.k = grad_k.data_ptr(), p.v = grad_v.data_ptr();
          p.grad_mixed = grad_mixed.template data_ptr<float>(), p.grad_packed = grad_packed.data_ptr();
          p.sums = head_sums.template data_ptr<float>();
          heads_backward(p);
          p.sums = tap_sums.template data_ptr<float>();
          taps_backward(p);
          return std::vector{first, q, k, v, grad_mixed, grad_packed, head_sums.sum(0), tap_sums.sum(0)};
        };
        const auto expected = run(
            1, [](const auto& p) { cpu::cca_taps(p, 0, p.rows); }, [](const auto& p) { cpu::cca_heads(p, 0, p.rows); },
            [](const auto& p) { cpu::cca_heads_backward(p, 0, p.rows, p.sums); },
            [](const auto& p) { cpu::cca_taps_backward(p, 0, p.rows, p.sums); });
        for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
          for (const uint64_t seed : {0, 1}) {
            const auto found = run(
                3, [&](const auto& p) { kernels->cca_taps(p, seed); }, [&](const auto& p) { kernels->cca_heads(p, seed); },
                [&](const auto& p) { kernels->cca_heads_backward(p, seed); }, [&](const auto& p) { kernels->cca_taps_backward(p, seed); });
            for (size_t i = 0; i < found.size(); ++i)
              EXPECT_LT(error_of(found[i], expected[i].to(at::kDouble)), dtype == at::kFloat ? 3e-6 : 1e-2) << i << ", seed " << seed;
          }
      }
    }
}

TEST(GpuKernels, norms_of_heads_equal_the_cpus) {
  struct Size {
    int64_t heads, kv_heads, head_dim, half;
  };
  for (const auto& s : {Size{4, 2, 16, 8}, Size{3, 1, 10, 3}, Size{2, 1, 256, 64}, Size{11, 1, 36, 16}, Size{1, 1, 5, 0}})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{} + {} heads of {} {}", s.heads, s.kv_heads, s.head_dim, c10::toString(dtype)));
      at::manual_seed(8);
      const int64_t rows = 13, width = (s.heads + 2 * s.kv_heads) * s.head_dim;
      const auto packed = at::randn({rows, width}).to(dtype), q_weight = at::randn({s.head_dim}), k_weight = at::randn({s.head_dim});
      const auto angles = at::rand({rows, s.half}), cosine = angles.cos(), sine = angles.sin();
      const auto random = [&](int64_t count) { return at::randn({rows, count, s.head_dim}).to(dtype); };
      const auto grad_q = random(s.heads), grad_k = random(s.kv_heads), grad_v = random(s.kv_heads);
      const auto run = [&](int64_t runs, const auto& forward, const auto& backward) {
        const auto nan = [](const at::Tensor& like) { return at::full_like(like, std::numeric_limits<double>::quiet_NaN()); };
        auto q = nan(grad_q), k = nan(grad_k), grad_packed = nan(packed), inverse = at::zeros({rows, s.heads + s.kv_heads}),
             sums = at::zeros({runs, 2 * s.head_dim});
        cpu::QkNormProblem p{};
        p.rows = rows, p.head_dim = s.head_dim, p.half = s.half, p.table_rows = rows, p.kv_heads = s.kv_heads, p.eps = 1e-5;
        p.is_bf16 = dtype == at::kBFloat16, p.cosine = numbers(cosine), p.sine = numbers(sine), p.packed = packed.const_data_ptr();
        p.q = {.heads = s.heads, .run = s.head_dim, .weight = numbers(q_weight), .split = q.data_ptr()};
        p.k = {.heads = s.kv_heads, .run = s.head_dim, .weight = numbers(k_weight), .split = k.data_ptr()};
        p.inverse = inverse.data_ptr<float>(), p.runs = runs, p.sums = sums.data_ptr<float>();
        forward(p);
        p.q.split = grad_q.data_ptr(), p.k.split = grad_k.data_ptr();
        p.grad_v = grad_v.const_data_ptr(), p.grad_packed = grad_packed.data_ptr();
        backward(p);
        return std::vector{q, k, inverse, grad_packed, sums.sum(0)};
      };
      const auto expected = run(
          1, [](const auto& p) { cpu::qk_norm_forward(p, 0, p.rows); }, [](const auto& p) { cpu::qk_norm_backward(p, 0, p.rows, p.sums); });
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        for (const uint64_t seed : {0, 1}) {
          const auto found = run(
              3, [&](const auto& p) { kernels->qk_norm_forward(p, seed); }, [&](const auto& p) { kernels->qk_norm_backward(p, seed); });
          for (size_t i = 0; i < found.size(); ++i)
            EXPECT_LT(error_of(found[i], expected[i].to(at::kDouble)), dtype == at::kFloat ? 3e-6 : 2e-2) << i << ", seed " << seed;
        }
    }
}

// Borders of sequences and documents lie within runs, at their ends and beside them; the CPU's rows are cut into the same runs, too.
TEST(GpuKernels, short_convolution_equals_the_cpus_in_every_order_of_threads) {
  struct Size {
    int64_t batch, seq, channels, width;
  };
  for (const auto& s :
       {Size{3, 21, 24, 2}, Size{3, 21, 24, 3}, Size{3, 21, 24, 4}, Size{3, 21, 37, 2}, Size{3, 21, 37, 3}, Size{3, 21, 37, 4},
        Size{3, 21, 16, 8}, Size{3, 21, 5, 7}, Size{23, 2, 8, 4}, Size{3, 21, 1032, 4}, Size{1, 1, 3, 1}})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const bool has_starts : {false, true})
        for (const bool has_tail : {false, true}) {
          SCOPED_TRACE(fmt::format("{} x {} x {}, width {} {}{}{}", s.batch, s.seq, s.channels, s.width, c10::toString(dtype),
                                   has_starts ? ", starts" : "", has_tail ? ", tail" : ""));
          at::manual_seed(9);
          const int64_t rows = s.batch * s.seq;
          const auto x = at::randn({rows, s.channels}).to(dtype), grad = at::randn({rows, s.channels}).to(dtype),
                     tail = at::randn({s.batch, s.width - 1, s.channels}).to(dtype), weight = at::randn({s.width, s.channels});
          auto is_start = at::zeros({rows}, at::kBool);
          for (const int64_t start : {0, 1, 9, 10, 14, 16, 20, 31, 33, 46, 62})
            if (start < rows) is_start[start] = true;
          const auto run = [&](int64_t runs, const auto& forward, const auto& backward) {
            const auto nan = std::numeric_limits<double>::quiet_NaN();
            auto out = at::full_like(x, nan), grad_x = at::full_like(x, nan), sums = at::zeros({runs, s.width * s.channels});
            cpu::ShortConvolutionProblem p{};
            p.rows = rows, p.seq = s.seq, p.channels = s.channels, p.width = s.width, p.is_bf16 = dtype == at::kBFloat16;
            p.is_start = has_starts ? is_start.const_data_ptr<bool>() : nullptr;
            p.x = x.const_data_ptr(), p.tail = has_tail && s.width > 1 ? tail.const_data_ptr() : nullptr, p.weight = numbers(weight);
            p.out = out.data_ptr(), p.grad = grad.const_data_ptr(), p.grad_x = grad_x.data_ptr();
            p.sums = sums.data_ptr<float>(), p.runs = runs;
            forward(p);
            backward(p);
            return std::vector{out, grad_x, sums.sum(0)};
          };
          const auto on_cpu = [&](int64_t runs) {
            return run(
                runs, [](const auto& p) { cpu::short_convolution_forward(p, 0, p.rows); },
                [](const auto& p) {
                  for (int64_t i = 0; i < p.runs; ++i)
                    cpu::short_convolution_backward(p, p.rows * i / p.runs, p.rows * (i + 1) / p.runs, p.sums + i * p.width * p.channels);
                });
          };
          const auto expected = on_cpu(1);
          const int64_t runs = std::min<int64_t>(rows, 4);
          const auto expect_same = [&](const std::vector<at::Tensor>& found, const std::string& where) {
            for (size_t i = 0; i < found.size(); ++i)
              EXPECT_LT(error_of(found[i], expected[i].to(at::kDouble)), dtype == at::kFloat ? 3e-6 : 1e-2) << i << ", " << where;
          };
          expect_same(on_cpu(runs), "CPU");
          for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
            for (const uint64_t seed : {0, 1, 2})
              expect_same(run(
                              runs, [&](const auto& p) { kernels->short_convolution_forward(p, seed); },
                              [&](const auto& p) { kernels->short_convolution_backward(p, seed); }),
                          fmt::format("seed {}", seed));
        }
}

// Parameters may begin anywhere.
TEST(GpuKernels, tensors_that_begin_between_vectors_are_right_too) {
  const auto all = at::randn({4 * 64 + 1}), x = all.narrow(0, 1, 4 * 64).view({4, 64});
  auto normed = at::empty({4, 64}), inverse = at::empty({4}), expected = at::empty({4, 64});
  const auto weight = at::ones({65}).narrow(0, 1, 64);
  cpu::JoinNormProblem p{};
  p.rows = 4, p.width = 64, p.eps = 1e-5, p.residual = numbers(x), p.weight = numbers(weight), p.inverse = inverse.data_ptr<float>();
  p.normed = expected.data_ptr();
  cpu::join_norm_forward(p, 0, 4);
  p.normed = normed.data_ptr();
  host_kernels_wave32.join_norm_forward(p, 0);
  EXPECT_LT(error_of(normed, expected.to(at::kDouble)), 1e-6);
}

}  // namespace
}  // namespace ingot::kernels::gpu
