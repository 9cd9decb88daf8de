// A router's choice: the CPU's kernel, and the GPU's, which the host runs thread by thread, against its definition in fp64; and what models
// call, on emulated and counting devices.
#include "kernels/topk_softmax.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/differentiable.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

using cpu::TopkSoftmaxProblem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  int64_t rows, classes, top_k;
};
// Of every kernel, with rows that fill their block and rows that do not, threads without a class, and more chosen classes than threads.
constexpr Case kCases[] = {{1, 1, 1},   {1, 3, 1},  {9, 3, 3},   {32, 8, 2},  {33, 5, 1},  {8, 17, 1},   {13, 17, 2}, {11, 32, 4},
                           {3, 33, 33}, {7, 64, 8}, {5, 100, 3}, {4, 128, 8}, {9, 256, 8}, {3, 200, 64}, {2, 257, 8}, {5, 512, 40}};

struct Results {
  at::Tensor weight, choice, grad_logits;
};

// `given`: int64 [rows, top_k], undefined where the kernel chooses.
struct Call {
  at::Tensor logits, bias, upstream, given;
  int64_t top_k;
  bool renormalises;

  template <class Forward, class Backward>
  Results operator()(const Forward& forward, const Backward& backward) const {
    Results r{at::full_like(upstream, kNan), given.defined() ? given.clone() : at::full(upstream.sizes(), -1, at::kLong),
              at::full_like(logits, kNan)};
    TopkSoftmaxProblem p{};
    p.rows = logits.size(0), p.classes = logits.size(1), p.top_k = top_k;
    p.renormalises = renormalises, p.chooses = !given.defined();
    p.logits = logits.const_data_ptr<float>();
    p.bias = p.chooses ? bias.const_data_ptr<float>() : nullptr;
    p.choice = r.choice.data_ptr<int64_t>(), p.weight = r.weight.data_ptr<float>();
    forward(p);
    p.grad_weight = upstream.const_data_ptr<float>(), p.grad_logits = r.grad_logits.data_ptr<float>();
    if (renormalises) p.logits = nullptr;  // which must do without
    backward(p);
    return r;
  }
  Results on_cpu() const {
    return (*this)([](const auto& p) { cpu::topk_softmax(p, 0, p.rows); }, [](const auto& p) { cpu::topk_softmax_backward(p, 0, p.rows); });
  }
  Results on_gpu(const HostKernels& kernels, uint64_t seed) const {
    return (*this)([&](const auto& p) { kernels.topk_softmax(p, seed); }, [&](const auto& p) { kernels.topk_softmax_backward(p, seed); });
  }
  // In fp64, with the gradient by autograd.
  Results by_definition() const {
    const auto x = logits.to(at::kDouble).set_requires_grad(true);
    const auto probabilities = at::softmax(x, 1);
    const auto scores = probabilities.detach() + (bias.defined() ? bias.to(at::kDouble) : at::zeros({logits.size(1)}, at::kDouble));
    const auto choice = given.defined() ? given : scores.argsort(/*stable=*/true, 1, /*descending=*/true).narrow(1, 0, top_k);
    auto weight = probabilities.gather(1, choice);
    if (renormalises) weight = weight / weight.sum(1, /*keepdim=*/true);
    return {weight.detach(), choice, gradients({weight}, {x}, {upstream.to(at::kDouble)})[0]};
  }
};

Call call_of(const Case& c, bool renormalises, bool is_given) {
  at::manual_seed(3);
  return {at::randn({c.rows, c.classes}) * 2,
          at::randn({c.classes}) * 0.02,
          at::randn({c.rows, c.top_k}),
          is_given ? at::randint(c.classes, {c.rows, c.top_k}, at::kLong) : at::Tensor(),
          c.top_k,
          renormalises};
}

template <class Body>
void for_each_call(const Body& body) {
  for (const auto& c : kCases)
    for (const bool renormalises : {false, true})
      for (const bool is_given : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{}x{}, top {}{}{}", c.rows, c.classes, c.top_k, renormalises ? ", renormalised" : "", is_given ? ", given" : ""));
        body(call_of(c, renormalises, is_given));
      }
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item<double>();
}

TEST(TopkSoftmax, of_the_cpu_equals_its_definition) {
  for_each_call([](const Call& call) {
    const auto expected = call.by_definition(), found = call.on_cpu();
    EXPECT_TRUE(at::equal(found.choice, expected.choice));
    EXPECT_LT(error_of(found.weight, expected.weight), 1e-6);
    EXPECT_LT(error_of(found.grad_logits, expected.grad_logits), 1e-6);
  });
}

TEST(TopkSoftmax, of_a_gpu_equals_its_definition_in_every_order_of_threads) {
  for_each_call([](const Call& call) {
    const auto expected = call.by_definition(), first = call.on_gpu(host_kernels_wave32, 0);
    EXPECT_TRUE(at::equal(first.choice, expected.choice));
    EXPECT_LT(error_of(first.weight, expected.weight), 1e-6);
    EXPECT_LT(error_of(first.grad_logits, expected.grad_logits), 1e-6);
    for (const auto& [kernels, seed] :
         {std::pair(&host_kernels_wave32, 1), std::pair(&host_kernels_wave64, 0), std::pair(&host_kernels_wave64, 2)}) {
      const auto found = call.on_gpu(*kernels, static_cast<uint64_t>(seed));
      EXPECT_TRUE(at::equal(found.choice, first.choice) && at::equal(found.weight, first.weight) &&
                  at::equal(found.grad_logits, first.grad_logits))
          << "seed " << seed;
    }
  });
}

// By all kernels.
template <class Body>
void expect_of_each(const Call& call, const Body& body) {
  body(call.on_cpu());
  body(call.on_gpu(host_kernels_wave32, 1));
  body(call.on_gpu(host_kernels_wave64, 1));
}

TEST(TopkSoftmax, of_equal_scores_takes_the_first_classes) {
  for (const int64_t classes : {5, 17, 100, 512})
    for (const int64_t top_k : {1, 3, 5}) {
      SCOPED_TRACE(fmt::format("top {} of {}", top_k, classes));
      auto logits = at::zeros({2, classes}), bias = at::zeros({classes});
      logits[1][classes - 1] = logits[1][classes / 2] = 1;  // two are better, and equal
      const Call call{logits, bias, at::ones({2, top_k}), {}, top_k, false};
      const auto expected = call.by_definition().choice;  // a stable sort
      EXPECT_TRUE(at::equal(expected[0], at::arange(top_k, at::kLong)));
      expect_of_each(call, [&](const Results& r) { EXPECT_TRUE(at::equal(r.choice, expected)); });
    }
}

// What no score can be compared with must not lead to a class that does not exist, nor spoil other tokens.
TEST(TopkSoftmax, keeps_nan_to_its_row_and_chooses_different_classes_all_the_same) {
  for (const int64_t classes : {5, 64, 300})
    for (const bool renormalises : {false, true}) {
      SCOPED_TRACE(fmt::format("{} classes{}", classes, renormalises ? ", renormalised" : ""));
      auto call = call_of({6, classes, 4}, renormalises, false);
      call.logits[1][3] = kNan;
      call.logits[2].fill_(-kInfinity);
      call.logits[4][2] = kInfinity;
      auto fine = call;
      const auto kept = at::tensor({0, 3, 5}, at::kLong);
      fine.logits = call.logits.index_select(0, kept), fine.upstream = call.upstream.index_select(0, kept);
      const auto expected = fine.by_definition();
      expect_of_each(call, [&](const Results& r) {
        EXPECT_TRUE(at::equal(r.choice.index_select(0, kept), expected.choice));
        EXPECT_LT(error_of(r.weight.index_select(0, kept), expected.weight), 1e-6);
        EXPECT_LT(error_of(r.grad_logits.index_select(0, kept), expected.grad_logits), 1e-6);
        EXPECT_TRUE(at::equal(r.choice[1], at::arange(4, at::kLong)) && at::equal(r.choice[2], r.choice[1]));
        EXPECT_TRUE(r.weight[1].isnan().all().item<bool>() && r.weight[2].isnan().all().item<bool>());
        EXPECT_TRUE(r.grad_logits[1].isnan().any().item<bool>());
      });
    }
}

TEST(TopkSoftmax, takes_classes_that_a_bias_forbids_last) {
  for (const int64_t classes : {6, 40}) {
    auto call = call_of({3, classes, 5}, false, false);
    call.bias.fill_(-kInfinity);
    call.bias[1] = call.bias[4] = 0;
    expect_of_each(call, [&](const Results& r) {
      for (int64_t row = 0; row < 3; ++row) {
        EXPECT_TRUE(at::equal(std::get<0>(r.choice[row].narrow(0, 0, 2).sort()), at::tensor({1, 4}, at::kLong)));
        EXPECT_TRUE(at::equal(r.choice[row].narrow(0, 2, 3), at::tensor({0, 2, 3}, at::kLong)));
      }
    });
  }
}

// On the CPU, where choices that hang on a last bit would lead a run elsewhere.
TEST(TopkSoftmax, that_models_call_on_the_cpu_has_the_bits_of_atens_operations) {
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const int64_t top_k : {1, 2}) {
      const auto logits = at::randn({50, 17}, dtype).set_requires_grad(true), bias = at::randn({17}, dtype) * 0.01;
      const auto found = topk_softmax(logits, bias, top_k, top_k == 2);
      const auto probabilities = at::softmax(logits, 1);
      const auto choice = top_k == 1 ? (probabilities + bias).argmax(1, true) : std::get<1>((probabilities + bias).topk(top_k, 1));
      auto weight = probabilities.gather(1, choice);
      if (top_k == 2) weight = weight / weight.sum(1, true);
      EXPECT_TRUE(at::equal(found.choice, choice.flatten()) && at::equal(found.weight, weight.flatten()));
      EXPECT_TRUE(at::equal(gradients({found.weight.sum()}, {logits}, {})[0], gradients({weight.sum()}, {logits}, {})[0]));
    }
}

int64_t any_class(int64_t slot) { return slot * 7 % 17; }

// What has not been waited for must not be needed: the bias changes behind the kernel.
TEST(TopkSoftmax, on_the_emulated_device_is_done_in_its_order_and_takes_other_choices) {
  const auto device = device::emulated_device(0);
  for (const bool renormalises : {false, true})
    for (const bool changes : {false, true}) {
      const ChangeChoice change = [](const at::Tensor& choice) {
        auto other = at::empty({choice.numel()}, at::kLong);
        for (int64_t i = 0; i < other.numel(); ++i) other.data_ptr<int64_t>()[i] = any_class(i);
        return other.to(choice.device());
      };
      const auto logits = at::randn({60, 17}), bias = at::randn({17}) * 0.05, upstream = at::randn({120});
      const auto here = logits.to(at::kDouble).set_requires_grad(true);
      const auto expected = topk_softmax(here, bias.to(at::kDouble), 2, renormalises, changes ? change : ChangeChoice());
      const auto there = logits.to(device).set_requires_grad(true);
      auto bias_there = bias.to(device);
      const auto found = topk_softmax(there, bias_there, 2, renormalises, changes ? change : ChangeChoice());
      bias_there.zero_();
      EXPECT_TRUE(at::equal(found.choice.cpu(), expected.choice));
      EXPECT_LT(error_of(found.weight.cpu(), expected.weight), 1e-6);
      EXPECT_LT(error_of(gradients({found.weight}, {there}, {upstream.to(device)})[0].cpu(),
                         gradients({expected.weight}, {here}, {upstream.to(at::kDouble)})[0]),
                1e-6);
    }
}

TEST(TopkSoftmax, is_counted_with_its_memory_and_waits_for_nobody) {
  for (const bool renormalises : {false, true}) {
    const device::CountingDevice counting(device::Target::gpu);
    const auto on = at::TensorOptions().device(counting.device()).dtype(at::kFloat);
    const auto bias = at::empty({17}, on);
    at::Tensor logits = at::empty({700, 17}, on).set_requires_grad(true);
    device::Tracer tracer(counting.device());
    const device::PeakSince peak(counting.device());
    const auto routed = topk_softmax(logits, bias, 2, renormalises);
    EXPECT_EQ(peak.bytes(), 700 * 2 * (8 + 4));
    gradients({routed.weight}, {logits}, {at::empty({1400}, on)});
    const auto trace = tracer.finish();
    std::vector<std::pair<std::string, int64_t>> moved;
    for (const auto& operation : trace.operations)
      if (const auto name = trace.name_of(operation); name.starts_with("topk_softmax"))
        moved.emplace_back(name, operation.read_bytes + operation.written_bytes);
    const int64_t rows = 700, of_logits = rows * 17 * 4, of_choice = rows * 2 * 8, of_weight = rows * 2 * 4;
    EXPECT_THAT(moved,
                testing::ElementsAre(std::pair("topk_softmax", of_logits + 17 * 4 + of_choice + of_weight),
                                     std::pair("topk_softmax.backward", (renormalises ? 1 : 2) * of_logits + of_choice + 2 * of_weight)));
    EXPECT_TRUE(trace.host_accesses.empty());
  }
}

}  // namespace
}  // namespace ingot::kernels::gpu
