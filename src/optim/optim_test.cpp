#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "optim/muon.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace ingot::optim {
namespace {

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble);
}

// K. Jordan's, five steps.
const Quintics kFive(5, {3.4445, -4.7750, 2.0315});

// The definition of Muon (ZAYA1, arXiv 2511.17127, section V-B), written out for one matrix.
at::Tensor iterated(at::Tensor x, const Quintics& steps) {
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / (x.norm() + 1e-7);
  for (const auto& q : steps) {
    const auto gram = at::mm(x, x.t());
    x = q.a * x + at::mm(q.b * gram + q.c * at::mm(gram, gram), x);
  }
  return tall ? x.t() : x;
}

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

TEST(Schedule, has_the_shapes_it_promises) {
  OptimizerConfig c;
  c.warmup_steps = 10;
  c.final_lr_fraction = 0.1;
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    c.schedule = name;
    EXPECT_DOUBLE_EQ(learning_rate(c, 2, 0, 100), 0.2) << name;
    EXPECT_DOUBLE_EQ(learning_rate(c, 2, 9, 100), 2) << name;
    const double last = learning_rate(c, 2, 99, 100);
    EXPECT_NEAR(last, c.schedule == "constant" ? 2 : 0.2, 1e-12) << name;
    for (int64_t step = 10; step < 99; ++step) EXPECT_GE(learning_rate(c, 2, step, 100), learning_rate(c, 2, step + 1, 100)) << name;
  }
  c.schedule = "wsd";
  c.decay_fraction = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(c, 2, 79, 100), 2);
  EXPECT_LT(learning_rate(c, 2, 80, 100), 2);
  c.warmup_steps = 0;
  EXPECT_GT(learning_rate(c, 2, 0, 1), 0);  // a run of one step has a rate
}

struct Fixture {
  layers::ParameterList list;
  layers::Parameter& add(const std::string& name, tensor::Shape shape, layers::Parameter::Kind kind) {
    auto& p = list.add({.name = name, .shape = std::move(shape), .kind = kind, .keeps_fp32 = kind == layers::Parameter::Kind::buffer});
    return p;
  }
};

using Kind = layers::Parameter::Kind;

TEST(Optimizer, muon_takes_hidden_matrices_and_adamw_the_rest) {
  OptimizerConfig config;
  const auto parameter = [](Kind kind) { return layers::Parameter{.name = "p", .shape = {2, 2}, .kind = kind}; };
  const UpdateRules muon(config);
  EXPECT_EQ(muon.of(parameter(Kind::matrix)).name(), "muon");
  for (const auto kind : {Kind::embedding, Kind::head, Kind::convolution, Kind::vector})
    EXPECT_EQ(muon.of(parameter(kind)).name(), "adamw");
  EXPECT_TRUE(takes_decay(parameter(Kind::convolution)));
  EXPECT_FALSE(takes_decay(parameter(Kind::embedding)));
  config.name = "adamw";
  EXPECT_EQ(UpdateRules(config).of(parameter(Kind::matrix)).name(), "adamw");
  config.name = "sgd";
  EXPECT_THROW(UpdateRules{config}, base::ConfigError);
}

TEST(Optimizer, clips_by_the_global_norm_and_counts_missing_gradients_as_zero) {
  Fixture f;
  auto &a = f.add("a", {3}, Kind::vector), &b = f.add("b", {4}, Kind::vector);
  f.list.allocate(at::kDouble, at::kCPU);
  OptimizerConfig config;
  config.name = "adamw";
  config.eps = 1;  // so that the size of the gradient shows in the step
  config.clip = 1;
  Optimizer optimizer(f.list, config);
  a.accumulate(at::full({3}, 4.0, at::kDouble));
  const auto norm = optimizer.gradient_norm();
  EXPECT_NEAR(norm.norm, std::sqrt(48.0), 1e-12);
  optimizer.step(0.1, norm.norm);
  const double g = 4 / std::sqrt(48.0);
  EXPECT_NEAR(a.value[0].item<double>(), -0.1 * g / (g + 1), 1e-12);
  EXPECT_EQ(b.value.abs().max().item<double>(), 0);
  EXPECT_FALSE(a.has_gradient);
}

// μP: AdamW's rate by the width, Muon's by its root; decay as it is.
TEST(Optimizer, takes_smaller_steps_in_wider_matrices) {
  for (const char* name : {"adamw", "muon"}) {
    OptimizerConfig config;
    config.name = name, config.clip = 0;
    config.newton_schulz_precision = "own";
    std::vector<at::Tensor> steps;
    for (const double width : {1.0, 4.0}) {
      Fixture f;
      auto& w = f.add("w", {4, 4}, Kind::matrix);
      w.width = width;
      f.list.allocate(at::kDouble, at::kCPU);
      {
        const at::NoGradGuard no_grad;
        w.value.fill_(3);
      }
      Optimizer optimizer(f.list, config);
      w.accumulate(random({4, 4}, 5));
      optimizer.step(0.01, 1);
      steps.push_back(w.value.detach() - 3 * (1 - 0.01 * config.weight_decay));
    }
    const double expected = name == std::string("adamw") ? 4 : 2;
    EXPECT_LT((steps[0] - expected * steps[1]).abs().max().item<double>(), 1e-12) << name;
    EXPECT_GT(steps[1].abs().max().item<double>(), 1e-4);
  }
}

TEST(Optimizer, names_the_first_gradient_that_is_not_finite) {
  Fixture f;
  auto &a = f.add("a", {3}, Kind::vector), &b = f.add("b", {4}, Kind::vector);
  f.list.allocate(at::kFloat, at::kCPU);
  Optimizer optimizer(f.list, {});
  a.accumulate(at::ones({3}));
  b.accumulate(at::tensor({1.f, 2.f, std::nanf(""), 4.f}));
  EXPECT_EQ(optimizer.gradient_norm().first_nonfinite, "b");
}

TEST(Optimizer, keeps_fp32_masters_of_bf16_weights) {
  Fixture f;
  auto& w = f.add("w", {4, 4}, Kind::matrix);
  f.list.allocate(at::kBFloat16, at::kCPU);
  OptimizerConfig config;
  config.name = "adamw";
  config.weight_decay = 0;
  Optimizer optimizer(f.list, config);
  for (int i = 0; i < 50; ++i) {
    w.accumulate(at::ones({4, 4}));
    optimizer.step(1e-5, 0);
  }
  EXPECT_NEAR(optimizer.master_of(w)[0][0].item<float>(), -50e-5, 1e-6);  // each step alone is below bf16's resolution at the end
  EXPECT_TRUE(at::equal(w.value.detach(), optimizer.master_of(w).to(at::kBFloat16)));
}

// NorMuon (arXiv 2510.05491), written out for one matrix.
struct WrittenOutNorMuon {
  at::Tensor weight, momentum, v;  // [rows, cols], the same, [rows, 1]
  void step(const at::Tensor& gradient, const OptimizerConfig& c, double lr) {
    momentum = c.momentum * momentum + gradient;
    const auto o = iterated(gradient + c.momentum * momentum, Quintics(static_cast<size_t>(c.newton_schulz_steps)));
    v = c.beta2 * v + (1 - c.beta2) * o.pow(2).mean(1, true);
    const auto normalised = o / (v.sqrt() + c.eps);
    const double rows = static_cast<double>(o.size(0)), cols = static_cast<double>(o.size(1));
    const double rate = 0.2 * lr * std::sqrt(rows * cols) / normalised.norm().item<double>();
    weight = weight - lr * c.weight_decay * weight - rate * normalised;
  }
};

TEST(NorMuon, is_its_definition) {
  Fixture f;
  auto &one = f.add("one", {6, 20}, Kind::matrix), &stack = f.add("stack", {3, 9, 4}, Kind::matrix);
  f.list.allocate(at::kDouble, at::kCPU);
  OptimizerConfig config;
  config.name = "normuon";
  config.clip = 0;
  const at::NoGradGuard no_grad;
  one.value.copy_(random({6, 20}, 1));
  stack.value.copy_(random({3, 9, 4}, 2));
  Optimizer optimizer(f.list, config);
  std::vector<WrittenOutNorMuon> expected;
  const auto begin = [&](const at::Tensor& w) {
    expected.push_back({w.clone(), at::zeros_like(w), at::zeros({w.size(0), 1}, at::kDouble)});
  };
  begin(one.value);
  for (int64_t i = 0; i < 3; ++i) begin(stack.value[i]);
  for (uint64_t step = 0; step < 4; ++step) {
    // Rows of very unlike size: it is the rows that are normalised.
    const auto large = at::pow(10.0, at::arange(6, at::kDouble) - 3).unsqueeze(1);
    const auto g_one = random({6, 20}, 10 + step) * large, g_stack = random({3, 9, 4}, 20 + step);
    one.accumulate(g_one);
    stack.accumulate(g_stack);
    optimizer.step(0.01, 0);
    expected[0].step(g_one, config, 0.01);
    for (int64_t i = 0; i < 3; ++i) expected[static_cast<size_t>(i + 1)].step(g_stack[i], config, 0.01);
    EXPECT_LT((one.value - expected[0].weight).abs().max().item<double>(), 1e-12) << "step " << step;
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_LT((stack.value[i] - expected[static_cast<size_t>(i + 1)].weight).abs().max().item<double>(), 1e-12) << "step " << step;
  }
  // What a checkpoint has, by name and in its shape.
  std::map<std::string, StateSlice> state;
  for (auto& slice : optimizer.state()) state[slice.name] = slice;
  EXPECT_EQ(state.at("optimizer.row_second_moment.one").shape, (tensor::Shape{6}));
  EXPECT_EQ(state.at("optimizer.row_second_moment.stack").shape, (tensor::Shape{3, 9}));
  EXPECT_LT((state.at("optimizer.row_second_moment.one").flat - expected[0].v.view(-1)).abs().max().item<double>(), 1e-12);
  EXPECT_TRUE(state.at("optimizer.row_second_moment.stack").is_primary);
}

TEST(NorMuon, a_matrix_without_a_gradient_stays) {
  Fixture f;
  auto& w = f.add("w", {4, 6}, Kind::matrix);
  f.list.allocate(at::kFloat, at::kCPU);
  OptimizerConfig config;
  config.name = "normuon";
  config.weight_decay = 0;
  Optimizer optimizer(f.list, config);
  optimizer.step(0.1, 0);
  EXPECT_EQ(w.value.abs().max().item<float>(), 0);
}

// Columns that span those of x, by Gram and Schmidt.
at::Tensor orthonormal(const at::Tensor& x) {
  std::vector<at::Tensor> columns;
  for (auto column : x.unbind(1)) {
    for (const auto& before : columns) column = column - before * before.dot(column);
    columns.push_back(column / column.norm());
  }
  return at::stack(columns, 1);
}

// Dion (arXiv 2504.05295, algorithm 1), written out for one matrix.
struct WrittenOutDion {
  at::Tensor weight, momentum, q;  // [rows, cols], the same, [cols, rank]
  void step(const at::Tensor& gradient, const OptimizerConfig& c, double lr) {
    const auto b = momentum + gradient;
    const auto p = orthonormal(at::mm(b, q));
    const auto r = at::mm(b.t(), p);
    momentum = b - (1 - c.momentum) * at::mm(p, r.t());
    q = r / r.norm(2, {0}, true);
    const double rate = 0.2 * lr * std::sqrt(static_cast<double>(weight.numel()) / static_cast<double>(q.size(1)));
    weight = weight - lr * c.weight_decay * weight - rate * at::mm(p, q.t());
  }
};

TEST(Dion, is_its_definition) {
  for (const double fraction : {0.3, 1.0}) {
    Fixture f;
    auto &wide = f.add("wide", {6, 20}, Kind::matrix), &stack = f.add("stack", {3, 9, 4}, Kind::matrix);
    f.list.allocate(at::kDouble, at::kCPU);
    OptimizerConfig config;
    config.name = "dion";
    config.clip = 0;
    config.rank_fraction = fraction;
    const at::NoGradGuard no_grad;
    wide.value.copy_(random({6, 20}, 1));
    stack.value.copy_(random({3, 9, 4}, 2));
    Optimizer optimizer(f.list, config);
    std::map<std::string, StateSlice> state;
    for (auto& slice : optimizer.state()) state[slice.name] = slice;
    const int64_t rank = fraction == 1 ? 6 : 2, rank_of_stack = fraction == 1 ? 4 : 1;
    ASSERT_EQ(state.at("optimizer.basis.wide").shape, (tensor::Shape{20, rank}));
    ASSERT_EQ(state.at("optimizer.basis.stack").shape, (tensor::Shape{3, 4, rank_of_stack}));
    std::vector<WrittenOutDion> expected = {
        {wide.value.clone(), at::zeros({6, 20}, at::kDouble), state.at("optimizer.basis.wide").flat.view({20, rank}).clone()}};
    for (int64_t i = 0; i < 3; ++i)
      expected.push_back({stack.value[i].clone(), at::zeros({9, 4}, at::kDouble),
                          state.at("optimizer.basis.stack").flat.view({3, 4, rank_of_stack})[i].clone()});
    for (uint64_t step = 0; step < 5; ++step) {
      const auto g_wide = random({6, 20}, 10 + step), g_stack = random({3, 9, 4}, 20 + step);
      wide.accumulate(g_wide);
      stack.accumulate(g_stack);
      optimizer.step(0.01, 0);
      expected[0].step(g_wide, config, 0.01);
      for (int64_t i = 0; i < 3; ++i) expected[static_cast<size_t>(i + 1)].step(g_stack[i], config, 0.01);
      EXPECT_LT((wide.value - expected[0].weight).abs().max().item<double>(), 1e-11) << "step " << step;
      EXPECT_LT((state.at("optimizer.momentum.wide").flat - expected[0].momentum.reshape(-1)).abs().max().item<double>(), 1e-11);
      for (int64_t i = 0; i < 3; ++i)
        EXPECT_LT((stack.value[i] - expected[static_cast<size_t>(i + 1)].weight).abs().max().item<double>(), 1e-11) << "step " << step;
    }
  }
}

// An update of any rank is as large as AdamW's.
TEST(Dion, updates_have_the_asked_rank_and_size) {
  for (const double fraction : {0.125, 0.5}) {
    Fixture f;
    auto& w = f.add("w", {32, 48}, Kind::matrix);
    f.list.allocate(at::kFloat, at::kCPU);
    OptimizerConfig config;
    config.name = "dion";
    config.weight_decay = 0;
    config.rank_fraction = fraction;
    Optimizer optimizer(f.list, config);
    w.accumulate(random({32, 48}, 3).to(at::kFloat));
    optimizer.step(1, 0);
    const auto value = w.value.detach().to(at::kDouble);
    const auto beyond = [&](int64_t rank) {  // what of it so many directions leave
      const auto basis = std::get<0>(at::linalg_qr(at::mm(value, random({48, rank}, 4))));
      return (value - at::mm(basis, at::mm(basis.t(), value))).norm().item<double>() / value.norm().item<double>();
    };
    const auto rank = static_cast<int64_t>(32 * fraction);
    EXPECT_LT(beyond(rank), 1e-4);
    EXPECT_GT(beyond(rank - 1), 0.01);
    EXPECT_NEAR(w.value.detach().square().mean().sqrt().item<double>(), 0.2, 0.002);
  }
}

// A gradient of rank 1, as of an expert that one token came to: what rounding leaves in the other directions is not made as large as the
// first.
TEST(Dion, directions_without_a_gradient_add_nothing) {
  for (const auto& [dtype, moments] : {std::pair{at::kFloat, "fp32"}, {at::kFloat, "bf16"}, {at::kDouble, "fp32"}}) {
    Fixture f;
    auto& w = f.add("w", {32, 48}, Kind::matrix);
    f.list.allocate(dtype, at::kCPU);
    OptimizerConfig config;
    config.name = "dion";
    config.weight_decay = 0;
    config.moments_dtype = moments;
    Optimizer optimizer(f.list, config);
    const auto gradient = at::mm(random({32, 1}, 3), random({1, 48}, 4)).to(dtype);
    w.accumulate(gradient);
    optimizer.step(1, 0);
    const auto value = w.value.detach().to(at::kDouble), unit = gradient.to(at::kDouble) / gradient.to(at::kDouble).norm();
    const auto along = (value * unit).sum();
    EXPECT_LT(along.item<double>(), -1);
    EXPECT_LT((value - along * unit).norm().item<double>(), (std::string(moments) == "bf16" ? 2e-2 : 1e-4) * value.norm().item<double>());
  }
}

TEST(Dion, a_matrix_without_a_gradient_stays_and_learns_later) {
  Fixture f;
  auto& w = f.add("w", {4, 6}, Kind::matrix);
  f.list.allocate(at::kFloat, at::kCPU);
  OptimizerConfig config;
  config.name = "dion";
  config.weight_decay = 0;
  Optimizer optimizer(f.list, config);
  optimizer.step(0.1, 0);
  EXPECT_EQ(w.value.abs().max().item<float>(), 0);
  w.accumulate(at::ones({4, 6}));
  optimizer.step(0.1, 0);
  EXPECT_LT(w.value.max().item<float>(), -0.01);
}

// With numbers of many sizes; those of bf16 alone would stand still, since each step changes them by less than half of their last bit.
TEST(Optimizer, moments_in_bf16_follow_those_in_fp32_in_the_mean) {
  for (const auto* name : {"adamw", "muon", "dion"}) {
    std::map<std::string, std::map<std::string, at::Tensor>> states;
    for (const auto* dtype : {"fp32", "bf16"}) {
      Fixture f;
      auto& w = f.add("w", {200, 100}, Kind::matrix);
      f.list.allocate(at::kFloat, at::kCPU);
      OptimizerConfig config;
      config.name = name;
      config.beta2 = 0.999;
      config.momentum = 0.999;
      config.moments_dtype = dtype;
      Optimizer optimizer(f.list, config);
      for (uint64_t step = 0; step < 100; ++step) {
        w.accumulate((random({200, 100}, 7 + step / 50) * (step < 50 ? 1 : 0.1)).to(at::kFloat));
        optimizer.step(0, 0);
      }
      for (const auto& slice : optimizer.state())
        if (slice.name.starts_with("optimizer.")) states[dtype][slice.name] = slice.flat;
    }
    for (const auto& [state, exact] : states["fp32"]) {
      const auto& rounded = states["bf16"].at(state);
      const bool is_basis = state.find("basis") != std::string::npos;
      EXPECT_EQ(rounded.scalar_type(), is_basis ? at::kFloat : at::kBFloat16) << state;
      if (is_basis) continue;
      const auto error = rounded.to(at::kDouble) - exact.to(at::kDouble);
      EXPECT_LT(error.norm().item<double>(), 0.05 * exact.norm().item<double>()) << state;
      if (state.find("second") == std::string::npos) continue;
      EXPECT_NEAR(rounded.to(at::kDouble).mean().item<double>() / exact.mean().item<double>(), 1, 2e-3) << state;
    }
  }
}

// What predictions count of a rule's state is what the optimizer allocates.
TEST(UpdateRules, state_elements_are_those_of_the_state) {
  for (const auto& name : optimizer_names()) {
    Fixture f;
    f.add("one", {6, 20}, Kind::matrix), f.add("stack", {3, 9, 4}, Kind::matrix), f.add("vector", {7}, Kind::vector);
    f.list.allocate(at::kFloat, at::kCPU);
    OptimizerConfig config;
    config.name = name;
    const Optimizer optimizer(f.list, config);
    int64_t found = 0, counted = 0;
    for (const auto& slice : optimizer.state())
      if (slice.name.starts_with("optimizer.")) found += slice.flat.numel();
    for (const auto& p : f.list.all()) counted += UpdateRules(config).state_elements(*p, p->elements());
    EXPECT_EQ(found, counted) << name;
  }
}

TEST(Balancing, moves_biases_against_the_load_and_leaves_the_skip_class_alone) {
  Fixture f;
  auto& bias = f.add("bias", {4}, Kind::buffer);  // three experts and a skip class
  f.list.allocate(at::kFloat, at::kCPU);
  OptimizerConfig config;
  config.balancing_lr = 0.01;
  Optimizer optimizer(f.list, config);
  optimizer.set_steps_done(1);
  optimizer.balance(bias, at::tensor({90, 9, 1, 50}, at::kLong), 3);
  const auto* b = bias.value.data_ptr<float>();
  EXPECT_NEAR(b[0], -0.01, 1e-5);
  EXPECT_GT(b[1], 0);
  EXPECT_GT(b[2], 0);
  EXPECT_EQ(b[3], 0);
  config.balance_skip = true;
  Optimizer with_skip(f.list, config);
  with_skip.set_steps_done(1);
  with_skip.balance(bias, at::tensor({25, 25, 25, 25}, at::kLong), 3);
  EXPECT_EQ(b[3], 0);  // an even load pulls nowhere
}

TEST(Balancing, by_sign_and_by_pid_follow_their_formulas) {
  const auto loads = std::vector<std::vector<int64_t>>{{90, 9, 1, 50}, {40, 40, 20, 3}, {30, 30, 40, 0}};
  OptimizerConfig config;
  config.balancing_lr = 0.01;
  config.balancing_proportional = 0.7, config.balancing_integral = 0.3, config.balancing_derivative = 0.2;
  for (const std::string rule : {"sign", "pid"}) {
    config.balancing = rule;
    const auto bias = at::full({4}, 0.5, at::kDouble);
    const BalancingState state{at::zeros({4}, at::kDouble), at::zeros({4}, at::kDouble)};
    std::vector<double> expected(4, 0.5), e1(3, 0), e2(3, 0);
    for (size_t step = 0; step < loads.size(); ++step) {
      move_balancing_bias(bias, state, at::tensor(loads[step], at::kLong), 3, static_cast<int64_t>(step) + 1, config);
      for (size_t i = 0; i < 3; ++i) {
        const double e = 3 * static_cast<double>(loads[step][i]) / 100 - 1;
        const double by_pid = 0.3 * e + 0.7 * (e - e1[i]) + 0.2 * (e - 2 * e1[i] + e2[i]);
        expected[i] -= 0.01 * (rule == "pid" ? by_pid : e > 0 ? 1 : e < 0 ? -1 : 0);
        e2[i] = e1[i], e1[i] = e;
      }
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(bias.const_data_ptr<double>()[i], expected[i], 1e-12) << rule << " " << step << " " << i;
    }
  }
}

// A router that prefers its first experts, with the bias in a closed loop.
TEST(Balancing, by_every_rule_evens_out_a_skewed_router) {
  at::manual_seed(3);
  constexpr int64_t kExperts = 8;
  const auto scores = (at::randn({4096, kExperts}, at::kDouble) + at::arange(kExperts, at::kDouble) * -0.4).softmax(-1);
  for (const auto& rule : balancing_rule_names()) {
    OptimizerConfig config;
    config.balancing = rule;
    config.balancing_lr = 2e-3;
    const auto bias = at::zeros({kExperts}, at::kDouble);
    const BalancingState state{at::zeros({kExperts}, at::kDouble), at::zeros({kExperts}, at::kDouble)};
    const auto counts = [&] { return std::get<1>((scores + bias).topk(2, -1)).flatten().bincount({}, kExperts); };
    const double at_first = counts().max().item<double>() / 1024;
    for (int64_t step = 1; step <= 400; ++step) move_balancing_bias(bias, state, counts(), kExperts, step, config);
    EXPECT_GT(at_first, 2) << rule;
    EXPECT_LT(counts().max().item<double>() / 1024, 1.1) << rule;
  }
}

}  // namespace
}  // namespace ingot::optim
