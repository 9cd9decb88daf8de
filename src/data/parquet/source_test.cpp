#include "data/parquet/source.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "data/damage.h"
#include "data/test_support.h"
#include "data/text_reader.h"

namespace ingot::data {
namespace {

using base::DataError;

// tests/oracles/make_parquet_fixtures.py writes them.
const std::string kTypes = "src/data/testdata/types.parquet", kBare = "src/data/testdata/bare.parquet",
                  kRefused = "src/data/testdata/refused.parquet";

std::vector<TextPart> parts_of(const fs::path& file, const TextOptions& options, ParsedBlock* counts = nullptr) {
  TextReader reader({file}, options);
  std::vector<TextPart> all;
  for (TextBlock block; reader.next(block);) {
    auto parsed = parse_block(block, options);
    for (auto& part : parsed.parts) all.push_back(std::move(part));
    if (counts) {
      counts->bad_lines += parsed.bad_lines;
      if (counts->first_problem.empty()) counts->first_problem = parsed.first_problem;
    }
    EXPECT_LT(all.size(), 100'000u);
    if (all.size() >= 100'000) break;  // damage may make a few bytes say so many rows
  }
  return all;
}

const TextOptions kWhole{.whole_lines = true};

// Row groups of two rows, so that every column begins anew twice.
TEST(Parquet, rows_of_every_type_are_what_python_says_of_them) {
  const auto rows = parts_of(kTypes, kWhole);
  const auto expected = content_of("src/data/testdata/types.jsonl");
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < expected.size();) {
    const size_t end = expected.find('\n', begin);
    lines.push_back(expected.substr(begin, end - begin));
    begin = end + 1;
  }
  ASSERT_EQ(rows.size(), 5u);
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    const auto ours = nlohmann::ordered_json::parse(rows[i].text), theirs = nlohmann::ordered_json::parse(lines[i]);
    for (const auto& [name, value] : theirs.items()) EXPECT_EQ(ours[name].dump(), value.dump()) << name << " of row " << i + 1;
    EXPECT_EQ(ours.dump(), theirs.dump());
    EXPECT_EQ(rows[i].line, static_cast<int64_t>(i) + 1);
  }
}

TEST(Parquet, one_column_alone_is_read_and_what_is_wrong_with_a_row_is_named) {
  const auto texts = [](const std::vector<TextPart>& parts) {
    std::vector<std::string> found;
    for (const auto& part : parts) found.push_back(part.text);
    return found;
  };
  ParsedBlock counts;
  EXPECT_THAT(
      texts(parts_of(kTypes, {.skip_bad = true}, &counts)),
      ::testing::ElementsAre("plain", std::string("\xC3\xA9 \"q\" \\ \n\r\t\x01\0 \xF0\x9F\x98\x80", 19), "", std::string(40, 'z')));
  EXPECT_EQ(counts.bad_lines, 1);
  EXPECT_THAT(counts.first_problem, ::testing::EndsWith("types.parquet: row 3: 'text' is not a text"));
  expect_error<DataError>([] { parts_of(kTypes, {}); },
                          {"types.parquet: row 3: 'text' is not a text; mend the row, choose another --field"});
  EXPECT_THAT(texts(parts_of(kTypes, {.field = "word", .skip_bad = true})), ::testing::ElementsAre("x", "y", "x", "x"));
  EXPECT_THAT(texts(parts_of(kTypes, {.field = "bytes", .skip_bad = true})), ::testing::ElementsAre("a", "\xC3\xA9", "", "\x7f"));
  expect_error<DataError>([] { parts_of(kTypes, {.field = "texts"}); },
                          {"types.parquet: there is no column 'texts'; did you mean 'text'?", "it has text, large, bytes", "--field"});
}

TEST(Parquet, what_has_no_json_text_is_refused_by_its_column) {
  EXPECT_EQ(parts_of(kRefused, {}).size(), 2u) << "the other columns do not matter";
  expect_error<DataError>([] { parts_of(kRefused, kWhole); }, {"refused.parquet: column 'price' is of the type decimal128(21, 2)"});
  expect_error<DataError>([] { parts_of(kRefused, {.field = "image"}); },
                          {"refused.parquet: row 2: column 'image': it holds bytes that are not UTF-8"});
}

TEST(Parquet, progress_grows_and_ends_at_the_size_of_the_files) {
  TextReader reader({kTypes, kRefused, kTypes}, {.field = "text", .skip_bad = true, .block_bytes = 16});
  int64_t done = 0;
  for (TextBlock block; reader.next(block);) {
    EXPECT_GE(block.read_bytes, 0);
    done += block.read_bytes;
    EXPECT_LE(done, reader.total_bytes());
  }
  EXPECT_EQ(done, reader.total_bytes());
}

TEST(Parquet, a_file_that_is_cut_off_anywhere_is_refused) {
  const TemporaryFolder folder;
  const auto valid = content_of(kTypes);
  for (size_t bytes = 4; bytes < valid.size(); bytes += 1 + bytes % 37) {
    const auto file = folder.write("cut.parquet", valid.substr(0, bytes));
    expect_error<DataError>([&] { parts_of(file, kWhole); }, {"cut.parquet: "});
  }
}

TEST(Parquet, a_file_that_lies_about_its_description_is_refused) {
  const TemporaryFolder folder;
  const auto valid = content_of(kTypes);
  const auto with_end = [&](const std::string& end) { return folder.write("lies.parquet", valid.substr(0, valid.size() - 8) + end); };
  for (const auto& end : {std::string("\xFF\xFF\xFF\x7FPAR1"), std::string("\xFF\xFF\xFF\xFFPAR1"), std::string("\0\0\0\0PAR1", 8),
                          std::string("\x10\0\0\0PAR1", 8), std::string("\x00\x10\0\0PAR2", 8), std::string("PAR1PAR1")})
    expect_error<DataError>([&] { parts_of(with_end(end), kWhole); }, {"lies.parquet: "});
  expect_error<DataError>([&] { parts_of(folder.write("e.parquet", "PARE" + valid.substr(4)), {}); }, {"encrypted"});
}

// Of a description that says nothing but that so many groups lie in one another.
std::string nested_groups(int depth) {
  const auto varint = [](uint64_t n) {
    std::string bytes;
    for (; n >= 0x80; n >>= 7) bytes += static_cast<char>(n | 0x80);
    return bytes + static_cast<char>(n);
  };
  // Thrift's compact protocol: {1: version, 2: list of schema elements {[1: type], 3: repetition, 4: name, [5: children]}, 3: rows, 4:
  // list}.
  std::string meta = "\x15\x04\x19\xFC" + varint(static_cast<uint64_t>(depth) + 1);
  for (int i = 0; i < depth; ++i) meta += std::string("\x35\x02\x18\x01g\x15\x02\0", 8);
  meta += std::string("\x15\x02\x25\x02\x18\x01l\0", 8);
  meta += std::string("\x16\0\x19\x0C\0", 5);
  const auto size = static_cast<uint32_t>(meta.size());
  return "PAR1" + meta + std::string(reinterpret_cast<const char*>(&size), 4) + "PAR1";
}

TEST(Parquet, groups_in_one_another_do_not_exhaust_the_stack) {
  const TemporaryFolder folder;
  EXPECT_EQ(parts_of(folder.write("deep.parquet", nested_groups(20)), kWhole).size(), 0u);
  for (const int depth : {70, 5000, 90'000, 1'000'000})
    expect_error<DataError>([&] { parts_of(folder.write("deep.parquet", nested_groups(depth)), kWhole); }, {"deep.parquet: "});
}

TEST(Parquet, damaged_files_are_read_or_refused) {
  const TemporaryFolder folder;
  for (const auto& name : {kTypes, kBare, kRefused}) {
    const TextOptions options{.whole_lines = name != kRefused, .skip_bad = true};
    const auto valid = content_of(name);
    const auto use = [&](const std::string& bytes) { parts_of(folder.write("damaged.parquet", bytes), options); };
    int read = survivors(valid, 1500, 11, use);
    // The description, where most of what can be wrong is.
    uint32_t description_bytes = 0;
    std::memcpy(&description_bytes, valid.data() + valid.size() - 8, 4);
    const size_t description = valid.size() - 8 - description_bytes;
    read += survivors(valid.substr(description), 2500, 12, [&](const std::string& bytes) { use(valid.substr(0, description) + bytes); });
    EXPECT_GT(read, 20);
    EXPECT_LT(read, 2000);
  }
}

}  // namespace
}  // namespace ingot::data
