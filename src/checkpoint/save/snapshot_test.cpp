// Images of files, copied block by block by whoever has time, with little memory and with much.
#include "checkpoint/save/snapshot.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

namespace ingot::checkpoint {
namespace {

constexpr int64_t kBlock = 4096;

class SnapshotTest : public ::testing::Test {
 protected:
  std::vector<std::byte> source_ = std::vector<std::byte>(100000);
  SnapshotTest() {
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(1 + i % 251);
  }
  // Two files: pieces with gaps between them, over the borders of blocks, ending within one.
  std::vector<FileImage> images() const {
    const auto* s = source_.data();
    return {{50100, {{64, 100, s}, {4032, 200, s + 100}, {8192, 30000, s + 300}, {45000, 5100, s + 40000}}},
            {70, {{64, 6, s + 7}}},
            {20000, {{4096, 12000, s + 60000}}}};
  }
  static std::string expected(const FileImage& image) {
    std::string bytes(static_cast<size_t>(image.size_bytes), '\0');
    for (const auto& piece : image.pieces) std::memcpy(bytes.data() + piece.offset, piece.data, static_cast<size_t>(piece.size_bytes));
    return bytes;
  }
  // Takes all blocks as a writer does; gives them back late, as writes end.
  static void expect_images(Snapshot& snapshot, const std::vector<std::string>& wanted, size_t held_back) {
    std::vector<std::string> got(wanted.size());
    std::vector<size_t> held;
    while (const auto block = snapshot.next()) {
      EXPECT_EQ(block->offset, static_cast<int64_t>(got[block->file].size()));
      got[block->file].append(reinterpret_cast<const char*>(block->data), static_cast<size_t>(block->size_bytes));
      for (int64_t i = block->size_bytes; i % 4096 != 0; ++i) ASSERT_EQ(block->data[i], std::byte{0}) << "the rest of the last page";
      held.push_back(block->number);
      if (held.size() > held_back) {
        snapshot.release(held.front());
        held.erase(held.begin());
      }
    }
    for (const size_t number : held) snapshot.release(number);
    EXPECT_EQ(got, wanted);
  }
};

TEST_F(SnapshotTest, holds_what_was_there_before_it_changed) {
  Staging staging(1 << 20, kBlock);
  Snapshot snapshot(images(), staging);
  std::vector<std::string> wanted;
  for (const auto& image : images()) wanted.push_back(expected(image));
  std::thread copier([&] { snapshot.copy(); });
  snapshot.wait_copied();
  std::fill(source_.begin(), source_.end(), std::byte{0});
  EXPECT_GT(snapshot.copied_s(), 0);
  expect_images(snapshot, wanted, 100);
  copier.join();
}

TEST_F(SnapshotTest, with_little_memory_copying_waits_for_the_writer) {
  Staging staging(2 * kBlock, kBlock);
  std::vector<std::string> wanted;
  for (const auto& image : images()) wanted.push_back(expected(image));
  for (int round = 0; round < 3; ++round) {
    Snapshot snapshot(images(), staging);
    std::thread copier([&] { snapshot.copy(); }), trainer([&] { snapshot.wait_copied(); });
    expect_images(snapshot, wanted, 1);
    copier.join();
    trainer.join();
    EXPECT_LE(staging.held_bytes(), 2 * kBlock);
  }
}

TEST_F(SnapshotTest, cancelled_ends_copying_and_gives_its_memory_back) {
  Staging staging(2 * kBlock, kBlock);
  {
    Snapshot snapshot(images(), staging);
    std::thread copier([&] { snapshot.copy(); }), trainer([&] { snapshot.wait_copied(); });
    snapshot.cancel();
    copier.join();
    trainer.join();
    EXPECT_FALSE(snapshot.next());
  }
  EXPECT_NE(staging.take(), nullptr);
  EXPECT_NE(staging.take(), nullptr);
  EXPECT_EQ(staging.take(), nullptr);
}

TEST_F(SnapshotTest, nothing_to_copy_is_copied_at_once) {
  Staging staging(0, kBlock);
  Snapshot snapshot({}, staging);
  snapshot.wait_copied();
  EXPECT_FALSE(snapshot.next());
  EXPECT_EQ(staging.held_bytes(), 0);
}

}  // namespace
}  // namespace ingot::checkpoint
