// The search against looking at everything, with judges whose answers are formulas.
#include "plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace ingot::plan {
namespace {

using models::Recompute;
using testing::HasSubstr;

constexpr int64_t kState = 1000, kActivations = 400;  // bytes of the whole run on one device

// Memory falls with every axis, ZeRO and recomputation; time rises with messages, bubbles and recomputation.
StepMemory memory_of(const Choice& c) {
  const auto& p = c.parallel;
  const int64_t weights = p.pipeline * p.tensor * p.tensor_sequence, tokens = p.context * p.tensor_sequence;
  StepMemory m;
  m.weights_bytes = kState / weights / (p.zero >= 2 ? p.data : 1);
  const int64_t shrink = c.recompute == Recompute::none ? 1 : c.recompute == Recompute::selective ? 2 : 8;
  m.forward_backward_bytes = kActivations * c.microbatch / tokens / p.tensor / shrink;
  return m;
}

Judged judged(const Choice& c, const SearchSpace& space) {
  const auto& p = c.parallel;
  Judged j{.choice = c, .memory = memory_of(c), .time = {}, .communication = {}};
  j.time.gemm_s = space.least_compute_s * (1 + 0.5 / static_cast<double>(c.microbatch));
  j.time.recompute_s = j.time.gemm_s * (c.recompute == Recompute::none ? 0 : c.recompute == Recompute::selective ? 0.1 : 0.3);
  j.time.waiting_s = j.time.gemm_s * static_cast<double>((p.pipeline - 1) * p.data * c.microbatch) / static_cast<double>(space.batch);
  j.communication.blocks_s = 0.01 * static_cast<double>(3 * (p.tensor - 1) + 2 * (p.context - 1) + (p.tensor_sequence - 1));
  j.communication.gradients_s = 0.002 * static_cast<double>(p.zero * (p.data - 1));
  return j;
}

SearchSpace space_of(int64_t devices, int64_t memory_bytes) {
  return {.devices = devices,
          .devices_per_node = 4,
          .layers = 8,
          .heads = 8,
          .batch = 32,
          .seq = 4096,
          .memory_bytes = memory_bytes,
          .least_compute_s = 1};
}

Judge judge_of(const SearchSpace& space, int* asked = nullptr) {
  return {[](const Choice&) { return true; },
          [&space](const Choice& c) { return judged(c, space).step_s() - judged(c, space).communication.gradients_s; },
          [](const Choice& c) { return memory_of(c).state_bytes(); }, memory_of,
          [&space, asked](const Choice& c, const StepMemory&) {
            if (asked) ++*asked;
            return judged(c, space);
          }};
}

// Everything that the axes allow, with no rule of what cannot be best.
std::vector<Judged> all_of(const SearchSpace& s) {
  std::vector<Judged> all;
  for (int64_t pipeline = 1; pipeline <= 8; pipeline *= 2)
    for (int64_t sequence = 1; sequence <= 4; sequence *= 2)
      for (int64_t tensor = 1; tensor <= 4; tensor *= 2)
        for (int64_t folded = 1; folded <= 4; folded *= 2) {
          if ((tensor > 1 || sequence > 1) && folded > 1) continue;
          const int64_t others = pipeline * sequence * tensor * folded;
          if (s.devices % others != 0 || s.batch % (s.devices / others) != 0) continue;
          for (int64_t microbatch = 1; microbatch <= 16; microbatch *= 2)
            for (const int64_t zero : {0, 1, 2, 3})
              for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
                Choice c{.microbatch = microbatch, .recompute = recompute};
                auto& p = c.parallel;
                p.pipeline = pipeline, p.context = sequence, p.tensor = tensor, p.tensor_sequence = folded, p.data = s.devices / others,
                p.zero = zero;
                if ((s.batch / p.data) % microbatch != 0) continue;
                if (zero == 0 && p.data * p.context * p.tensor_sequence > 1) continue;
                if (zero > 0 && p.data * p.context * p.tensor_sequence == 1) continue;
                all.push_back(judged(c, s));
              }
        }
  return all;
}

TEST(Search, finds_what_looking_at_everything_finds) {
  for (const int64_t devices : {1, 2, 8, 16})
    for (const int64_t memory : {150, 300, 600, 1200, 3000}) {
      SCOPED_TRACE(fmt::format("{} devices of {}", devices, memory));
      const auto space = space_of(devices, memory);
      double best = std::numeric_limits<double>::infinity();
      for (const auto& j : all_of(space))
        if (static_cast<double>(j.memory.total_bytes()) <= 0.94 * static_cast<double>(memory)) best = std::min(best, j.step_s());
      const auto found = search(space, judge_of(space));
      ASSERT_EQ(found.fitting.empty(), std::isinf(best));
      if (found.fitting.empty()) {
        EXPECT_TRUE(found.smallest);
        continue;
      }
      EXPECT_NEAR(found.fitting.front().step_s(), best, 1e-12);
      EXPECT_FALSE(found.smallest);
    }
}

TEST(Search, gives_layouts_in_order_that_fit_and_a_front_of_them) {
  const auto space = space_of(16, 500);
  const auto found = search(space, judge_of(space));
  ASSERT_GT(found.fitting.size(), 10);
  std::set<std::string> labels;
  for (size_t i = 0; i < found.fitting.size(); ++i) {
    const auto& j = found.fitting[i];
    EXPECT_LE(j.memory.total_bytes(), 470);
    EXPECT_EQ(j.choice.ranks(), 16);
    EXPECT_TRUE(labels.insert(label(j.choice)).second) << label(j.choice);
    if (i > 0) {
      EXPECT_GE(j.step_s(), found.fitting[i - 1].step_s());
    }
  }
  ASSERT_FALSE(found.pareto.empty());
  for (const auto& on_front : found.pareto)
    for (const auto& other : found.fitting)
      EXPECT_FALSE(other.step_s() < on_front.step_s() && other.memory.total_bytes() <= on_front.memory.total_bytes())
          << label(on_front.choice);
}

TEST(Search, does_not_judge_what_cannot_be_best) {
  const auto roomy = space_of(16, 100'000);
  int asked = 0;
  const auto found = search(roomy, judge_of(roomy, &asked));
  EXPECT_LT(asked, static_cast<int>(all_of(roomy).size()) / 4);
  // Long pipelines with few microbatches are behind by their bubble alone.
  for (const auto& j : found.fitting) EXPECT_EQ(j.choice.recompute, Recompute::none);
}

TEST(Search, says_what_needs_least_when_nothing_fits) {
  const auto space = space_of(2, 100);
  const auto found = search(space, judge_of(space));
  EXPECT_TRUE(found.fitting.empty());
  ASSERT_TRUE(found.smallest);
  EXPECT_EQ(found.too_large, found.meshes);
  EXPECT_GT(found.smallest_bytes, 94);
}

TEST(Search, leaves_out_what_does_not_divide) {
  const auto space = space_of(8, 10'000);
  auto judge = judge_of(space);
  judge.is_possible = [](const Choice& c) { return c.parallel.tensor == 1; };
  const auto found = search(space, judge);
  EXPECT_GT(found.impossible, 0);
  for (const auto& j : found.fitting) EXPECT_EQ(j.choice.parallel.tensor, 1);
  // 3 sequences go to 1 or 3 data ranks alone.
  auto odd = space;
  odd.batch = 3;
  for (const auto& j : search(odd, judge_of(odd)).fitting) EXPECT_EQ(j.choice.parallel.data, 1);
}

// A refusal that came only when a mesh was traced ended the search.
TEST(Search, goes_on_when_a_mesh_is_refused_as_it_is_judged) {
  const auto space = space_of(8, 10'000);
  auto judge = judge_of(space);
  const auto memory = judge.memory;
  judge.memory = [memory](const Choice& c) {
    if (c.parallel.tensor == 2) throw base::ConfigError("two do not divide this");
    return memory(c);
  };
  const auto found = search(space, judge);
  EXPECT_GT(found.impossible, 0);
  ASSERT_FALSE(found.fitting.empty());
  for (const auto& j : found.fitting) EXPECT_NE(j.choice.parallel.tensor, 2);
}

TEST(Search, names_what_binds_and_writes_settings) {
  const auto space = space_of(16, 500);
  Choice c{.microbatch = 2, .recompute = Recompute::full};
  c.parallel.pipeline = 2, c.parallel.tensor = 2, c.parallel.context = 2, c.parallel.data = 2, c.parallel.zero = 2;
  c.parallel.context_method = "allgather";
  const auto j = judged(c, space);
  EXPECT_EQ(label(c), "pipeline 2 x data 2 x allgather 2 x tensor 2, zero 2, 2 at a time, recompute full");
  EXPECT_THAT(binding(j, 500), HasSubstr("recomputation"));
  EXPECT_THAT(binding(j, 500), HasSubstr("memory"));
  const auto toml = as_toml(c);
  for (const char* line : {"pipeline = 2\n", "data = 2\n", "context = 2\n", "context_method = \"allgather\"\n", "tensor = 2\n",
                           "zero = 2\n", "microbatch_size = 2\n", "recompute = \"full\"\n"})
    EXPECT_THAT(toml, HasSubstr(line));
}

}  // namespace
}  // namespace ingot::plan
