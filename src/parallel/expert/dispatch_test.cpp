// Experts dealt out over ranks, and sliced, against all of them in one place: outputs and every gradient, with uneven loads,
// experts that nobody chose and ranks without tokens.
#include <gtest/gtest.h>

#include <mutex>

#include "comm/world.h"
#include "device/test_device.h"
#include "parallel/expert/axis.h"

namespace ingot::parallel {
namespace {

using namespace layers;

constexpr int64_t kExperts = 4, kHidden = 6, kInner = 4;

struct Case {
  int ranks;
  int64_t slices, top_k;
  std::vector<int64_t> tokens;  // of each rank
  std::string pattern;
};

struct Inputs {
  at::Tensor x, weight, choice, grad;
};

Inputs inputs_of(const Case& c) {
  int64_t total = 0;
  for (const int64_t n : c.tokens) total += n;
  auto generator = at::detail::createCPUGenerator(5);
  Inputs in{at::randn({total, kHidden}, generator, at::kDouble),
            at::rand({total * c.top_k}, generator, at::kDouble),
            {},
            at::randn({total, kHidden}, generator, at::kDouble)};
  const int64_t slots = total * c.top_k;
  if (c.pattern == "one expert") in.choice = at::full({slots}, 1, at::kLong);
  else if (c.pattern == "all skip") in.choice = at::full({slots}, kExperts, at::kLong);
  else if (c.pattern == "last rank idle") in.choice = at::randint(0, kExperts / 2, {slots}, generator, at::kLong);
  else in.choice = at::randint(0, kExperts + 1, {slots}, generator, at::kLong);
  return in;
}

struct Weights {
  ParameterList list;
  Parameter *gate_up, *down;
  explicit Weights(const tensor::Part& up = {}, const tensor::Part& to = {}, int rank = 0) {
    gate_up = &list.add({.name = "up",
                         .shape = {kExperts, 2 * kInner, kHidden},
                         .part = up,
                         .kind = Parameter::Kind::matrix,
                         .initial = tensor::Initial::normal(1)});
    down = &list.add({.name = "down",
                      .shape = {kExperts, kHidden, kInner},
                      .part = to,
                      .kind = Parameter::Kind::matrix,
                      .initial = tensor::Initial::normal(1)});
    list.allocate(at::kDouble, device::test_device(rank));
    list.initialise(3);
  }
};

struct Results {
  at::Tensor out, grad_x, grad_weight;
};

Results run(const Inputs& in, Weights& weights, int64_t top_k, const ExpertAxis& axis) {
  const auto device = weights.down->value.device();
  auto x = in.x.to(device).clone().set_requires_grad(true), weight = in.weight.to(device).clone().set_requires_grad(true);
  const auto out =
      experts(x, in.choice.to(device), weight, {*weights.gate_up, *weights.down}, top_k, SkipOutput::identity, axis.exchange());
  (out * in.grad.to(device)).sum().backward();
  return {out.detach().cpu(), x.grad().cpu(), weight.grad().cpu()};
}

class ExpertsOverRanks : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertsOverRanks, are_the_experts_of_one_rank) {
  const auto& c = GetParam();
  const auto all = inputs_of(c);
  Weights whole;
  const auto expected = run(all, whole, c.top_k, {});
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    const int owner = world.rank() / static_cast<int>(c.slices), slice = world.rank() % static_cast<int>(c.slices);
    const auto own = tensor::share_of(kExperts, owner, c.ranks / c.slices), inner = tensor::share_of(kInner, slice, c.slices);
    const tensor::Part up = {{own}, {inner, {kInner + inner.begin, kInner + inner.end}}, {{0, kHidden}}},
                       down = {{own}, {{0, kHidden}}, {inner}};
    Weights weights(up, down, world.rank());
    int64_t first = 0;
    for (int r = 0; r < world.rank(); ++r) first += c.tokens[static_cast<size_t>(r)];
    const int64_t count = c.tokens[static_cast<size_t>(world.rank())];
    const auto slots = [&](const at::Tensor& t) { return t.narrow(0, first * c.top_k, count * c.top_k); };
    const Inputs in{all.x.narrow(0, first, count), slots(all.weight), slots(all.choice), all.grad.narrow(0, first, count)};
    const auto got = run(in, weights, c.top_k,
                         {.size = c.ranks / static_cast<int>(c.slices), .slices = static_cast<int>(c.slices), .group = &world.everyone()});
    const auto same = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
      EXPECT_TRUE(at::allclose(a.cpu(), b.cpu(), 1e-12, 1e-12)) << what << " on rank " << world.rank();
    };
    same(got.out, expected.out.narrow(0, first, count), "output");
    same(got.grad_x, expected.grad_x.narrow(0, first, count), "gradient of x");
    same(got.grad_weight, slots(expected.grad_weight), "gradient of the weights of the mixture");
    same(weights.gate_up->grad, part_of(whole.gate_up->grad, up), "gradient of gate and up");
    same(weights.down->grad, part_of(whole.down->grad, down), "gradient of down");
    // Rows that leave a rank, once for each slice: x, result's gradient (as many come back); and their weights.
    if (c.slices > 1 || world.rank() > 0) return;
    const auto elsewhere =
        in.choice.ge(own.end).logical_and(in.choice.lt(kExperts)).logical_or(in.choice.lt(own.begin)).sum().item<int64_t>();
    int64_t arrive = 0;
    for (int r = 1; r < c.ranks; ++r) {
      int64_t from = 0;
      for (int before = 0; before < r; ++before) from += c.tokens[static_cast<size_t>(before)];
      const auto theirs = all.choice.narrow(0, from * c.top_k, c.tokens[static_cast<size_t>(r)] * c.top_k);
      arrive += theirs.ge(own.begin).logical_and(theirs.lt(own.end)).sum().item<int64_t>();
    }
    const int64_t counts = (c.ranks - 1) * (kExperts / c.ranks) * 8;
    EXPECT_EQ(world.counters().totals()["world"].sent_bytes, counts + (elsewhere + arrive) * (2 * kHidden + 1) * 8);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ExpertsOverRanks,
                         ::testing::Values(Case{2, 1, 1, {9, 7}, "random"}, Case{4, 1, 1, {5, 0, 9, 2}, "random"},
                                           Case{2, 1, 2, {6, 6}, "random"}, Case{4, 2, 1, {4, 8, 3, 5}, "random"},
                                           Case{2, 2, 2, {5, 7}, "random"}, Case{4, 4, 1, {3, 3, 0, 4}, "random"},
                                           Case{4, 1, 1, {3, 3, 3, 3}, "one expert"}, Case{2, 1, 1, {4, 4}, "all skip"},
                                           Case{2, 1, 1, {8, 8}, "last rank idle"}, Case{4, 2, 2, {0, 0, 0, 6}, "random"}),
                         [](const auto& info) {
                           auto name = fmt::format("{}_ranks_{}_slices_top_{}_{}_case_{}", info.param.ranks, info.param.slices,
                                                   info.param.top_k, info.param.pattern, info.index);
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace ingot::parallel
