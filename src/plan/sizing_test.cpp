// Sizing: budgets against their formulas, widths against what was measured, and the choice among candidates against all of them.
#include "plan/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

using testing::HasSubstr;

Device machine(double memory_bytes = 16e9) {
  return device_of(round_machine(1e12, 5e10), "bf16", static_cast<int64_t>(memory_bytes), 1 << 20);
}

std::optional<ShapeMultiples> fast_at_multiples_of(int64_t multiple) {
  std::vector<GemmRate> rates;
  for (const int64_t n : {1999, 2000, 2001, 2008, 2016, 2024, 2032, 2040, 2048, 2056, 2080, 2112, 2176})
    rates.push_back({"bf16", "plain", "forward", 512, n, 1024, n % multiple == 0 ? 1e12 : 5e11});
  return shape_multiples(rates);
}

Sizing sized(const SizeRequest& request, const std::optional<ShapeMultiples>& shapes = std::nullopt, double memory_bytes = 16e9) {
  DataParallel devices(machine(memory_bytes));
  return size_model(request, devices, shapes);
}

const Rule& rule_of(const Sizing& sizing, const std::string& name) {
  const auto found = std::find_if(sizing.rules.begin(), sizing.rules.end(), [&](const auto& r) { return r.name == name; });
  if (found == sizing.rules.end()) throw std::runtime_error("there is no rule " + name);
  return *found;
}

TEST(Sizing, finds_the_number_of_parameters_that_was_asked_for) {
  for (const double wanted : {2e6, 2e8}) {  // of 3e7 there are more below
    const auto s = sized({.parameters = wanted, .seq = 256});
    EXPECT_NEAR(static_cast<double>(s.chosen.parameters) / wanted, 1, 0.15) << wanted;
    const auto mixture = sized({.is_mixture = true, .active = wanted, .seq = 256, .experts = 4});
    EXPECT_NEAR(static_cast<double>(mixture.chosen.active_parameters) / wanted, 1, 0.2) << wanted;
    EXPECT_EQ(mixture.chosen.model.experts, 4);
    EXPECT_EQ(mixture.chosen.model.family, "zaya1");
  }
}

TEST(Sizing, budgets_follow_6ND_and_20_tokens_for_a_parameter) {
  // 6 N D = C with D = 20 N: C = 120 N^2.
  const auto by_flops = sized({.flops = 120 * 3e7 * 3e7, .seq = 256});
  EXPECT_NEAR(static_cast<double>(by_flops.chosen.parameters) / 3e7, 1, 0.15);
  EXPECT_NEAR(by_flops.tokens * by_flops.chosen.flops_per_token, 120 * 9e14, 1e6);
  EXPECT_NEAR(static_cast<double>(sized({.tokens = 6e8, .seq = 256}).chosen.parameters) / 3e7, 1, 0.15);
  // Both: N = C / 6 D.
  const auto both = sized({.flops = 6 * 3e7 * 1e10, .tokens = 1e10, .seq = 256});
  EXPECT_NEAR(static_cast<double>(both.chosen.parameters) / 3e7, 1, 0.15);
  EXPECT_DOUBLE_EQ(both.tokens, 1e10);
  const auto by_size = sized({.parameters = 3e7, .seq = 256});
  EXPECT_DOUBLE_EQ(by_size.tokens, 20.0 * static_cast<double>(by_size.chosen.parameters));
  // Time is tokens over the predicted rate.
  EXPECT_NEAR(by_size.days, by_size.tokens / by_size.chosen.run->tokens_per_s() / 86400, 1e-9);
  EXPECT_EQ(by_size.steps, static_cast<int64_t>(std::ceil(by_size.tokens / static_cast<double>(by_size.batch * 256))));
}

TEST(Sizing, widths_are_multiples_of_what_was_measured) {
  for (const int64_t multiple : {16, 64}) {
    const auto s = sized({.parameters = 3e7, .seq = 256, .vocab = 5001}, fast_at_multiples_of(multiple));
    EXPECT_EQ(rule_of(s, "widths are multiples of").value, std::to_string(multiple));
    EXPECT_EQ(rule_of(s, "widths are multiples of").basis, Rule::Basis::measured);
    const auto& m = s.chosen.model;
    for (const int64_t width : {m.hidden, m.ffn, m.vocab_size}) EXPECT_EQ(width % multiple, 0);
    EXPECT_NEAR(static_cast<double>(m.ffn), 8.0 * static_cast<double>(m.hidden) / 3, static_cast<double>(multiple) / 2);
    EXPECT_EQ(m.vocab_size, (5001 + multiple - 1) / multiple * multiple);
    // Half the rate at 5001 rows: padding halves the time but for the rows that it adds.
    const auto& numbers = rule_of(s, "vocabulary").numbers;
    ASSERT_EQ(numbers.size(), 2U);
    EXPECT_NEAR(numbers[1].value / numbers[0].value, 0.5 * static_cast<double>(m.vocab_size) / 5001, 1e-9);
    EXPECT_THAT(rule_of(s, "vocabulary").reason, HasSubstr("saves"));
  }
}

TEST(Sizing, says_that_a_multiple_is_assumed_where_nothing_was_measured) {
  const auto s = sized({.parameters = 3e7, .seq = 256, .vocab = 5001});
  EXPECT_EQ(rule_of(s, "widths are multiples of").basis, Rule::Basis::assumed);
  EXPECT_EQ(s.chosen.model.hidden % 128, 0);
  EXPECT_THAT(rule_of(s, "vocabulary").reason, HasSubstr("costs"));
  EXPECT_THAT(rule_of(s, "vocabulary").reason, HasSubstr("not known"));
  const auto given = sized({.parameters = 3e7, .seq = 256, .multiple = 96});
  EXPECT_EQ(rule_of(given, "widths are multiples of").basis, Rule::Basis::given);
  EXPECT_EQ(given.chosen.model.ffn % 96, 0);
}

TEST(Sizing, chooses_the_highest_mfu_of_usual_shapes) {
  const auto s = sized({.parameters = 2e8, .seq = 256}, fast_at_multiples_of(16));
  ASSERT_GT(s.candidates.size(), 4U);
  double best = 0;
  for (const auto& c : s.candidates) {
    const auto model = models::create_model(c.model);
    EXPECT_EQ(c.parameters, model->parameters().weight_elements());
    EXPECT_EQ(c.is_usual, c.model.hidden >= 40 * c.model.layers && c.model.hidden <= 160 * c.model.layers);
    EXPECT_NEAR(c.mfu, c.flops_per_token * c.run->tokens_per_s() / 1e12, 1e-9);
    if (c.is_usual) best = std::max(best, c.mfu);
  }
  EXPECT_TRUE(s.chosen.is_usual);
  EXPECT_DOUBLE_EQ(s.chosen.mfu, best);
  EXPECT_EQ(std::count_if(s.candidates.begin(), s.candidates.end(), [](const auto& c) { return c.is_chosen; }), 1);
}

TEST(Sizing, fewest_query_heads_share_keys_for_which_caches_weigh_no_more_than_weights) {
  const auto short_context = sized({.parameters = 2e8, .seq = 64}), long_context = sized({.parameters = 2e8, .seq = 8192});
  const auto shared = [](const Sizing& s) { return std::stoi(rule_of(s, "query heads for a key and value head").value); };
  EXPECT_EQ(shared(short_context), 1);
  EXPECT_GT(shared(long_context), 1);
}

TEST(Sizing, rows_of_a_product_are_those_that_reach_the_wanted_share) {
  auto profile = round_machine(1e12, 5e10);
  profile.gemm.clear();
  // A rate of m / (m + 64) of the peak: 90 % from 576 rows on, which is 1024 among powers of two.
  for (const char* dtype : {"fp32", "bf16"})
    for (const char* pass : {"forward", "grad_input", "grad_weight"})
      for (int64_t m = 16; m <= 65536; m *= 2)
        profile.gemm.push_back({dtype, "plain", pass, m, 64, 64, 1e12 * static_cast<double>(m) / static_cast<double>(m + 64)});
  DataParallel devices(device_of(profile, "bf16", int64_t{16} << 30, 0));
  EXPECT_EQ(rule_of(size_model({.parameters = 3e7, .seq = 256}, devices, {}), "microbatch").numbers[0].value, 1024);
  EXPECT_EQ(rule_of(size_model({.parameters = 3e7, .seq = 256, .share = 0.5}, devices, {}), "microbatch").numbers[0].value, 64);
}

TEST(Sizing, what_does_not_fit_is_said_and_still_sized) {
  const auto s = sized({.parameters = 2e8, .seq = 256}, {}, 1e9);
  EXPECT_FALSE(s.chosen.run);
  EXPECT_EQ(s.days, 0);
  EXPECT_THAT(rule_of(s, "microbatch").reason, HasSubstr("plan search"));
  EXPECT_THAT(s.toml, HasSubstr("recompute = \"full\""));
}

TEST(Sizing, refuses_budgets_that_contradict_or_that_no_model_meets) {
  const auto message = [](const SizeRequest& request) -> std::string {
    try {
      sized(request);
    } catch (const base::UsageError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(message({}), HasSubstr("--params"));
  EXPECT_THAT(message({.parameters = 1e9, .active = 1e8}), HasSubstr("--active"));
  EXPECT_THAT(message({.parameters = 1e9, .flops = 1e20, .tokens = 1e9}), HasSubstr("--flops"));
  EXPECT_THAT(message({.parameters = 10}), HasSubstr("100 k"));
  EXPECT_THAT(message({.flops = 1e29}), HasSubstr("10 T"));
}

TEST(Sizing, a_name_from_a_file_stays_in_its_comment) {
  auto device = machine();
  device.name = "evil\n[train]\nsteps = 1\n#";
  DataParallel devices(device);
  const auto toml = size_model({.parameters = 3e6, .seq = 256}, devices, {}).toml;
  EXPECT_EQ(toml.find("\n[train]\nsteps = 1\n"), std::string::npos);
}

}  // namespace
}  // namespace ingot::plan
