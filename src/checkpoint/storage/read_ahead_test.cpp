#include "checkpoint/storage/read_ahead.h"

#include <thread>

#include "checkpoint/tests/test_page_cache.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

class ReadAheadTest : public TemporaryFolder {
 protected:
  static constexpr int64_t kBytes = int64_t{3} << 20, kPages = kBytes / 4096;

  fs::path file_of(int64_t step, const char* name) {
    const auto path = folder / step_name(step) / name;
    fs::create_directories(path.parent_path());
    put_content(path, std::string(kBytes, 'x'));
    forget_pages(path);
    return path;
  }
  // Until the kernel has read as much as it was asked for, or ten seconds are over.
  static int64_t pages_in_time(const fs::path& file, int64_t expected) {
    for (int i = 0; i < 1000 && cached_pages(file) < expected; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return cached_pages(file);
  }
};

TEST_F(ReadAheadTest, brings_the_newest_checkpoint_into_the_cache) {
  const auto old = file_of(1, "a.bin"), first = file_of(2, "a.bin"), second = file_of(2, "b.bin");
  if (cached_pages(old) > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  ReadAhead ahead(folder, 1 << 30);
  EXPECT_EQ(ahead.look(), kBytes);
  EXPECT_EQ(ahead.look(), kBytes);
  EXPECT_EQ(ahead.look(), 0);
  for (const auto& file : {first, second}) EXPECT_EQ(pages_in_time(file, kPages), kPages);
  EXPECT_EQ(cached_pages(old), 0);
  const auto newer = file_of(3, "a.bin");
  EXPECT_EQ(ahead.look(), 0) << "once a second";
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(ahead.look(), kBytes);
  EXPECT_EQ(pages_in_time(newer, kPages), kPages);
}

TEST_F(ReadAheadTest, asks_for_no_more_than_it_may) {
  for (const char* name : {"a.bin", "b.bin", "c.bin"}) file_of(2, name);
  ReadAhead ahead(folder, kBytes + 4096);
  int64_t asked = 0;
  while (const auto bytes = ahead.look()) asked += bytes;
  EXPECT_EQ(asked, kBytes + 4096);
}

TEST_F(ReadAheadTest, leaves_what_it_cannot_read_to_others) {
  EXPECT_EQ(ReadAhead(folder / "none", 1 << 30).look(), 0);
  EXPECT_EQ(ReadAhead(folder, 1 << 30).look(), 0);
  put_content(folder / step_name(4), "a file, not a folder");
  EXPECT_EQ(ReadAhead(folder, 1 << 30).look(), 0);
  fs::remove(folder / step_name(4));
  file_of(5, "a.bin"), file_of(5, "b.bin");
  ReadAhead ahead(folder, 1 << 30);
  EXPECT_EQ(ahead.look(), kBytes);
  fs::remove_all(folder / step_name(5));
  EXPECT_EQ(ahead.look(), 0) << "removed meanwhile";
}

}  // namespace
}  // namespace ingot::checkpoint
