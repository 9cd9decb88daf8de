#include "interchange/zip.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "interchange/test_support.h"

namespace ingot::interchange {
namespace {

using ::testing::HasSubstr;

const std::string kLarge = [] {
  std::string out;
  for (int i = 0; i < 5000; ++i) out += std::to_string(i * i);
  return out;
}();

std::string archive(bool zip64) {
  std::string out;
  ZipWriter writer(
      [&](const void* data, int64_t size_bytes) { out.append(static_cast<const char*>(data), static_cast<size_t>(size_bytes)); }, zip64);
  writer.add("a/data.pkl", "hello", 5);
  writer.add("a/empty", nullptr, 0);
  writer.add("a/data/0", kLarge.data(), static_cast<int64_t>(kLarge.size()), 4096);
  const int64_t size_bytes = writer.finish();
  EXPECT_EQ(size_bytes, static_cast<int64_t>(out.size()));
  return out;
}

TEST(Zip, crc_is_that_of_the_standard) {
  EXPECT_EQ(crc32(0, "123456789", 9), 0xcbf43926u);
  EXPECT_EQ(crc32(0, nullptr, 0), 0u);
  for (size_t cut = 0; cut < 40; ++cut)
    EXPECT_EQ(crc32(crc32(0, kLarge.data(), static_cast<int64_t>(cut)), kLarge.data() + cut, static_cast<int64_t>(kLarge.size() - cut)),
              crc32(0, kLarge.data(), static_cast<int64_t>(kLarge.size())));
}

TEST(Zip, what_is_written_is_read_back_with_and_without_zip64) {
  for (const bool zip64 : {false, true}) {
    const ZipReader reader(view_of(archive(zip64)));
    ASSERT_EQ(reader.entries().size(), 3u);
    EXPECT_EQ(reader.read(*reader.find("a/data.pkl")), "hello");
    EXPECT_EQ(reader.read(*reader.find("a/empty")), "");
    EXPECT_EQ(reader.read(*reader.find("a/data/0")), kLarge);
    EXPECT_EQ(reader.data_offset(*reader.find("a/data.pkl")) % 64, 0);
    EXPECT_EQ(reader.data_offset(*reader.find("a/data/0")) % 4096, 0);
    reader.check(*reader.find("a/data/0"));
    EXPECT_EQ(reader.find("data/0"), nullptr);
  }
}

TEST(Zip, archives_lie_anywhere_in_a_file_and_may_have_a_comment) {
  std::string bytes = archive(false);
  bytes[bytes.size() - 2] = 10;
  const std::string file = std::string(777, 'x') + bytes + "a comment." + "what follows";
  const ZipReader reader(FileView(std::make_shared<MemorySource>(file), "memory", 777, static_cast<int64_t>(bytes.size() + 10)));
  EXPECT_EQ(reader.read(*reader.find("a/data/0")), kLarge);
  EXPECT_THROW(FileView(std::make_shared<MemorySource>(file), "memory", 777, static_cast<int64_t>(file.size())), base::CheckpointError);
}

TEST(Zip, a_changed_byte_of_content_is_found_by_the_crc) {
  std::string bytes = archive(false);
  bytes[bytes.find("hello")] ^= 1;
  bytes[bytes.find(kLarge) + 9999] ^= 1;
  const ZipReader reader(view_of(bytes));
  for (const char* name : {"a/data.pkl", "a/data/0"}) {
    const ZipEntry& entry = *reader.find(name);
    try {
      reader.read(entry);
      FAIL();
    } catch (const base::CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
      EXPECT_THAT(error.what(), HasSubstr("CRC"));
    }
    EXPECT_THROW(reader.check(entry), base::CheckpointError);
    EXPECT_EQ(reader.read(entry, false).size(), static_cast<size_t>(entry.size_bytes));
  }
}

TEST(Zip, damaged_and_truncated_archives_give_an_error_or_the_right_bytes) {
  std::mt19937_64 random(5);
  int refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      const ZipReader reader(view_of(bytes));
      for (const ZipEntry& entry : reader.entries()) {
        const std::string content = reader.read(entry);
        EXPECT_TRUE(entry.name != "a/data/0" || content == kLarge);
        EXPECT_TRUE(entry.name != "a/data.pkl" || content == "hello");
      }
    } catch (const base::CheckpointError& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("memory"));
    }
  };
  for (const bool zip64 : {false, true}) {
    const std::string bytes = archive(zip64);
    for (size_t size = 0; size < bytes.size(); size += size < 600 || size + 600 > bytes.size() ? 1 : 97) attempt(bytes.substr(0, size));
    const size_t directory = bytes.size() - 400;
    for (int i = 0; i < 3000; ++i) {
      attempt(damaged(bytes, random));
      attempt(bytes.substr(0, directory) + damaged(bytes.substr(directory), random));
    }
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace ingot::interchange
