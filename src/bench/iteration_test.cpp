#include "bench/iteration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/work_scope.h"
#include "kernels/differentiable.h"
#include "kernels/operand.h"
#include "layers/recompute.h"

namespace ingot::bench {
namespace {

using base::Work, base::WorkScope;
using ::testing::HasSubstr;

// Works for so long, or longer on a busy machine; returns how long it was.
double work(int ms) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < start + std::chrono::milliseconds(ms)) {
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double sum_of(const WorkTimes& times) {
  double sum = 0;
  for (const auto kind : all_work_kinds()) sum += times.of(kind);
  return sum;
}

// Takes 20 ms forward and 30 ms backward.
struct Activation : kernels::Function<Activation, WorkKind::activations> {
  static at::Tensor forward(kernels::Context&, const at::Tensor& x) {
    forward_s = work(20);
    return x * 1;
  }
  static kernels::TensorList backward(kernels::Context&, const kernels::TensorList& grads) {
    backward_s = work(30);
    return {grads[0]};
  }
  inline static double forward_s = 0, backward_s = 0;  // of the last call
};

constexpr double kSlack_s = 0.02;  // for being interrupted between the work and its borders

void expect_about(double seconds, double wanted_s) {
  EXPECT_GE(seconds, wanted_s - 1e-4);
  EXPECT_LE(seconds, wanted_s + kSlack_s);
}

TEST(WorkWatch, slow_work_counts_with_its_kind_and_pass_and_all_adds_up_to_the_wall_time) {
  WorkWatch watch;
  const auto x = at::ones({4}).set_requires_grad(true);
  const auto before = std::chrono::steady_clock::now();
  watch.start();
  at::Tensor loss;
  double adamw_s = 0, muon_s = 0;
  {
    const WorkScope forward("forward", Work::Rule::forward);
    loss = Activation::apply(x).sum();
  }
  kernels::backward({loss});
  {
    const WorkScope scope("optimizer", WorkKind::adamw);
    adamw_s = work(10);
    const WorkScope inner("newton_schulz", WorkKind::muon);
    muon_s = work(15);
  }
  const double between_s = work(5);
  const auto times = watch.stop();
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  expect_about(times.of(WorkKind::activations, WorkPass::forward), Activation::forward_s);
  expect_about(times.of(WorkKind::activations, WorkPass::backward), Activation::backward_s);
  EXPECT_EQ(times.of(WorkKind::activations, WorkPass::rest), 0);
  expect_about(times.of(WorkKind::adamw), adamw_s);
  expect_about(times.of(WorkKind::muon), muon_s);
  expect_about(times.of(WorkKind::unattributed, WorkPass::rest), between_s);
  EXPECT_NEAR(sum_of(times), times.wall_s, 1e-9);
  EXPECT_NEAR(times.wall_s, wall_s, kSlack_s);
  double operators_s = times.of(WorkKind::watching);
  for (const auto& [key, entry] : times.operators) operators_s += entry.self_s;
  EXPECT_NEAR(operators_s, times.wall_s, 1e-9);

  const auto span_of = [&](const std::string& name) {
    for (const auto& span : times.spans)
      if (span.name == name) return span;
    ADD_FAILURE() << "no span of " << name;
    return WorkTimes::Span{};
  };
  const auto outer = span_of("optimizer"), inner = span_of("newton_schulz");
  EXPECT_EQ(inner.kind, WorkKind::muon);
  expect_about(inner.end_s - inner.begin_s, muon_s);
  EXPECT_LE(outer.begin_s + adamw_s - 1e-4, inner.begin_s);
  EXPECT_LE(inner.end_s, outer.end_s);
  EXPECT_LE(outer.end_s, times.wall_s);
}

// What autograd derives itself is known by its forward work alone.
TEST(WorkWatch, backward_of_torchs_own_operators_counts_with_their_forward_scope) {
  WorkWatch watch;
  const auto x = at::rand({300, 300}).set_requires_grad(true);
  watch.start();
  at::Tensor routed, plain;
  {
    const WorkScope forward("forward", Work::Rule::forward);
    {
      const WorkScope scope("route", base::owns(WorkKind::routing));
      routed = at::gelu(x);
    }
    plain = at::mm(routed, x).sum();
  }
  kernels::backward({plain});
  const auto times = watch.stop();
  EXPECT_GT(times.of(WorkKind::routing, WorkPass::forward), 0);
  EXPECT_GT(times.of(WorkKind::routing, WorkPass::backward), 0);
  EXPECT_GT(times.of(WorkKind::matmul, WorkPass::backward), 0);
  const auto found = times.operators.find({"aten::gelu_backward", WorkKind::routing});
  ASSERT_NE(found, times.operators.end());
  EXPECT_EQ(found->second.calls, 1);
}

TEST(WorkWatch, the_second_run_is_recomputation_and_its_backward_is_not) {
  WorkWatch watch;
  const auto x = at::ones({4}).set_requires_grad(true);
  watch.start();
  at::Tensor out;
  {
    const WorkScope forward("forward", Work::Rule::forward);
    out = layers::recompute([](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{Activation::apply(in[0])}; }, {x})[0]
              .sum();
  }
  kernels::backward({out});
  const auto times = watch.stop();
  EXPECT_GE(times.of(WorkKind::activations, WorkPass::forward), 0.020);
  expect_about(times.of(WorkKind::recomputation), Activation::forward_s);
  EXPECT_EQ(times.of(WorkKind::recomputation, WorkPass::forward), 0);
  expect_about(times.of(WorkKind::activations, WorkPass::backward), Activation::backward_s);
}

TEST(WorkWatch, what_owns_keeps_what_is_below_and_what_shares_gives_gemms_away) {
  WorkWatch watch;
  const auto x = at::rand({64, 64});
  watch.start();
  {
    const WorkScope scope("communication", base::owns(WorkKind::communication));
    const WorkScope inner("norm", WorkKind::norms);
    work(5);
  }
  {
    const WorkScope scope("experts", base::shares(WorkKind::routing));
    at::mm(x, x);
    work(5);
  }
  const auto times = watch.stop();
  expect_about(times.of(WorkKind::communication), 0.005);
  EXPECT_EQ(times.of(WorkKind::norms), 0);
  expect_about(times.of(WorkKind::routing), 0.005);
  EXPECT_GT(times.of(WorkKind::matmul), 0);
}

TEST(WorkWatch, gemms_of_experts_by_kernels_of_our_own_are_gemms) {
  WorkWatch watch;
  const auto x = at::rand({64, 64}), out = at::empty({64, 64});
  const auto operand = kernels::operand_of(x, {}, kernels::OperandKind::activation, 1);
  watch.start();
  {
    const WorkScope scope("experts", base::shares(WorkKind::routing));
    for (int i = 0; i < 200; ++i) kernels::matmuls_of_any_rows_into({{out, operand, operand}});
  }
  const auto times = watch.stop();
  EXPECT_EQ(times.operators.at({"grouped_gemm", WorkKind::matmul}).calls, 200);
  EXPECT_GT(times.of(WorkKind::matmul), times.of(WorkKind::routing));
}

TEST(WorkWatch, scopes_that_say_no_kind_are_unattributed_and_listed) {
  WorkWatch watch;
  watch.start();
  {
    const WorkScope scope("something new");
    work(5);
  }
  const auto times = watch.stop();
  expect_about(times.of(WorkKind::unattributed), 0.005);
  EXPECT_GE(times.operators.at({"something new", WorkKind::unattributed}).self_s, 0.005);
  WorkWatch other, third;
  other.start();
  EXPECT_THROW(third.start(), base::Error);
  other.stop();
}

TEST(WorkWatch, other_threads_do_not_count) {
  WorkWatch watch;
  watch.start();
  std::thread([] {
    const WorkScope scope("data", WorkKind::data);
    work(20);
  }).join();
  const auto times = watch.stop();
  EXPECT_EQ(times.of(WorkKind::data), 0);
  EXPECT_NEAR(sum_of(times), times.wall_s, 1e-9);
}

TEST(WorkKinds, names_and_titles_are_told_apart) {
  std::set<std::string> names, titles;
  for (const auto kind : all_work_kinds()) names.insert(name_of(kind)), titles.insert(title_of(kind));
  EXPECT_EQ(names.size(), kWorkKinds);
  EXPECT_EQ(titles.size(), kWorkKinds);
}

TEST(Predictions, by_kind_have_waits_and_what_lies_between) {
  plan::StepTime time;
  time.gemm_s = 1, time.attention_s = 2, time.waiting_s = 16, time.optimizer_s = 384, time.between_s = 512, time.uneven_s = 1024;
  time.kinds = {{WorkKind::matmul, 1}, {WorkKind::linear_attention, 2}, {WorkKind::muon, 128}, {WorkKind::adamw, 256}};
  const auto kinds = time.by_kind();
  double sum = 0;
  for (const auto& [kind, value] : kinds) sum += value;
  EXPECT_DOUBLE_EQ(sum, time.total_s());
  EXPECT_EQ(kinds.at(WorkKind::muon), 128);
  EXPECT_EQ(kinds.at(WorkKind::communication), 16 + 1024);
  EXPECT_EQ(kinds.at(WorkKind::unattributed), 512);
}

TEST(IterationReports, say_what_watching_costs_and_what_is_unattributed) {
  IterationReport report;
  report.steps = 2;
  report.times.seconds[static_cast<size_t>(WorkKind::matmul)] = {0, 0.06, 0.12};
  report.times.seconds[static_cast<size_t>(WorkKind::unattributed)] = {0.02, 0, 0};
  report.times.wall_s = 0.2;
  report.times.operators[{"aten::mm", WorkKind::matmul}] = {WorkKind::matmul, 40, 0.18};
  report.watched_ms = {100, 100};
  report.plain_ms = {80, 80};
  report.tokens_per_step = 800;
  report.least_ms = report.most_ms = std::vector<double>(kWorkKinds, 0);
  report.most_ms[0] = 90;
  const auto text = to_table(report, {{WorkKind::matmul, 85}});
  EXPECT_THAT(text, HasSubstr("30.00     60.00               90.00  90.0 %      85.00"));
  EXPECT_THAT(text, HasSubstr("unattributed                                   10.00     10.00  10.0 %          -"));
  EXPECT_THAT(text, HasSubstr("watching costs 25.0 %"));
  EXPECT_THAT(text, HasSubstr("10000 tokens/s"));
  const auto json = to_json(report, {});
  EXPECT_EQ(json["kinds"].size(), kWorkKinds);
  EXPECT_TRUE(json["kinds"][0]["predicted_ms"].is_null());
  EXPECT_EQ(json["operators"][0]["calls"], 20);
}

}  // namespace
}  // namespace ingot::bench
