#include "optim/newton_schulz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "optim/muon.h"
#include "optim/test_support.h"

namespace ingot::optim {
namespace {

TEST(NewtonSchulz, every_form_and_shape_follows_the_definition) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int, int>>{{1, 1}, {3, 17}, {40, 40}, {65, 50}, {300, 280}, {300, 130}, {270, 700}}) {
    const auto x = random({rows, cols}, 1);
    const auto expected = iterated(x, kFive);
    EXPECT_LT((newton_schulz(x, kFive) - expected).abs().max().item<double>(), 1e-12) << rows << "x" << cols;
    EXPECT_LT((newton_schulz(x.to(at::kFloat), kFive) - expected).abs().max().item<double>(), 2e-4) << rows << "x" << cols;
  }
}

// As published with the paper (arXiv 2505.16932, its listing), for singular values from 1e-3 on; but for the last without the margin there.
TEST(NewtonSchulz, polar_express_is_the_published_one) {
  const Quintics published = {
      {8.28721201814563, -23.595886519098837, 17.300387312530933},  {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
      {3.9486908534822946, -2.908902115962949, 0.5518191394370137}, {3.3184196573706015, -2.488488024314874, 0.51004894012372},
      {2.300652019954817, -1.6689039845747493, 0.4188073119525673}, {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
      {1.8750014808534479, -1.2500016453999487, 0.3750001645474248}};
  const auto found = polar_express(7);
  ASSERT_EQ(found.size(), published.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const double margin = i + 1 < found.size() ? 1.01 : 1;
    EXPECT_NEAR(found[i].a * margin, published[i].a, 1e-9) << i;
    EXPECT_NEAR(found[i].b * std::pow(margin, 3), published[i].b, 1e-9) << i;
    EXPECT_NEAR(found[i].c * std::pow(margin, 5), published[i].c, 1e-9) << i;
  }
  EXPECT_EQ(polar_express(3, 1).back(), (Quintic{15 / 8., -10 / 8., 3 / 8.})) << "the limit, where all are 1";
}

TEST(NewtonSchulz, each_step_has_its_own_polynomial) {
  const auto steps = polar_express(5);
  for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{3, 17}, {65, 50}, {300, 280}, {270, 700}}) {
    const auto x = random({rows, cols}, 1), expected = iterated(x, steps);
    EXPECT_LT((newton_schulz(x, steps) - expected).abs().max().item<double>(), 1e-12) << rows << "x" << cols;
    EXPECT_LT((newton_schulz(x.to(at::kFloat), steps) - expected).abs().max().item<double>(), 1e-3) << rows << "x" << cols;
    const auto in_bf16 = newton_schulz(std::vector{x}, steps, Threads::share_gemms, Iterates::bf16)[0];
    EXPECT_LT((in_bf16 - expected).norm().item<double>(), 0.03 * expected.norm().item<double>()) << rows << "x" << cols;
  }
  const auto x = random({50, 120}, 1);
  const auto distance_from_orthogonal = [&](const Quintics& how) {
    const auto rows = newton_schulz(x, how);
    return (at::mm(rows, rows.t()) - at::eye(50, at::kDouble)).norm().item<double>() / std::sqrt(50);
  };
  EXPECT_LT(distance_from_orthogonal(polar_express(8)), 1e-3);
  EXPECT_LT(distance_from_orthogonal(steps), 0.2);
  EXPECT_GT(distance_from_orthogonal(kFive), 0.3);
}

TEST(NewtonSchulz, polynomials_of_the_settings) {
  OptimizerConfig config;
  config.newton_schulz_steps = 2;
  EXPECT_EQ(quintics_of(config), Quintics(2, {3.4445, -4.7750, 2.0315}));
  config.newton_schulz_polynomial = "polar_express";
  EXPECT_EQ(quintics_of(config), polar_express(2));
  config.newton_schulz_coefficients = {1, 2, 3};
  EXPECT_EQ(quintics_of(config), Quintics(2, {1, 2, 3}));
  config.newton_schulz_coefficients = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(quintics_of(config), (Quintics{{1, 2, 3}, {4, 5, 6}}));
  config.newton_schulz_coefficients = {1, 2, 3, 4};
  EXPECT_THROW(Muon{config}, base::ConfigError);
}

TEST(NewtonSchulz, nearly_singular_matrices_stay_close_in_fp32) {
  // Singular values from 1 down to 1e-5.
  const auto left = std::get<0>(at::linalg_qr(random({96, 96}, 1))), right = std::get<0>(at::linalg_qr(random({400, 96}, 2)));
  const auto x = at::mm(left * at::pow(10.0, at::linspace(0, -5, 96, at::kDouble)), right.t());
  EXPECT_LT((newton_schulz(x.to(at::kFloat), kFive) - iterated(x, kFive)).abs().max().item<double>(), 5e-3);
}

TEST(NewtonSchulz, matrices_of_a_gpu_are_iterated_together_by_shape) {
  std::vector<at::Tensor> all;
  for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{3, 17}, {65, 50}, {300, 130}, {65, 50}, {50, 65}, {270, 700}})
    all.push_back(random({rows, cols}, static_cast<int>(all.size())).to(at::kFloat));
  all.push_back(random({4, 65, 50}, 9).to(at::kFloat));  // of experts
  std::vector<at::Tensor> there;
  for (const auto& x : all) there.push_back(x.to(device::emulated_device(0)));
  const auto found = newton_schulz(there, kFive, Threads::share_matrices, Iterates::bf16);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto from = all[i].reshape({-1, all[i].size(-2), all[i].size(-1)}), to = found[i].cpu().reshape(from.sizes());
    for (int64_t j = 0; j < from.size(0); ++j) {
      const auto expected = iterated(from[j].to(at::kDouble), kFive);
      EXPECT_LT((to[j] - expected).norm().item<double>(), 0.03 * expected.norm().item<double>()) << i << " " << all[i].sizes();
    }
  }
}

// Of matrices that are large enough for kernels::symmetric_matmul, in one case by the library since no vector fits its rows.
TEST(NewtonSchulz, large_matrices_of_a_gpu_stay_near_the_definition) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{512, 520}, {2, 700, 520}, {600, 600}, {514, 600}}) {
    const auto x = random(sizes, 4).to(at::kFloat);
    const auto found =
        newton_schulz(std::vector{x.to(device::emulated_device(0))}, kFive, Threads::share_matrices, Iterates::bf16_symmetric)[0].cpu();
    const auto matrices = x.reshape({-1, x.size(-2), x.size(-1)}), results = found.reshape(matrices.sizes());
    for (int64_t i = 0; i < matrices.size(0); ++i) {
      const auto expected = iterated(matrices[i].to(at::kDouble), kFive);
      EXPECT_LT((results[i] - expected).norm().item<double>(), 0.03 * expected.norm().item<double>()) << x.sizes();
    }
  }
}

// Products of a step, in their order.
TEST(NewtonSchulz, gpus_multiply_half_of_what_is_symmetric_from_512_rows_on) {
  for (const auto target : {device::Target::gpu, device::Target::fused_gpu})
    for (const auto how : {Iterates::bf16, Iterates::bf16_symmetric})
      for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{504, 600}, {512, 600}, {1000, 520}}) {
        const device::CountingDevice counting(target);
        const auto counted = at::empty({3, rows, cols}, at::TensorOptions().device(counting.device()));
        device::Tracer tracer(counting.device());
        newton_schulz(std::vector{counted}, Quintics(1), Threads::share_matrices, how);
        const auto trace = tracer.finish();
        std::vector<std::string> products;
        double flops = 0;
        for (const auto& operation : trace.operations)
          if (operation.flops > 0) products.emplace_back(trace.name_of(operation)), flops += operation.flops;
        using testing::ElementsAre;
        if (how == Iterates::bf16_symmetric && std::min(rows, cols) >= 512)
          EXPECT_THAT(products, ElementsAre("symmetric_matmul", "symmetric_matmul", "aten::baddbmm"));
        else EXPECT_THAT(products, ElementsAre("aten::bmm", "aten::baddbmm", "aten::baddbmm"));
        EXPECT_DOUBLE_EQ(flops, 3 * newton_schulz_flops(rows, cols, 1, how)) << rows << "x" << cols;
      }
}

TEST(NewtonSchulz, bf16_stays_near_the_definition) {
  for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{1, 1}, {3, 17}, {65, 50}, {300, 130}, {270, 700}}) {
    const auto x = random({rows, cols}, 1), expected = iterated(x, kFive);
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const auto found = newton_schulz(std::vector{x.to(dtype)}, kFive, Threads::share_gemms, Iterates::bf16)[0];
      EXPECT_EQ(found.scalar_type(), dtype);
      EXPECT_LT((found - expected).norm().item<double>(), 0.03 * expected.norm().item<double>()) << rows << "x" << cols;
      EXPECT_FALSE(at::equal(found.to(at::kFloat), newton_schulz(x.to(at::kFloat), kFive)) && rows * cols > 1) << rows << "x" << cols;
    }
  }
}

// Regression: bf16 iterations multiplied both halves of what is symmetric. The products themselves are counted.
TEST(NewtonSchulz, bf16_iterations_multiply_half_of_what_is_symmetric) {
  const auto of_cpu = iterates_in_bf16(/*on_cpu=*/true);
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{640, 700}, {200, 90}}) {
    const auto x = random({rows, cols}, 1), expected = iterated(x, kFive);
    const auto in_bf16 = [&](Iterates how) { return newton_schulz(std::vector{x.to(at::kFloat)}, kFive, Threads::share_gemms, how)[0]; };
    const auto half = in_bf16(of_cpu), all = in_bf16(Iterates::bf16);
    EXPECT_LT((half - expected).norm().item<double>(), 0.03 * expected.norm().item<double>());
    EXPECT_LT((half - all).norm().item<double>(), 0.01 * all.norm().item<double>()) << "the same iteration";
    EXPECT_TRUE(at::equal(half, half.to(at::kBFloat16).to(at::kFloat))) << "what is sent back in bf16 is all of it";
  }
  const auto flops_of = [&](int64_t rows, int64_t cols, Iterates how) {
    const device::CountingDevice counting(device::Target::cpu);
    const auto counted = at::empty({rows, cols}, at::TensorOptions().device(counting.device()));
    device::Tracer tracer(counting.device());
    newton_schulz(std::vector{counted}, kFive, Threads::share_gemms, how);
    double flops = 0;
    for (const auto& operation : tracer.finish().operations) flops += operation.flops;
    return flops;
  };
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{650, 700}, {150, 90}, {40, 60}})
    for (const auto how : {of_cpu, Iterates::bf16, Iterates::own})
      EXPECT_DOUBLE_EQ(flops_of(rows, cols, how) / newton_schulz_flops(rows, cols, 5, how), 1) << rows << " " << static_cast<int>(how);
}

TEST(NewtonSchulz, a_stack_is_its_matrices_whatever_the_threads) {
  const auto x = random({7, 12, 30}, 3).to(at::kFloat);
  const auto stacked = newton_schulz(x, kFive);
  for (int64_t i = 0; i < 7; ++i) EXPECT_TRUE(at::equal(stacked[i], newton_schulz(x[i], kFive)));
}

TEST(NewtonSchulz, a_zero_matrix_stays_zero) { EXPECT_EQ(newton_schulz(at::zeros({4, 9}), kFive).abs().max().item<float>(), 0); }

// Products as newton_schulz.cpp lists them, by hand.
TEST(NewtonSchulz, flops_are_those_of_the_form_that_is_taken) {
  const double m = 96, cube = 2 * m * m * m;
  EXPECT_DOUBLE_EQ(newton_schulz_flops(96, 96, 5), 5 * 3 * cube);  // direct: A, A^2 and B x each time
  EXPECT_DOUBLE_EQ(newton_schulz_flops(96, 128, 5), 5 * (2 * 2 * m * m * 128 + cube));
  // By the Gram matrix: A once and Q x once with the long side, else A^2 (5), B Q (4), B A and B A B (4 each).
  EXPECT_DOUBLE_EQ(newton_schulz_flops(96, 288, 5), 2 * 2 * m * m * 288 + 17 * cube);
  EXPECT_DOUBLE_EQ(newton_schulz_flops(288, 96, 5), newton_schulz_flops(96, 288, 5));
  EXPECT_DOUBLE_EQ(newton_schulz_flops(96, 288, 5, Iterates::bf16), 5 * (2 * 2 * m * m * 288 + cube)) << "always direct";
  EXPECT_LT(newton_schulz_flops(512, 512, 5), 5 * 3 * 2 * 512.0 * 512 * 512) << "half of what is symmetric";
  EXPECT_DOUBLE_EQ(newton_schulz_flops(512, 512, 5, Iterates::bf16), 5 * 3 * 2 * 512.0 * 512 * 512);
  EXPECT_DOUBLE_EQ(newton_schulz_flops(512, 512, 5, Iterates::bf16_symmetric), 5 * (2 * 0.625 + 1) * 2 * 512.0 * 512 * 512);
  EXPECT_DOUBLE_EQ(newton_schulz_flops(64, 64, 5, Iterates::bf16_small_tiles), 5 * (2 * 0.75 + 1) * 2 * 64.0 * 64 * 64);
}

}  // namespace
}  // namespace ingot::optim
