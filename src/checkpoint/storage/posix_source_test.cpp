// Reads past the page cache: the same bytes from any place, whatever the system calls do, and a cache that stays as it was.
#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "checkpoint/tests/test_page_cache.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

using ::testing::HasSubstr;

class PastCache : public TemporaryFolder {
 protected:
  static constexpr int64_t kSize = (int64_t{5} << 20) + 777;
  std::string content;

  void SetUp() override {
    TemporaryFolder::SetUp();
    uint32_t state = 11;
    content.resize(kSize);
    for (char& byte : content) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    put_content(folder / "file", content);
    forget();
  }
  void forget() const { forget_pages(folder / "file"); }
  int64_t cached_pages() const { return checkpoint::cached_pages(folder / "file"); }
  bool reads(const Source& source, int64_t offset, int64_t size_bytes) const {
    std::string read(static_cast<size_t>(size_bytes), '\0');
    source.read_past_cache(offset, read.data(), size_bytes);
    return read == content.substr(static_cast<size_t>(offset), static_cast<size_t>(size_bytes));
  }
  bool is_read_through_cache(const Source& source, int64_t offset) const {
    std::string read(777, '\0');
    source.read_at(offset, read.data(), 777);
    return read == content.substr(static_cast<size_t>(offset), 777);
  }
};

TEST_F(PastCache, gives_the_same_bytes_from_any_place) {
  const auto source = PosixStorage().open(folder / "file");
  for (const int64_t offset : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{123457}, int64_t{1} << 20})
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1} << 19, (int64_t{1} << 20) + 1, (int64_t{3} << 20) - 5, kSize - offset}) {
      forget();
      EXPECT_TRUE(reads(*source, offset, bytes)) << offset << " " << bytes;
    }
}

// The first of them opens the file a second time; all have memory of their own to read to.
TEST_F(PastCache, many_threads_share_a_source) {
  for (int round = 0; round < 5; ++round) {
    forget();
    const auto source = PosixStorage().open(folder / "file");
    std::vector<std::thread> threads;
    for (int64_t number = 0; number < 6; ++number)
      threads.emplace_back([&, number] {
        for (int64_t offset = number * 4321; offset + (int64_t{3} << 19) < kSize; offset += int64_t{3} << 19)
          EXPECT_TRUE(number % 3 == 2 ? is_read_through_cache(*source, offset) : reads(*source, offset, int64_t{3} << 19)) << offset;
      });
    for (auto& thread : threads) thread.join();
  }
}

TEST_F(PastCache, leaves_the_cache_alone_and_uses_what_it_holds) {
  if (cached_pages() > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  struct Hook : CallHook {
    int64_t largest = 0;
    int before(Call call, const fs::path&, size_t& size_bytes) override {
      if (call == Call::read) largest = std::max(largest, static_cast<int64_t>(size_bytes));
      return 0;
    }
  } hook;
  const auto source = PosixStorage(&hook).open(folder / "file");
  EXPECT_TRUE(reads(*source, 777, int64_t{3} << 20));
  EXPECT_EQ(cached_pages(), 0);
  EXPECT_GT(hook.largest, int64_t{1} << 20) << "direct reads have ragged ends";
  // The kernel may give up a page as soon as it was read (once in some hundred reads here): a few tries.
  std::string all(kSize, '\0');
  for (int tries = 0; tries < 20 && hook.largest != int64_t{1} << 20; ++tries) {
    source->read_at(0, all.data(), kSize);
    EXPECT_EQ(all, content);
    hook.largest = 0;
    EXPECT_TRUE(reads(*source, 777, int64_t{3} << 20));
  }
  EXPECT_EQ(hook.largest, int64_t{1} << 20) << "from the cache";
}

TEST_F(PastCache, short_interrupted_and_refused_reads_are_carried_on) {
  struct Hook : CallHook {
    int calls = 0, kind = 0;
    int before(Call call, const fs::path&, size_t& size_bytes) override {
      if (call != Call::read) return 0;
      if (++calls % 3 == 1 && size_bytes > 5000) size_bytes = kind == 0 ? 4096 : kind == 1 ? 5000 : size_bytes;
      return calls % 3 == 2 && kind == 2 ? EINTR : calls % 2 == 1 && kind == 3 && size_bytes > (size_t{1} << 20) ? EINVAL : 0;
    }
  };
  for (int kind = 0; kind < 4; ++kind) {
    Hook hook;
    hook.kind = kind;
    forget();
    EXPECT_TRUE(reads(*PosixStorage(&hook).open(folder / "file"), 99, kSize - 99)) << kind;
    EXPECT_GT(hook.calls, 5);
  }
}

TEST_F(PastCache, a_fault_and_a_file_that_shrank_are_named) {
  struct Hook : CallHook {
    int before(Call call, const fs::path&, size_t&) override { return call == Call::read ? EIO : 0; }
  } hook;
  const auto message = [&](const Source& source) {
    try {
      reads(source, 0, kSize);
    } catch (const base::CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(message(*PosixStorage(&hook).open(folder / "file")), HasSubstr("cannot read " + (folder / "file").string()));
  const auto source = PosixStorage().open(folder / "file");
  fs::resize_file(folder / "file", 1 << 20);
  EXPECT_THAT(message(*source), HasSubstr("truncated"));
}

}  // namespace
}  // namespace ingot::checkpoint
