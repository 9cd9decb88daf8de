// The GPU's kernels, run by the host thread by thread, against the same in fp64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/gpu/dialect.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

using testing::HasSubstr;

struct Case {
  int64_t rows, width;
  at::ScalarType dtype;
  bool is_weighted;
};

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item<double>();
}

const float* floats(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

class GpuKernels : public testing::TestWithParam<Case> {};

TEST_P(GpuKernels, swiglu_equals_its_definition_in_every_order_of_threads) {
  const auto& c = GetParam();
  at::manual_seed(5);
  const auto gate_up = at::randn({c.rows, 2 * c.width}, at::kDouble).to(c.dtype),
             grad = at::randn({c.rows, c.width}, at::kDouble).to(c.dtype);
  const auto weight = c.is_weighted ? at::rand({c.rows}, at::kFloat) : at::Tensor();
  const auto wide = [](const at::Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; };
  const auto expected = kernels::swiglu_forward(wide(gate_up), wide(weight));
  const auto [expected_grad, expected_weight_grad] = kernels::swiglu_backward(wide(grad), wide(gate_up), wide(weight));
  const double tolerance = c.dtype == at::kFloat ? 2e-6 : 1e-2;
  std::vector<at::Tensor> first;
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : {0, 1, 2}) {
      const auto nan = std::numeric_limits<double>::quiet_NaN();
      auto out = at::full_like(grad, nan), grad_gate_up = at::full_like(gate_up, nan);
      auto grad_weight = c.is_weighted ? at::full_like(weight, nan) : at::Tensor();
      const cpu::SwigluProblem p{.rows = c.rows,
                                 .width = c.width,
                                 .is_bf16 = c.dtype == at::kBFloat16,
                                 .gate_up = gate_up.const_data_ptr(),
                                 .row_weight = floats(weight),
                                 .out = out.data_ptr(),
                                 .grad = grad.const_data_ptr(),
                                 .grad_gate_up = grad_gate_up.data_ptr(),
                                 .grad_row_weight = c.is_weighted ? grad_weight.data_ptr<float>() : nullptr};
      kernels->swiglu_forward(p, seed);
      kernels->swiglu_backward(p, seed);
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
      for (const bool is_weighted : {false, true}) all.push_back({rows, width, dtype, is_weighted});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuKernels, testing::ValuesIn(cases()), [](const auto& info) {
  return fmt::format("{}x{}_{}{}", info.param.rows, info.param.width, c10::toString(info.param.dtype),
                     info.param.is_weighted ? "_weighted" : "");
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
    p.residual = floats(residual), p.branch = parts.has_branch ? branch.const_data_ptr() : nullptr;
    p.residual_scale = floats(vectors[0]), p.residual_bias = floats(vectors[1]), p.branch_scale = floats(vectors[2]);
    p.branch_bias = floats(vectors[3]), p.weight = floats(vectors[4]);
    if (parts.has_branch)
      p.joined = r.joined.data_ptr<float>(), p.grad_joined = floats(grad_joined), p.grad_branch = r.grad_branch.data_ptr();
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

TEST(GpuKernels, cross_entropy_equals_the_cpus) {
  for (const int64_t vocab : {3, 64, 1001, 4100})
    for (const bool write : {false, true}) {
      const auto logits = at::randn({5, vocab}) * 4;
      logits[1][0] = -std::numeric_limits<float>::infinity();
      const auto targets = at::tensor({int64_t{0}, vocab - 1, int64_t{-100}, vocab / 2, int64_t{1}});
      const auto run = [&](const auto& kernel) {
        auto in_place = logits.clone(), losses = at::full({5}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
        kernel(cpu::CrossEntropyProblem{5, vocab, vocab, in_place.template data_ptr<float>(), targets.const_data_ptr<int64_t>(), 0.25,
                                        losses.template data_ptr<float>(), write});
        return std::pair(in_place, losses);
      };
      const auto [expected_gradient, expected] = run([](const auto& p) { cpu::cross_entropy(p, 0, p.rows); });
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        for (const uint64_t seed : {0, 1}) {
          const auto [gradient, losses] = run([&](const auto& p) { kernels->cross_entropy(p, seed); });
          EXPECT_LT(error_of(losses, expected.to(at::kDouble)), 1e-6) << vocab;
          if (write) EXPECT_LT(error_of(gradient, expected_gradient.to(at::kDouble)), 1e-6) << vocab;
          else EXPECT_TRUE(at::equal(gradient, logits)) << vocab;
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
          EXPECT_LT(error_of(statistics, expected.to(at::kDouble)), 1e-6) << vocab;
          EXPECT_LT(error_of(exponentials, expected_exponentials.to(at::kDouble)), 1e-6) << vocab;
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
                                  floats(cosine),
                                  floats(sine),
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
          p.packed = packed.const_data_ptr(), p.tap0 = floats(tap0), p.tap1 = floats(tap1), p.bias0 = floats(bias0),
          p.bias1 = floats(bias1);
          p.temperature = floats(temperature), p.cosine = floats(cosine), p.sine = floats(sine), p.grad_taps = floats(grad_taps);
          p.taps = first.template data_ptr<float>(), p.mixed = const_cast<float*>(floats(mixed));
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
        p.is_bf16 = dtype == at::kBFloat16, p.cosine = floats(cosine), p.sine = floats(sine), p.packed = packed.const_data_ptr();
        p.q = {.heads = s.heads, .run = s.head_dim, .weight = floats(q_weight), .split = q.data_ptr()};
        p.k = {.heads = s.kv_heads, .run = s.head_dim, .weight = floats(k_weight), .split = k.data_ptr()};
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
            p.x = x.const_data_ptr(), p.tail = has_tail && s.width > 1 ? tail.const_data_ptr() : nullptr, p.weight = floats(weight);
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

TEST(GpuKernels, updates_equal_the_cpus) {
  for (const int64_t count : {1, 4, 1027, 4096})
    for (const bool flag : {false, true}) {  // Nesterov's, and whether there is a copy in bf16
      const auto values = at::randn({count}), grad = at::randn({count}), direction = at::randn({count});
      const auto run = [&](const auto& momentum, const auto& apply) {
        auto state = values.clone(), next = at::empty_like(values), master = values.clone(), narrow = at::zeros({count}, at::kBFloat16);
        momentum(
            cpu::MomentumProblem{count, state.template data_ptr<float>(), floats(grad), next.template data_ptr<float>(), 0.9, 0.5, flag});
        apply(cpu::ApplyProblem{count, master.template data_ptr<float>(), floats(direction),
                                flag ? static_cast<uint16_t*>(narrow.data_ptr()) : nullptr, 0.99, 0.01});
        return std::vector{state, next, master, narrow};
      };
      const auto expected = run([](const auto& p) { cpu::momentum(p, 0, p.rows); }, [](const auto& p) { cpu::apply(p, 0, p.rows); });
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
        const auto found = run([&](const auto& p) { kernels->momentum(p, 1); }, [&](const auto& p) { kernels->apply_direction(p, 0); });
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_LT(error_of(found[i], expected[i].to(at::kDouble)), i < 3 ? 1e-6 : 1e-2) << i << " of " << count;
      }
    }
}

// Parameters may begin anywhere.
TEST(GpuKernels, tensors_that_begin_between_vectors_are_right_too) {
  const auto all = at::randn({4 * 64 + 1}), x = all.narrow(0, 1, 4 * 64).view({4, 64});
  auto normed = at::empty({4, 64}), inverse = at::empty({4}), expected = at::empty({4, 64});
  const auto weight = at::ones({65}).narrow(0, 1, 64);
  cpu::JoinNormProblem p{};
  p.rows = 4, p.width = 64, p.eps = 1e-5, p.residual = floats(x), p.weight = floats(weight), p.inverse = inverse.data_ptr<float>();
  p.normed = expected.data_ptr();
  cpu::join_norm_forward(p, 0, 4);
  p.normed = normed.data_ptr();
  host_kernels_wave32.join_norm_forward(p, 0);
  EXPECT_LT(error_of(normed, expected.to(at::kDouble)), 1e-6);
}

// -- the host as a GPU: what it must catch

TEST(HostBlock, sums_over_a_block_are_the_same_on_every_thread) {
  std::vector<float> sums(96);
  host::run(1, 96, 3, [&] { sums[static_cast<size_t>(thread_index())] = block_sum(static_cast<float>(thread_index())); });
  EXPECT_THAT(sums, testing::Each(96 * 95 / 2));
}

std::string error_in(const std::function<void()>& kernel) {
  try {
    host::run(1, 64, 0, kernel);
  } catch (const base::Error& error) {
    return error.what();
  }
  return "none";
}

TEST(HostBlock, threads_that_do_not_come_to_a_barrier_are_an_error) {
  const auto error = error_in([] {
    if (thread_index() < 3) return;
    barrier();
  });
  EXPECT_THAT(error, testing::AllOf(HasSubstr("3 threads have returned"), HasSubstr("61 threads wait at the barrier of line")));
  EXPECT_THAT(error_in([] { thread_index() < 3 ? barrier(1) : barrier(2); }), HasSubstr("3 threads wait at the barrier of line 1"));
  EXPECT_THAT(error_in([] {
                if (thread_index() % 2 == 0) shuffle_xor(1.0F, 1);
              }),
              HasSubstr("wait for their wave"));
}

TEST(HostBlock, shared_memory_that_nobody_wrote_is_not_a_number) {
  float found = 0;
  host::run(1, 32, 0, [&] {
    INGOT_SHARED_FLOATS(area, 4);
    if (thread_index() == 0) found = area[3];
  });
  EXPECT_TRUE(std::isnan(found));
}

// A neighbour's value without a barrier: right in the order of the threads, wrong in others.
TEST(HostBlock, a_missing_barrier_shows_in_another_order_of_threads) {
  const auto sum_of = [](uint64_t seed) {
    float sum = 0;
    host::run(1, 64, seed, [&] {
      INGOT_SHARED_FLOATS(area, 64);
      area[thread_index()] = 1;
      sum += thread_index() > 0 ? area[thread_index() - 1] : 0;
    });
    return sum;
  };
  EXPECT_EQ(sum_of(0), 63);
  EXPECT_TRUE(std::isnan(sum_of(1)));
}

TEST(HostBlock, what_a_kernel_throws_comes_out) {
  EXPECT_EQ(error_in([] { throw base::Error("no"); }), "no");
}

class GpuFp8 : public testing::TestWithParam<std::tuple<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>, at::ScalarType>> {};

// Exactly: scales are powers of two, and the largest of some numbers is the same in every order.
TEST_P(GpuFp8, equals_the_cpus_in_every_order_of_threads) {
  const auto [tile, size, dtype] = GetParam();
  const auto [height, width] = size;
  at::manual_seed(7);
  const auto x = (at::randn({height, width}) * at::exp2(at::randn({height, width}) * 5)).to(dtype);
  const bool is_tensor = tile.second == 0;
  const auto largest = is_tensor ? x.to(at::kFloat).abs().max().view({1}) : at::Tensor();
  const auto rounded = [&](const auto& kernel) {
    auto out = at::full_like(x, std::numeric_limits<double>::quiet_NaN());
    const int64_t tile_rows = std::max<int64_t>(1, tile.first);
    kernel(cpu::Fp8Problem{.rows = (height + tile_rows - 1) / tile_rows,
                           .height = height,
                           .width = width,
                           .tile_rows = tile_rows,
                           .tile_columns = std::max<int64_t>(1, tile.second),
                           .is_bf16 = dtype == at::kBFloat16,
                           .is_e5m2 = is_tensor,
                           .x = x.const_data_ptr(),
                           .largest = floats(largest),
                           .out = out.data_ptr()});
    return out;
  };
  const auto expected = rounded([](const cpu::Fp8Problem& p) { cpu::round_to_fp8(p, 0, p.rows); });
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : {0, 1})
      EXPECT_TRUE(at::equal(rounded([&](const cpu::Fp8Problem& p) { kernels->round_to_fp8(p, seed); }), expected)) << seed;
}

TEST(GpuFp8Codes, equal_the_cpus_and_libtorchs) {
  at::manual_seed(9);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool is_e5m2 : {false, true})
      for (const bool is_transposed : {false, true})
        for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{16, 16}, {80, 144}, {is_transposed ? 128 : 7, 48}}) {
          auto x = (at::randn({rows, width}) * at::exp2(at::randn({rows, width}) * 6)).to(dtype);
          x[0][1] = -0.0;
          const auto largest = x.to(at::kFloat).abs().max().view({1});
          const auto format = is_e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
          const auto codes_by = [&](const auto& kernel) {
            auto codes = at::full(is_transposed ? at::IntArrayRef{width, rows} : at::IntArrayRef{rows, width}, 0xee, at::kByte);
            auto scale = at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
            kernel(cpu::Fp8CodesProblem{.rows = rows,
                                        .width = width,
                                        .is_bf16 = dtype == at::kBFloat16,
                                        .is_e5m2 = is_e5m2,
                                        .is_transposed = is_transposed,
                                        .x = x.const_data_ptr(),
                                        .largest = floats(largest),
                                        .codes = codes.data_ptr<uint8_t>(),
                                        .scale = scale.data_ptr<float>()});
            return std::pair{codes, scale};
          };
          const auto [codes, scale] = codes_by([](const cpu::Fp8CodesProblem& p) { cpu::fp8_codes(p, 0, p.rows); });
          const auto expected = (x.to(at::kFloat) / scale).to(format).view(at::kByte);
          EXPECT_TRUE(at::equal(codes, is_transposed ? expected.t().contiguous() : expected)) << rows << " x " << width;
          for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
            for (const uint64_t seed : {0, 1}) {
              const auto [found, its_scale] = codes_by([&](const cpu::Fp8CodesProblem& p) { kernels->fp8_codes(p, seed); });
              EXPECT_TRUE(at::equal(found, codes) && at::equal(its_scale, scale)) << rows << " x " << width << " seed " << seed;
            }
        }
}

// Scales and places of groups by their definition, with rows behind the last end and rows that do not count.
TEST(GpuFp8Groups, have_a_scale_each_and_begin_at_multiples_of_sixteen) {
  at::manual_seed(10);
  struct Groups {
    std::vector<int32_t> ends;
    int64_t rows, counting;
  };
  std::vector<int32_t> many(270);  // more than a block has threads
  for (size_t g = 0; g < many.size(); ++g) many[g] = static_cast<int32_t>(g * 3 / 2);
  for (const auto& groups : {Groups{{5, 5, 21, 24}, 24, 24}, Groups{{5, 5, 21, 24}, 30, 22}, Groups{{0, 0, 0}, 3, 0},
                             Groups{{700}, 700, 650}, Groups{{0, 0, 16}, 16, 0}, Groups{many, many.back(), many.back()}}) {
    const auto count = static_cast<int64_t>(groups.ends.size()), places = (groups.rows + 16 * count + 15) / 16 * 16;
    const auto ends = at::tensor(groups.ends, at::kInt), counts = (at::arange(groups.rows) < groups.counting).to(at::kFloat);
    const auto largest = at::exp2(at::randn({groups.rows}) * 9);
    auto scales = at::zeros({groups.rows}), of_groups = at::zeros({count});
    auto rows = at::full({places}, -1, at::kInt), place_ends = at::zeros({count}, at::kInt);
    const auto scale_of = [](double most) { return static_cast<float>(std::exp2(std::ceil(std::log2(most / 448)))); };
    double others = 0;
    for (int64_t row = groups.counting; row < groups.rows; ++row) others = std::max(others, largest[row].item<double>());
    int64_t from = 0, start = 0;
    for (int64_t g = 0; g < count; from = groups.ends[static_cast<size_t>(g++)]) {
      const int64_t end = std::min<int64_t>(groups.ends[static_cast<size_t>(g)], groups.counting);
      double most = 0;
      for (int64_t row = from; row < end; ++row) most = std::max(most, largest[row].item<double>()), rows[start + row - from] = row;
      of_groups[g] = most > 0 ? scale_of(most) : std::exp2(-100.0f);
      if (end > from) scales.narrow(0, from, end - from).fill_(of_groups[g]);
      start += std::max<int64_t>(16, (std::max<int64_t>(0, end - from) + 15) / 16 * 16);
      place_ends[g] = start;
    }
    if (groups.rows > groups.counting) scales.narrow(0, groups.counting, groups.rows - groups.counting).fill_(scale_of(others));
    const auto check = [&](const auto& kernel, const char* what) {
      auto row_scale = at::full({groups.rows}, -1.0f), group_scale = at::full({count}, -1.0f);
      auto row_of_place = at::full({places}, 77, at::kInt), ends_of_places = at::full({count}, 77, at::kInt);
      kernel(cpu::Fp8GroupsProblem{.rows = count,
                                   .all_rows = groups.rows,
                                   .places = places,
                                   .ends = ends.const_data_ptr<int32_t>(),
                                   .counts = floats(counts),
                                   .largest = floats(largest),
                                   .row_scale = row_scale.data_ptr<float>(),
                                   .group_scale = group_scale.data_ptr<float>(),
                                   .row_of_place = row_of_place.data_ptr<int32_t>(),
                                   .place_ends = ends_of_places.data_ptr<int32_t>()});
      EXPECT_TRUE(at::equal(row_scale, scales) && at::equal(group_scale, of_groups)) << what << " of " << groups.rows;
      EXPECT_TRUE(at::equal(row_of_place, rows) && at::equal(ends_of_places, place_ends)) << what << " of " << groups.rows;
    };
    // A CPU's threads begin anywhere.
    check([&](const cpu::Fp8GroupsProblem& p) { cpu::fp8_groups(p, p.rows / 2, p.rows), cpu::fp8_groups(p, 0, p.rows / 2); }, "cpu");
    check([&](const cpu::Fp8GroupsProblem& p) { host_kernels_wave32.fp8_groups(p, 1); }, "wave of 32");
    if (count < 100) check([&](const cpu::Fp8GroupsProblem& p) { host_kernels_wave64.fp8_groups(p, 2); }, "wave of 64");
  }
}

TEST(GpuFp8Codes, of_groups_have_a_scale_for_each_row_and_zeros_where_no_row_is) {
  at::manual_seed(11);
  constexpr int64_t kRows = 37, kWidth = 80, kPlaces = 96;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto x = (at::randn({kRows, kWidth}) * at::exp2(at::randn({kRows, 1}) * 6)).to(dtype);
    const auto largest = x.to(at::kDouble).abs().amax(1),
               scale = at::exp2((largest / 448).log2().ceil() + at::arange(kRows) % 2).to(at::kFloat);
    auto places = at::full({kPlaces}, -1, at::kInt);
    places.narrow(0, 0, 20).copy_(at::arange(20)), places.narrow(0, 32, 17).copy_(at::arange(20, kRows));
    const auto plain = (x.to(at::kFloat) / scale.unsqueeze(1)).to(at::kFloat8_e4m3fn).view(at::kByte);
    auto placed = at::zeros({kPlaces, kWidth}, at::kByte);
    placed.narrow(0, 0, 20).copy_(plain.narrow(0, 0, 20)), placed.narrow(0, 32, 17).copy_(plain.narrow(0, 20, 17));
    for (const bool is_placed : {false, true}) {
      const auto expected = is_placed ? placed.t().contiguous() : plain;
      const auto check = [&](const auto& kernel, const char* what) {
        auto codes = at::full(expected.sizes(), 0xee, at::kByte);
        kernel(cpu::Fp8CodesProblem{.rows = is_placed ? kPlaces : kRows,
                                    .width = kWidth,
                                    .is_bf16 = dtype == at::kBFloat16,
                                    .is_transposed = is_placed,
                                    .x = x.const_data_ptr(),
                                    .row_scale = floats(scale),
                                    .row_of_place = is_placed ? places.const_data_ptr<int32_t>() : nullptr,
                                    .codes = codes.data_ptr<uint8_t>()});
        EXPECT_TRUE(at::equal(codes, expected)) << what << (is_placed ? " placed" : "");
      };
      check([](const cpu::Fp8CodesProblem& p) { cpu::fp8_codes(p, 0, p.rows); }, "cpu");
      for (const uint64_t seed : {0, 1}) {
        check([&](const cpu::Fp8CodesProblem& p) { host_kernels_wave32.fp8_codes(p, seed); }, "wave of 32");
        check([&](const cpu::Fp8CodesProblem& p) { host_kernels_wave64.fp8_codes(p, seed); }, "wave of 64");
      }
    }
  }
}

TEST(GpuLargest, finds_the_largest_magnitude_of_each_row) {
  at::manual_seed(8);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {1, 37, 256, 2080}) {
      auto x = at::randn({5, width}).to(dtype);
      x[2].zero_();
      x[3][width - 1] = -9;
      const auto expected = x.to(at::kFloat).abs().amax(1);
      const auto largest_by = [&](const auto& kernel) {
        auto largest = at::full({5}, std::numeric_limits<double>::quiet_NaN());
        kernel(cpu::LargestProblem{
            .rows = 5, .width = width, .is_bf16 = dtype == at::kBFloat16, .x = x.const_data_ptr(), .largest = largest.data_ptr<float>()});
        return largest;
      };
      EXPECT_TRUE(at::equal(largest_by([](const cpu::LargestProblem& p) { cpu::largest_magnitude(p, 0, p.rows); }), expected)) << width;
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        EXPECT_TRUE(at::equal(largest_by([&](const cpu::LargestProblem& p) { kernels->largest_magnitude(p, 1); }), expected)) << width;
    }
}

INSTANTIATE_TEST_SUITE_P(Tiles, GpuFp8,
                         testing::Combine(testing::Values(std::pair{0, 0}, std::pair{1, 32}, std::pair{1, 128}, std::pair{32, 1},
                                                          std::pair{128, 1}, std::pair{128, 128}),
                                          testing::Values(std::pair{5, 40}, std::pair{33, 131}, std::pair{140, 264}, std::pair{1, 1}),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           const auto tile = std::get<0>(info.param);
                           const auto size = std::get<1>(info.param);
                           return fmt::format("{}x{}_of_{}x{}_{}", tile.first, tile.second, size.first, size.second,
                                              c10::toString(std::get<2>(info.param)));
                         });

}  // namespace
}  // namespace ingot::kernels::gpu
