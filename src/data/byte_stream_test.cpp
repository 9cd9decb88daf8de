#include "data/byte_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "data/test_compression.h"
#include "data/test_support.h"
#include "data/text_reader.h"

namespace ingot::data {
namespace {

using testing::HasSubstr;

std::string lines_of_text(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) text += (random() % 7 == 0 ? "\n" : "word" + std::to_string(random() % 1000) + " ");
  return text;
}

class ByteStreamTest : public testing::Test {
 protected:
  base::fs::path write(const std::string& content, const std::string& name = "file") { return folder.write(name, content); }
  static std::string all_of(const base::fs::path& path, size_t at_once = 10000) {
    const auto stream = open_bytes(path);
    std::string all, buffer(at_once, '\0');
    for (size_t got = at_once; got == at_once;) {
      got = stream->read(buffer.data(), at_once);
      all.append(buffer, 0, got);
    }
    EXPECT_EQ(stream->file_bytes(), static_cast<int64_t>(base::fs::file_size(path)));
    return all;
  }
  TemporaryFolder folder;
};

TEST_F(ByteStreamTest, gives_what_was_packed) {
  for (const auto format : kFormats) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{9999}, size_t{10000}, size_t{3} << 20}) {
      const auto text = lines_of_text(bytes, bytes);
      EXPECT_EQ(all_of(write(packed(format, text))), text) << bytes;
    }
    const auto one = lines_of_text(500000, 1), two = lines_of_text(30, 2);
    EXPECT_EQ(all_of(write(packed(format, one) + packed(format, "") + packed(format, two)), 777), one + two)
        << "streams one behind another";
  }
  EXPECT_EQ(all_of(write("as it is")), "as it is");
  EXPECT_EQ(all_of(write("")), "");
}

TEST_F(ByteStreamTest, names_the_place_where_a_file_was_cut_short) {
  for (const auto format : kFormats) {
    const auto whole = packed(format, lines_of_text(400000, 1));
    for (const size_t left : {size_t{8}, whole.size() / 2, whole.size() - 5, whole.size() - 1}) {
      const auto path = write(whole.substr(0, left));
      EXPECT_THAT([&] { all_of(path); },
                  testing::ThrowsMessage<base::DataError>(testing::AllOf(HasSubstr(path.string()), HasSubstr("it was cut short"))))
          << left;
    }
  }
}

TEST_F(ByteStreamTest, damage_is_an_error_and_never_other_bytes) {
  for (const auto format : kFormats) {
    const auto text = lines_of_text(30000, 1), whole = packed(format, text);
    std::mt19937_64 random(7);
    for (int i = 0; i < 300; ++i) {
      auto damaged = whole;
      damaged[4 + random() % (damaged.size() - 4)] ^= static_cast<char>(1 << random() % 8);
      const auto path = write(damaged);
      try {
        EXPECT_EQ(all_of(path), text) << "flags of a header that nobody reads may change";
      } catch (const base::DataError& error) {
        EXPECT_THAT(error.what(), HasSubstr(path.string()));
      }
    }
    EXPECT_THAT([&] { all_of(write(whole + "behind the end")); }, testing::ThrowsMessage<base::DataError>(HasSubstr("is damaged, or not")));
  }
}

TEST_F(ByteStreamTest, documents_of_packed_files_are_those_of_plain_ones) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += R"({"text": "document )" + std::to_string(i * 7919) + "\"}\n";
  const auto documents_of = [](const base::fs::path& path) {
    TextOptions options;
    options.block_bytes = 5000;
    TextReader reader({path}, options);
    std::vector<std::string> documents;
    int64_t read_bytes = 0;
    for (TextBlock block; reader.next(block);) {
      const auto parsed = parse_block(block, options);
      for (const auto& part : parsed.parts) documents.push_back(part.text);
      read_bytes += parsed.read_bytes;
    }
    EXPECT_EQ(read_bytes, reader.total_bytes());
    return documents;
  };
  const auto expected = documents_of(write(lines, "plain.jsonl"));
  EXPECT_EQ(expected.size(), 3000u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(documents_of(write(packed(kFormats[i], lines), std::string("packed.jsonl") + kExtensions[i])), expected) << kExtensions[i];
}

TEST_F(ByteStreamTest, what_is_no_text_inside_is_said) {
  const auto reason_of = [&](const std::string& content) -> std::string {
    try {
      TextReader reader({write(packed(Format::gzip, content), "x.gz")}, {});
      TextBlock block;
      reader.next(block);
    } catch (const base::DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(reason_of(packed(Format::zstd, "text")), HasSubstr("compressed twice"));
  EXPECT_THAT(reason_of("PAR1 and more"), HasSubstr("a Parquet file that is compressed once more"));
  EXPECT_THAT(reason_of("PK\x03\x04 and more"), HasSubstr("neither gzip, zstd nor bzip2"));
  EXPECT_THAT(reason_of(std::string(257, 'a') + "ustar  and more"), HasSubstr("tar archive"));
}

}  // namespace
}  // namespace ingot::data
