#include "serve/engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace ingot::serve {
namespace {

using kernels::kPageTokens;
using Ids = std::vector<int64_t>;

constexpr int64_t kLayers = 2, kPageBytes = kLayers * 2 * kPageTokens * 3 * 4;

Ids ids_from(int64_t first, int64_t tokens) {
  Ids ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Keys that tell what was fed, and with `state` one that tells how much.
CachedText text_of(const Ids& ids, bool state = false) {
  CachedText text{std::vector<models::LayerCache>(kLayers)};
  const auto values = at::tensor(ids, at::kFloat).view({1, -1, 1, 1}).expand({1, -1, 1, 3});
  for (auto& cache : text.caches) {
    cache.key_values.append(values, -values);
    if (state) cache.linear.state = at::full({1, 1, 2, 2}, static_cast<double>(ids.size()), at::kFloat);
  }
  text.fed = static_cast<int64_t>(ids.size());
  return text;
}

void expect_begins(PrefixCache& prefixes, const Ids& ids, int64_t tokens, bool state = false) {
  CachedText text{std::vector<models::LayerCache>(kLayers)};
  prefixes.begin(ids, text);
  ASSERT_EQ(text.fed, tokens);
  const auto expected = at::tensor(Ids(ids.begin(), ids.begin() + tokens), at::kFloat);
  for (const auto& cache : text.caches) {
    ASSERT_EQ(cache.key_values.length(), tokens);
    if (tokens == 0) continue;
    EXPECT_TRUE(at::equal(cache.key_values.pages().all_keys().select(3, 0).flatten(), expected));
    EXPECT_TRUE(at::equal(cache.key_values.pages().all_values().select(3, 2).flatten(), -expected));
    if (state) {
      EXPECT_EQ(cache.linear.state.flatten()[0].item<float>(), static_cast<float>(tokens));
    }
  }
}

void keep(PrefixCache& prefixes, const Ids& ids) {
  prefixes.keep(ids, text_of(ids).caches, {});
  prefixes.drop(prefixes.surplus());
}

TEST(PrefixCache, begins_texts_with_the_whole_pages_that_are_alike) {
  PrefixCache prefixes(1 << 20);
  const auto beginning = ids_from(0, 2 * kPageTokens);
  keep(prefixes, joined(beginning, ids_from(500, kPageTokens)));
  keep(prefixes, joined(beginning, ids_from(700, kPageTokens + 5)));
  EXPECT_EQ(prefixes.bytes(), 4 * kPageBytes) << "two pages in common, one each, and what is no whole page does not stay";
  expect_begins(prefixes, joined(beginning, ids_from(700, 3 * kPageTokens)), 3 * kPageTokens);
  expect_begins(prefixes, joined(beginning, ids_from(701, 3 * kPageTokens)), 2 * kPageTokens);
  expect_begins(prefixes, ids_from(0, 2 * kPageTokens - 1), kPageTokens);
  expect_begins(prefixes, ids_from(1, 2 * kPageTokens), 0);
}

TEST(PrefixCache, goes_on_only_behind_states) {
  PrefixCache prefixes(1 << 20);
  const auto ids = ids_from(0, 4 * kPageTokens);
  const auto keep_with_states = [&](int64_t tokens) {
    const Ids own(ids.begin(), ids.begin() + tokens);
    const auto text = text_of(own, true);
    prefixes.keep(own, text.caches, States(text.caches));
  };
  keep_with_states(3 * kPageTokens);
  EXPECT_EQ(prefixes.shared(ids), 3 * kPageTokens);
  expect_begins(prefixes, ids, 3 * kPageTokens, true);
  const auto other = joined(Ids(ids.begin(), ids.begin() + kPageTokens), ids_from(900, kPageTokens));
  EXPECT_EQ(prefixes.shared(other), kPageTokens);
  expect_begins(prefixes, other, 0);
  const int64_t before = prefixes.bytes();
  keep_with_states(kPageTokens);
  EXPECT_EQ(prefixes.bytes(), before + kLayers * 16);
  expect_begins(prefixes, other, kPageTokens, true);
  // The states that a text begins with are its own.
  CachedText text{std::vector<models::LayerCache>(kLayers)};
  prefixes.begin(ids, text);
  text.caches[0].linear.state.fill_(-1);
  expect_begins(prefixes, ids, 3 * kPageTokens, true);
}

TEST(PrefixCache, drops_what_was_used_longest_ago) {
  PrefixCache prefixes(5 * kPageBytes);
  const auto a = ids_from(0, 2 * kPageTokens), b = ids_from(1000, 2 * kPageTokens), c = ids_from(2000, 2 * kPageTokens);
  keep(prefixes, a);
  keep(prefixes, b);
  expect_begins(prefixes, a, 2 * kPageTokens);
  keep(prefixes, c);
  EXPECT_EQ(prefixes.bytes(), 5 * kPageBytes);
  expect_begins(prefixes, a, 2 * kPageTokens);
  expect_begins(prefixes, b, kPageTokens);  // its end went first
  expect_begins(prefixes, c, 2 * kPageTokens);
  PrefixCache none(kPageBytes - 1);
  keep(none, a);
  EXPECT_EQ(none.bytes(), 0);
  expect_begins(none, a, 0);
}

TEST(PrefixCache, lasts_through_a_long_text) {
  PrefixCache prefixes(int64_t{1} << 34);
  keep(prefixes, ids_from(0, 20000 * kPageTokens));
  EXPECT_EQ(prefixes.bytes(), 20000 * kPageBytes);
}

}  // namespace
}  // namespace ingot::serve
