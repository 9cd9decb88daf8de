// Pages against the same numbers in one tensor.
#include "layers/key_value_cache.h"

#include <gtest/gtest.h>

namespace ingot::layers {
namespace {

using kernels::kPageTokens;

struct Numbers {
  at::Tensor keys, values;
};

Numbers numbers(int64_t batch, int64_t tokens, at::ScalarType dtype = at::kFloat, int64_t kv_heads = 2, int64_t head_dim = 24,
                int64_t value_dim = 16) {
  at::manual_seed(7 + tokens);
  return {at::randn({batch, tokens, kv_heads, head_dim}, at::kFloat).to(dtype),
          at::randn({batch, tokens, kv_heads, value_dim}, at::kFloat).to(dtype)};
}

// In pieces of odd lengths.
KeyValueCache filled(const Numbers& all, PageShare share = {}) {
  KeyValueCache cache(share);
  const int64_t pieces[] = {1, 7, 64, 31, 1, 33};
  for (int64_t done = 0, i = 0; done < all.keys.size(1); ++i) {
    const int64_t count = std::min(pieces[i % 6], all.keys.size(1) - done);
    cache.append(all.keys.narrow(1, done, count), all.values.narrow(1, done, count));
    done += count;
  }
  return cache;
}

void expect_holds(const KeyValueCache& cache, const Numbers& all) {
  ASSERT_EQ(cache.length(), all.keys.size(1));
  EXPECT_TRUE(at::equal(cache.pages().all_keys(), all.keys));
  EXPECT_TRUE(at::equal(cache.pages().all_values(), all.values));
  for (size_t page = 0; page < cache.pages().keys.size(); ++page) EXPECT_EQ(cache.key_pages()[page], cache.pages().keys[page].data_ptr());
}

TEST(KeyValueCache, holds_what_was_appended) {
  for (const int64_t tokens : {int64_t{1}, kPageTokens - 1, kPageTokens, kPageTokens + 1, int64_t{200}}) {
    const auto all = numbers(3, tokens);
    expect_holds(filled(all), all);
  }
}

TEST(KeyValueCache, copies_share_pages_until_one_of_them_grows) {
  const auto all = numbers(1, 75), more = numbers(1, 50);
  auto first = filled(all);
  auto second = first;
  EXPECT_EQ(first.key_pages()[0], second.key_pages()[0]);
  second.append(more.keys, more.values);
  EXPECT_EQ(first.key_pages()[0], second.key_pages()[0]) << "a page that is whole is never written again";
  EXPECT_NE(first.key_pages()[2], second.key_pages()[2]);
  expect_holds(first, all);
  expect_holds(second, {device::cat({all.keys, more.keys}, 1), device::cat({all.values, more.values}, 1)});
}

TEST(KeyValueCache, forgets_and_goes_on) {
  const auto all = numbers(1, 100), more = numbers(1, 45);
  auto cache = filled(all), kept = cache;
  cache.shorten(70);
  expect_holds(cache, {all.keys.narrow(1, 0, 70), all.values.narrow(1, 0, 70)});
  cache.append(more.keys, more.values);
  expect_holds(cache, {device::cat({all.keys.narrow(1, 0, 70), more.keys}, 1), device::cat({all.values.narrow(1, 0, 70), more.values}, 1)});
  expect_holds(kept, all);
}

TEST(KeyValueCache, begins_with_the_pages_of_another) {
  const auto all = numbers(1, 100), more = numbers(1, 9);
  const auto from = filled(all);
  KeyValueCache cache;
  for (int64_t page = 0; page < 2; ++page) cache.append_page(from.page(page));
  const int64_t tokens = 2 * kPageTokens;
  expect_holds(cache, {all.keys.narrow(1, 0, tokens), all.values.narrow(1, 0, tokens)});
  cache.append(more.keys, more.values);
  expect_holds(
      cache, {device::cat({all.keys.narrow(1, 0, tokens), more.keys}, 1), device::cat({all.values.narrow(1, 0, tokens), more.values}, 1)});
  expect_holds(from, all);
}

TEST(KeyValueCache, has_rows_of_a_batch) {
  const auto all = numbers(4, 80);
  const auto rows = at::tensor({2, 0, 2}, at::kLong);
  expect_holds(filled(all).of_rows(rows), {all.keys.index_select(0, rows), all.values.index_select(0, rows)});
}

// The tokens of some pages, in their order.
Numbers of_pages(const Numbers& all, const PageShare& share) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < all.keys.size(1); ++i)
    if (i / kPageTokens % share.ranks == share.rank) tokens.push_back(i);
  const auto index = at::tensor(tokens, at::kLong);
  return {all.keys.index_select(1, index), all.values.index_select(1, index)};
}

TEST(KeyValueCache, is_shared_out_by_pages) {
  for (const int ranks : {2, 3, 5})
    for (const int64_t tokens : {int64_t{1}, kPageTokens - 1, kPageTokens, 3 * kPageTokens + 1, int64_t{230}}) {
      const auto all = numbers(1, tokens);
      for (int rank = 0; rank < ranks; ++rank) {
        const PageShare share{rank, ranks};
        auto cache = filled(all, share);
        const auto expect_has = [&](int64_t length) {
          ASSERT_EQ(cache.length(), length);
          const auto own = of_pages({all.keys.narrow(1, 0, length), all.values.narrow(1, 0, length)}, share);
          ASSERT_EQ(cache.pages().length, own.keys.size(1)) << tokens << " tokens, rank " << rank << " of " << ranks;
          if (own.keys.size(1) == 0) return;
          EXPECT_TRUE(at::equal(cache.pages().all_keys(), own.keys));
          EXPECT_TRUE(at::equal(cache.pages().all_values(), own.values));
        };
        expect_has(tokens);
        // Another that begins with its whole pages, and goes on.
        KeyValueCache other(share);
        const int64_t whole = tokens / kPageTokens * kPageTokens;
        for (int64_t page = 0; page < whole / kPageTokens; ++page) other.append_page(cache.page(page));
        other.append(all.keys.narrow(1, whole, tokens - whole), all.values.narrow(1, whole, tokens - whole));
        cache.shorten(tokens / 2);
        expect_has(tokens / 2);
        cache.append(all.keys.narrow(1, tokens / 2, tokens - tokens / 2), all.values.narrow(1, tokens / 2, tokens - tokens / 2));
        expect_has(tokens);
        std::swap(cache, other);
        expect_has(tokens);
      }
    }
}

// A few queries read pages where they lie, more of them a copy: the same as keys in one tensor.
TEST(KeyValueCache, attention_reads_pages_as_it_reads_rows) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const int64_t tokens : {5, 32, 300, 600})
      for (const int64_t queries : {1, 3, 40})
        for (const int64_t window : {0, 17, 290}) {
          if (queries > tokens) continue;
          const int64_t batch = 2;
          const auto all = numbers(batch, tokens, dtype);
          const auto cache = filled(all);
          const auto q = at::randn({batch, queries, 4, 24}, at::kFloat).to(dtype);
          kernels::AttentionMask mask{.query_offset = tokens - queries, .most_visible = window, .has_documents = false};
          if (window > 0)
            mask.visible_from =
                (at::arange(queries, at::kInt) + (tokens - queries + 1 - window)).clamp_min(0).expand({batch, queries}).contiguous();
          const auto expected = kernels::attention_forward(q, all.keys, all.values, 0.2, mask);
          const auto got = kernels::paged_attention(q, cache.pages(), 0.2, mask);
          EXPECT_TRUE(at::equal(got.out, expected.out)) << tokens << " tokens, " << queries << " queries, window " << window;
          EXPECT_TRUE(at::equal(got.log_sum_exp, expected.log_sum_exp));
        }
}

}  // namespace
}  // namespace ingot::layers
