#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "optim/test_support.h"

namespace ingot::optim {
namespace {

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

// What a GPU would run in a step, by name: gradient norm and update, but for the iterations of Muon.
std::map<std::string, int64_t> launches_of(int64_t parameters, const std::string& rule, const std::string& moments, bool offload = false) {
  const device::CountingDevice counting(device::Target::gpu);
  Fixture f;
  for (int64_t i = 0; i < parameters; ++i) {
    f.add("vector" + std::to_string(i), {8}, Kind::vector);
    f.add("matrix" + std::to_string(i), {4, 6}, Kind::matrix);
  }
  f.list.allocate(at::kBFloat16, counting.device());
  OptimizerConfig config;
  config.name = rule, config.moments_dtype = moments, config.offload = offload;
  Optimizer optimizer(f.list, config);
  for (const auto& p : f.list.all()) p->accumulate(at::ones(p->shape, p->value.options().dtype(at::kFloat)));
  device::Tracer tracer(counting.device());
  optimizer.step(1e-3, 1 + optimizer.gradient_norm().norm);
  const auto trace = tracer.finish();
  std::map<std::string, int64_t> launches;
  for (const auto& operation : trace.operations) {
    const std::string name(trace.name_of(operation));
    if (!name.starts_with("aten::") || trace.enclosing(operation.scope, "muon") < 0) ++launches[name];
  }
  return launches;
}

TEST(Optimizer, updates_many_parameters_in_a_launch) {
  using Launches = std::map<std::string, int64_t>;
  for (const char* moments : {"fp32", "bf16"}) {
    // 128 squares, 48 of AdamW and 64 of Muon are a launch.
    EXPECT_EQ(launches_of(20, "adamw", moments), (Launches{{"square_sum", 1}, {"add_chunks", 1}, {"adamw", 1}}));
    EXPECT_EQ(launches_of(120, "adamw", moments), (Launches{{"square_sum", 2}, {"add_chunks", 2}, {"adamw", 5}}));
    EXPECT_EQ(launches_of(120, "muon", moments),
              (Launches{{"square_sum", 2}, {"add_chunks", 2}, {"adamw", 3}, {"momentum", 2}, {"apply_direction", 2}}));
  }
  // One after another, as they come.
  EXPECT_EQ(launches_of(20, "adamw", "fp32", /*offload=*/true).at("adamw"), 40);
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
