// Blocks of a file in any order, by io_uring and by threads, past the page cache and through it.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

using ::testing::HasSubstr;

struct Way {
  const char* name;
  BlockWriting blocks;
};

class Blocks : public TemporaryFolder, public ::testing::WithParamInterface<Way> {
 protected:
  static constexpr int64_t kBlock = 16384, kSize = 41 * kBlock + 777;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const std::unique_ptr<std::byte, Free> memory_{static_cast<std::byte*>(std::aligned_alloc(4096, 42 * kBlock))};

  std::string expected() const { return {reinterpret_cast<const char*>(memory_.get()), static_cast<size_t>(kSize)}; }
  void SetUp() override {
    TemporaryFolder::SetUp();
    uint32_t state = 5;
    for (int64_t i = 0; i < 42 * kBlock; ++i) memory_.get()[i] = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  }
  void write_all(CallHook* hook) {
    const PosixStorage storage(hook, 8192, GetParam().blocks);
    const auto sink = storage.create_blocks(folder / "file", kSize);
    std::vector<uint64_t> order(42), finished;
    for (uint64_t i = 0; i < 42; ++i) order[i] = i * 25 % 42;
    for (const uint64_t block : order) {
      sink->write(static_cast<int64_t>(block) * kBlock, memory_.get() + static_cast<int64_t>(block) * kBlock, kBlock, block);
      while (const auto ticket = sink->finished(false)) finished.push_back(*ticket);
    }
    while (const auto ticket = sink->finished(true)) finished.push_back(*ticket);
    sink->close(kSize);
    std::sort(finished.begin(), finished.end());
    std::sort(order.begin(), order.end());
    EXPECT_EQ(finished, order) << "each block once";
  }
};

TEST_P(Blocks, make_up_the_file) {
  write_all(nullptr);
  EXPECT_EQ(content_of(folder / "file"), expected());
}

TEST_P(Blocks, short_and_interrupted_writes_are_carried_on) {
  struct Hook : CallHook {
    int calls = 0, kind = 0;
    int before(Call call, const fs::path&, size_t& size_bytes) override {
      if (call != Call::write || ++calls % 5 != 0) return 0;
      if (kind) return EINTR;
      size_bytes = size_bytes / 2 + 1;
      return 0;
    }
  } hook;
  for (hook.kind = 0; hook.kind < 2; ++hook.kind) {
    write_all(&hook);
    EXPECT_EQ(content_of(folder / "file"), expected());
    fs::remove(folder / "file");
  }
}

TEST_P(Blocks, failures_name_file_and_reason_at_any_call) {
  struct Hook : CallHook {
    int at = 0, calls = 0;
    int before(Call, const fs::path&, size_t&) override { return calls++ == at ? ENOSPC : 0; }
  } hook;
  int failed = 0;
  for (hook.at = 0;; ++hook.at) {
    hook.calls = 0;
    fs::remove(folder / "file");
    try {
      write_all(&hook);
      break;
    } catch (const base::CheckpointError& error) {
      ++failed;
      EXPECT_THAT(error.what(), HasSubstr("file: No space left on device; free space there"));
    }
  }
  EXPECT_EQ(failed, 1 + 42 + 3);  // open, the blocks, resize, sync and close
}

INSTANTIATE_TEST_SUITE_P(Ways, Blocks,
                         ::testing::Values(Way{"uring_direct", {true, true, 8}}, Way{"uring_cached", {true, false, 3}},
                                           Way{"threads_direct", {false, true, 8}}, Way{"threads_cached", {false, false, 1}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ingot::checkpoint
