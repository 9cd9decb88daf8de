#include "data/bpe_merges.h"

#include <random>

#include "data/test_support.h"

namespace ingot::data {
namespace {

using Ids = std::vector<int32_t>;

// Letters are 0 to 25; ab=30, bc=31, abc=32 (of either pair), aa=33.
const std::vector<BpeMerge> kMerges = {{0, 1, 5, 30}, {1, 2, 3, 31}, {30, 2, 9, 32}, {0, 31, 9, 32}, {0, 0, 4, 33}};

Ids applied(const BpeMerges& merges, Ids ids) {
  ids.resize(merges.apply(ids));
  return ids;
}

TEST(BpeMerges, the_lowest_rank_goes_first_and_of_equals_the_leftmost) {
  const BpeMerges merges(kMerges);
  EXPECT_EQ(applied(merges, {0, 1}), (Ids{30}));
  EXPECT_EQ(applied(merges, {0, 1, 2}), (Ids{32})) << "bc, then abc";
  EXPECT_EQ(applied(merges, {0, 0, 0}), (Ids{33, 0}));
  EXPECT_EQ(applied(merges, {0, 0, 1}), (Ids{33, 1})) << "aa is before ab";
  EXPECT_EQ(applied(merges, {7}), (Ids{7}));
  EXPECT_EQ(applied(merges, {}), Ids{});
  EXPECT_EQ(applied(BpeMerges(), {0, 1}), (Ids{0, 1}));
  EXPECT_EQ(applied(merges, {0, 0x100001, 1}), (Ids{0, 0x100001, 1})) << "of more bits than the table keeps";
}

// The definition, without any table: all pairs are looked at after each merge.
Ids by_definition(const std::vector<BpeMerge>& merges, Ids ids) {
  while (true) {
    const BpeMerge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const BpeMerge& merge : merges) {
        if (merge.left == ids[i] && merge.right == ids[i + 1] && (!best || merge.rank < best->rank)) best = &merge, at = i;
      }
    }
    if (!best) return ids;
    ids[at] = best->result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Results of random merges are tokens of their own, as in a vocabulary; some ranks are shared by two pairs.
std::vector<BpeMerge> random_merges(std::mt19937_64& random) {
  std::vector<BpeMerge> merges;
  for (int32_t i = 0; i < 60; ++i) {
    const auto token = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(4 + i)); };
    const int32_t rank = static_cast<int32_t>(random() % 3 == 0 && i > 0 ? i - 1 : i);
    merges.push_back({token(), token(), rank, 4 + rank});
  }
  std::vector<BpeMerge> unique;
  for (const auto& merge : merges) {
    if (std::none_of(unique.begin(), unique.end(),
                     [&](const auto& other) { return other.left == merge.left && other.right == merge.right; }))
      unique.push_back(merge);
  }
  return unique;
}

TEST(BpeMerges, words_of_any_length_are_merged_as_the_definition_says) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    const auto merges = random_merges(random);
    const BpeMerges table(merges);
    for (const size_t length : {2, 5, 13, 47, 48, 49, 50, 150}) {
      Ids ids(length);
      for (auto& id : ids) id = static_cast<int32_t>(random() % 4);
      ASSERT_EQ(applied(table, ids), by_definition(merges, ids)) << "round " << round << ", length " << length;
    }
  }
}

TEST(BpeMerges, bytes_are_merged_as_their_ids) {
  std::mt19937_64 random(2);
  std::array<int32_t, 256> byte_ids;
  for (int32_t byte = 0; byte < 256; ++byte) byte_ids[static_cast<size_t>(byte)] = (byte + 252) % 256;  // 4 to 7 are the tokens 0 to 3
  const BpeMerges merges(random_merges(random));
  const ByteBpe bpe(byte_ids, merges);
  for (const size_t length : {0, 1, 2, 20, 48, 49, 200}) {
    std::string bytes(length, '\0');
    Ids ids(length);
    for (size_t i = 0; i < length; ++i) bytes[i] = static_cast<char>(4 + random() % 4), ids[i] = bytes[i] - 4;
    Ids out = {99};
    bpe.encode(bytes, out);
    auto expected = applied(merges, ids);
    expected.insert(expected.begin(), 99);
    EXPECT_EQ(out, expected) << length;
  }
}

TEST(BpeMerges, ids_beyond_the_table_are_refused) {
  expect_error<base::DataError>([] { BpeMerges({{1 << 20, 1, 0, 2}}); }, {"1048576", "beyond"});
  expect_error<base::DataError>([] { BpeMerges({{0, 1, 1 << 24, 2}}); }, {"16777216th"});
}

}  // namespace
}  // namespace ingot::data
