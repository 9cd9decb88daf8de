#include "data/join_datasets.h"

#include "base/random.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::DataError;
using Documents = std::vector<std::vector<std::pair<std::vector<int32_t>, bool>>>;  // runs of tokens that are learned, or not

void write(const fs::path& prefix, const Documents& documents) {
  IndexedDatasetWriter writer(prefix, TokenType::uint16);
  for (const auto& document : documents) {
    for (const auto& [tokens, learned] : document) writer.append(tokens, learned);
    writer.end_document();
  }
  writer.finish();
}

// Of up to 20 tokens each, some empty; without a mask all of them are learned.
Documents random_documents(uint64_t key, uint64_t count, bool has_mask) {
  Documents documents;
  for (uint64_t d = 0; d < count; ++d) {
    documents.emplace_back();
    for (uint64_t run = 0; run < 2; ++run)
      documents.back().push_back(
          {std::vector<int32_t>(base::philox(key, 2 * d + run)[0] % 11, static_cast<int32_t>(100 * d + run)), run == 0 || !has_mask});
  }
  return documents;
}

TEST(JoinDatasets, parts_are_byte_for_byte_what_one_writer_writes) {
  const TemporaryFolder folder;
  for (const int masks : {0, 1, 2, 7}) {  // bits: which of the parts have one
    Documents all;
    std::vector<fs::path> parts;
    for (uint64_t part = 0; part < 4; ++part) {
      const auto documents = random_documents(part, part == 1 ? 0 : 5 + part, (masks >> part & 1) != 0);
      parts.push_back(folder / ("part" + std::to_string(part)));
      write(parts.back(), documents);
      all.insert(all.end(), documents.begin(), documents.end());
    }
    write(folder / "whole", all);
    join_datasets(parts, folder / "joined", TokenType::uint16);
    for (const std::string suffix : {".bin", ".idx", ".mask"}) {
      const auto joined = folder / ("joined" + suffix), whole = folder / ("whole" + suffix);
      ASSERT_EQ(fs::exists(joined), fs::exists(whole)) << suffix;
      ASSERT_TRUE(!fs::exists(whole) || content_of(joined) == content_of(whole)) << suffix << " " << masks;
    }
    EXPECT_EQ(IndexedDataset(folder / "joined").documents(), static_cast<int64_t>(all.size()));
  }
}

TEST(JoinDatasets, damaged_parts_are_named_and_nothing_is_left) {
  const TemporaryFolder folder;
  write(folder / "good", random_documents(1, 9, true));
  for (const std::string damage : {"bin", "idx", "mask", "type"}) {
    write(folder / "bad", random_documents(2, 9, true));
    if (damage == "type") counting_dataset(folder, "bad", {3});
    else fs::resize_file(folder / ("bad." + damage), fs::file_size(folder / ("bad." + damage)) - 1);
    expect_error<DataError>(
        [&] {
          join_datasets({folder / "good", folder / "bad"}, folder / "out", TokenType::uint16);
        },
        {"bad.", "damaged"});
  }
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("out")) << entry;
}

}  // namespace
}  // namespace ingot::data
