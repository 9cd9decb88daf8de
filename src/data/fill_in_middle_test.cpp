// Documents turned round, against what they were.
#include "data/fill_in_middle.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

namespace ingot::data {
namespace {

constexpr int32_t kPrefix = 901, kSuffix = 902, kMiddle = 903;

struct Sample {
  std::vector<int32_t> inputs, targets, starts;
  Row row() { return {inputs, targets, starts}; }
};

// Documents of these lengths, tokens counted from 1; the last goes on behind the row where `goes_on`.
Sample sample_of(const std::vector<size_t>& lengths, bool goes_on) {
  Sample s;
  int32_t next = 1;
  for (const size_t length : lengths) {
    const auto start = static_cast<int32_t>(s.inputs.size());
    for (size_t i = 0; i < length; ++i) {
      s.inputs.push_back(next++);
      s.targets.push_back(i + 1 < length ? next : kIgnoredTarget);
      s.starts.push_back(start);
    }
  }
  if (goes_on) s.targets.back() = next;
  return s;
}

DataConfig settings(double rate, double spm) {
  DataConfig config;
  config.fim_rate = rate, config.fim_spm_rate = spm;
  config.fim_prefix = kPrefix, config.fim_suffix = kSuffix, config.fim_middle = kMiddle;
  return config;
}

// The tokens of a document as they stand in a row, its target behind it included.
std::vector<int32_t> document(const Sample& s, size_t begin, size_t end) {
  std::vector<int32_t> tokens(s.inputs.begin() + static_cast<std::ptrdiff_t>(begin), s.inputs.begin() + static_cast<std::ptrdiff_t>(end));
  for (size_t i = begin; i + 1 < end; ++i) EXPECT_EQ(s.targets[i], s.inputs[i + 1]) << i;
  if (s.targets[end - 1] >= 0) tokens.push_back(s.targets[end - 1]);
  return tokens;
}

TEST(FillInMiddle, turns_documents_round_without_another_length) {
  for (const double spm : {0.0, 1.0})
    for (const bool goes_on : {false, true}) {
      int cuts = 0;
      for (int64_t n = 0; n < 200; ++n) {
        auto s = sample_of({12, 5, 30}, goes_on);
        const auto before = s;
        fill_in_middle(settings(1, spm), n, s.row());
        EXPECT_EQ(s.starts, before.starts);
        EXPECT_EQ(document(s, 12, 17), document(before, 12, 17));  // too short
        for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 12}, {17, 47}}) {
          const auto was = document(before, begin, end), is = document(s, begin, end);
          ASSERT_EQ(is.size(), was.size());
          const bool ends = before.targets[end - 1] < 0;
          EXPECT_EQ(s.targets[end - 1] < 0, ends);
          const auto find = [&](int32_t token) { return std::find(is.begin(), is.end(), token); };
          ASSERT_EQ(is.front(), kPrefix);
          const auto suffix = find(kSuffix), middle = find(kMiddle), last = is.end() - (ends ? 1 : 0);
          ASSERT_LT(suffix, middle);
          EXPECT_TRUE(!ends || is.back() == was.back());
          const std::vector<int32_t> head(is.begin() + 1, suffix), tail(suffix + 1, middle), rest(middle + 1, last);
          EXPECT_TRUE(spm == 0 || head.empty());
          auto whole = head;
          whole.insert(whole.end(), rest.begin(), rest.end());
          whole.insert(whole.end(), tail.begin(), tail.end());
          EXPECT_EQ(whole, std::vector<int32_t>(was.begin(), was.end() - 3 - (ends ? 1 : 0)));
          cuts += !rest.empty() && !tail.empty() ? 1 : 0;
        }
      }
      EXPECT_GT(cuts, 250);
    }
}

TEST(FillInMiddle, takes_its_share_and_is_a_function_of_the_sample) {
  int turned = 0;
  for (int64_t n = 0; n < 2000; ++n) {
    auto a = sample_of({20}, true), b = a;
    fill_in_middle(settings(0.3, 0.5), n, a.row());
    fill_in_middle(settings(0.3, 0.5), n, b.row());
    EXPECT_EQ(a.inputs, b.inputs);
    turned += a.inputs.front() == kPrefix ? 1 : 0;
  }
  EXPECT_NEAR(turned, 600, 70);
}

TEST(FillInMiddle, leaves_what_is_not_learned_as_it_is) {
  auto s = sample_of({20}, true);
  s.targets[4] = kIgnoredTarget;
  const auto before = s.inputs;
  fill_in_middle(settings(1, 0), 3, s.row());
  EXPECT_EQ(s.inputs, before);
}

}  // namespace
}  // namespace ingot::data
