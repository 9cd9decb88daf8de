#include "optim/normuon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "optim/test_support.h"

namespace ingot::optim {
namespace {

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

}  // namespace
}  // namespace ingot::optim
