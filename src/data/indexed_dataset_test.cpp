#include "data/indexed_dataset.h"

#include <algorithm>
#include <cstring>

#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::DataError;

std::vector<int32_t> all_tokens(const IndexedDataset& dataset) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, tokens);
  return tokens;
}

// The bytes of an index as Python's struct module packs them: <9s Q B Q Q, int32 lengths, int64 pointers, int64 documents.
template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string index_bytes(uint8_t type, const std::vector<int32_t>& lengths, const std::vector<int64_t>& pointers,
                        const std::vector<int64_t>& documents) {
  std::string out("MMIDIDX\0\0", 9);
  put<uint64_t>(out, 1);
  put<uint8_t>(out, type);
  put<uint64_t>(out, lengths.size());
  put<uint64_t>(out, documents.size());
  for (const auto length : lengths) put(out, length);
  for (const auto pointer : pointers) put(out, pointer);
  for (const auto document : documents) put(out, document);
  return out;
}

TEST(IndexedDataset, written_bytes_are_megatrons) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "x", TokenType::uint16);
  writer.add_document(std::vector<int32_t>{1, 2, 65535});
  writer.add_document(std::vector<int32_t>{});
  writer.append(std::vector<int32_t>{4});
  writer.append(std::vector<int32_t>{5});
  writer.finish();
  EXPECT_EQ(content_of(folder / "x.bin"), std::string("\x01\0\x02\0\xFF\xFF\x04\0\x05\0", 10));
  EXPECT_EQ(content_of(folder / "x.idx"), index_bytes(8, {3, 0, 2}, {0, 6, 6}, {0, 1, 2, 3}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST(IndexedDataset, every_integer_type_reads_back_and_documents_may_hold_several_sequences) {
  const TemporaryFolder folder;
  for (const auto& [code, bytes] : {std::pair{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}}) {
    std::string bin;
    for (int64_t token : {7, 0, 127, 3, 9}) bin.append(reinterpret_cast<const char*>(&token), static_cast<size_t>(bytes));
    folder.write("t.bin", bin);
    folder.write("t.idx", index_bytes(static_cast<uint8_t>(code), {2, 1, 2}, {0, 2 * bytes, 3 * bytes}, {0, 2, 2, 3}));
    const IndexedDataset dataset(folder / "t.idx");
    EXPECT_EQ(all_tokens(dataset), (std::vector<int32_t>{7, 0, 127, 3, 9}));
    EXPECT_EQ(dataset.documents(), 3);
    EXPECT_EQ(dataset.document_begin(0), 0);
    EXPECT_EQ(dataset.document_tokens(1), 0);
    EXPECT_EQ(dataset.document_begin(2), 3);
    EXPECT_EQ(dataset.document_at(2), 0);
    EXPECT_EQ(dataset.document_at(3), 2);
  }
}

// Every third token of three is not learned; the first that is not comes late.
TEST(IndexedDataset, a_mask_says_which_tokens_are_learned) {
  const auto prefix = fs::path(::testing::TempDir()) / "ingot_masked";
  std::vector<int32_t> expected;
  {
    IndexedDatasetWriter writer(prefix, TokenType::uint16);
    int32_t next = 0;
    const auto add = [&](size_t count, bool learned) {
      std::vector<int32_t> tokens;
      for (size_t i = 0; i < count; ++i) tokens.push_back(next), expected.push_back(learned ? next : kIgnoredTarget), ++next;
      writer.append(tokens, learned);
    };
    add(21, true);
    for (size_t n = 0; n < 40; ++n) {
      add(n % 5, false);
      add(n % 3 + 1, true);
      if (n % 4 == 0) writer.end_document();
    }
    writer.finish();
  }
  const IndexedDataset dataset(prefix);
  ASSERT_EQ(dataset.tokens(), static_cast<int64_t>(expected.size()));
  for (const int64_t first : {0, 5, 23}) {
    std::vector<int32_t> targets(expected.size() - static_cast<size_t>(first));
    dataset.read_targets(first, targets);
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), expected.begin() + first));
  }
  // A mask of other tokens is refused; without one, and after a writer that learns all, all is learned.
  fs::resize_file(prefix.string() + ".mask", fs::file_size(prefix.string() + ".mask") - 1);
  EXPECT_THROW(IndexedDataset{prefix}, base::DataError);
  {
    IndexedDatasetWriter writer(prefix, TokenType::uint16);
    writer.append(std::vector<int32_t>{1, 2, 3});
    writer.finish();
  }
  EXPECT_FALSE(fs::exists(prefix.string() + ".mask"));
  EXPECT_FALSE(IndexedDataset(prefix).has_mask());
}

TEST(IndexedDataset, contradictions_of_the_index_are_refused_with_their_place) {
  const TemporaryFolder folder;
  folder.write("b.bin", std::string(20, '\0'));  // five int32
  const auto refused = [&](const std::string& index, const std::string& word) {
    folder.write("b.idx", index);
    expect_error<DataError>([&] { IndexedDataset(folder / "b").check_whole_index(); }, {word, "b."});
  };
  refused("", "does not begin with MMIDIDX");
  refused("garbage that is long enough to be a header of it", "does not begin with MMIDIDX");
  auto good = index_bytes(4, {3, 2}, {0, 12}, {0, 1, 2});
  auto version = good;
  version[9] = 2;
  refused(version, "version 2");
  refused(index_bytes(6, {3, 2}, {0, 12}, {0, 1, 2}), "dtype code 6");
  refused(index_bytes(4, {3, -2}, {0, 12}, {0, 1, 2}), "sequence 1 has length -2");
  refused(index_bytes(4, {3, 2}, {0, 16}, {0, 1, 2}), "describes 24");
  refused(index_bytes(4, {1, 2, 2}, {0, 16, 12}, {0, 1, 2, 3}), "byte 54: sequence 1 begins at byte 16 where 4 was due");
  refused(index_bytes(4, {3, 3}, {0, 12}, {0, 1, 2}), "describes 24");
  refused(index_bytes(4, {3, 1}, {0, 12}, {0, 1, 2}), "describes 16");
  refused(index_bytes(4, {3, 2}, {0, 12}, {0, 2, 1}), "the documents end at sequence 1 of 2");
  refused(index_bytes(4, {3, 2}, {0, 12}, {0, 1}), "the documents end at sequence 1 of 2");
  refused(index_bytes(4, {3, 2}, {0, 12}, {1, 2}), "document 0 begins at sequence 1");
  refused(index_bytes(4, {3, 2}, {0, 12}, {}), "no document entries");
  refused(good.substr(0, good.size() - 1), "need more than");
  refused(good + "x", "1 bytes follow");
  auto many = good;
  std::memset(many.data() + 18, 0xFF, 8);
  refused(many, "sequences and 3 document entries need more");
}

// Long documents at one end, empty ones anywhere: the guess that all have one length is far off.
TEST(IndexedDataset, the_document_of_a_token_is_found_whatever_the_lengths_are) {
  const TemporaryFolder folder;
  for (int shape = 0; shape < 4; ++shape) {
    std::vector<int> lengths;
    for (int i = 0; i < 3000; ++i)
      lengths.push_back(shape == 0 ? 1 : shape == 1 ? i % 7 * (i % 3) : shape == 2 ? (i < 5 ? 4000 : i % 2) : (i > 2990 ? 4000 : i % 3));
    const IndexedDataset dataset(counting_dataset(folder, "d", lengths));
    int64_t begin = 0;
    for (int64_t document = 0; document < dataset.documents(); ++document) {
      const int64_t end = begin + lengths[static_cast<size_t>(document)];
      for (int64_t position = begin; position < end; position += std::max<int64_t>(1, end - begin - 1))
        ASSERT_EQ(dataset.document_at(position), document) << shape;
      begin = end;
    }
  }
}

// Opening reads the two ends of the index alone: what is wrong between them is said where it is used, and the rest may be used.
TEST(IndexedDataset, wrong_entries_are_refused_where_they_are_used) {
  const TemporaryFolder folder;
  const std::vector<int32_t> lengths{1, 2, 3, 4};
  const std::vector<int64_t> pointers{0, 4, 12, 24}, documents{0, 1, 2, 3, 4};
  folder.write("b.bin", std::string(40, '\0'));
  const auto used = [&](const std::vector<int32_t>& l, const std::vector<int64_t>& p, const std::vector<int64_t>& d, int64_t document,
                        const std::vector<std::string>& words) {
    folder.write("b.idx", index_bytes(4, l, p, d));
    const IndexedDataset dataset(folder / "b");
    EXPECT_EQ(dataset.document_tokens(3), 4);
    expect_error<DataError>([&] { static_cast<void>(dataset.document_begin(document)); }, words);
    expect_error<DataError>([&] { dataset.check_whole_index(); }, words);
  };
  used(lengths, {0, 8, 12, 24}, documents, 1, {"b.idx: byte 58: sequence 1 begins at byte 8 where 4 was due"});
  used(lengths, {0, -4, 12, 24}, documents, 1, {"b.idx: byte 58: sequence 1 begins at byte -4 of 40"});
  used(lengths, {0, int64_t{1} << 62, 12, 24}, documents, 1, {"byte 58", "of 40"});
  used(lengths, {0, 5, 12, 24}, documents, 1, {"byte 58", "begins at byte 5 of 40, in tokens of 4"});
  used({1, -2, 3, 4}, pointers, documents, 2, {"b.idx: byte 38: sequence 1 has length -2"});
  used({1, INT32_MAX, 3, 4}, pointers, documents, 2, {"byte 66: sequence 2 begins at byte 12 where"});
  used(lengths, pointers, {0, 5, 2, 3, 4}, 1, {"b.idx: byte 90: document 1 begins at sequence 5 of 4"});
  used(lengths, pointers, {0, -1, 2, 3, 4}, 1, {"byte 90: document 1 begins at sequence -1"});
  used(lengths, pointers, {0, 3, 2, 3, 4}, 2, {"byte 98: document 2 begins at sequence 2, before document 1 at sequence 3"});
  folder.write("b.idx", index_bytes(4, lengths, pointers, {0, 3, 1, 3, 4}));
  expect_error<DataError>([&] { static_cast<void>(IndexedDataset(folder / "b").document_at(2)); }, {"b.idx: byte 98", "document"});
}

TEST(IndexedDataset, ids_that_cannot_be_tokens_are_refused_when_read_or_written) {
  const TemporaryFolder folder;
  folder.write("n.bin", std::string("\xFF\xFF\xFF\xFF", 4));
  folder.write("n.idx", index_bytes(4, {1}, {0}, {0, 1}));
  const IndexedDataset dataset(folder / "n");
  int32_t token = 0;
  expect_error<DataError>([&] { dataset.read(0, {&token, 1}); }, {"n.bin", "negative"});
  expect_error<DataError>([&] { dataset.read(1, {&token, 1}); }, {"it has 1"});
  IndexedDatasetWriter writer(folder / "w", TokenType::uint16);
  expect_error<DataError>([&] { writer.append(std::vector<int32_t>{65536}); }, {"65536", "uint16"});
}

TEST(IndexedDataset, unfinished_writer_leaves_the_old_dataset_and_nothing_else) {
  const TemporaryFolder folder;
  counting_dataset(folder, "keep", {3});
  {
    IndexedDatasetWriter writer(folder / "keep", TokenType::int32);
    writer.add_document(std::vector<int32_t>(100000, 5));
  }
  EXPECT_EQ(all_tokens(IndexedDataset(folder / "keep.bin")), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST(IndexedDataset, full_disk_is_an_error_and_publishes_nothing) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder / "f.bin.tmp");
  IndexedDatasetWriter writer(folder / "f", TokenType::int32);
  writer.add_document(std::vector<int32_t>{1});
  EXPECT_THROW(writer.finish(), base::FileError);
  EXPECT_FALSE(fs::exists(folder / "f.idx"));
}

}  // namespace
}  // namespace ingot::data
