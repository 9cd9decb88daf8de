#include "optim/dion.h"

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

}  // namespace
}  // namespace ingot::optim
