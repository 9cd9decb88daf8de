#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/text.h"

namespace {

std::vector<std::filesystem::path>* synced = nullptr;  // what fsync was called for, where a test wants to know

}  // namespace

// In place of libc's, for this program alone.
extern "C" int fsync(int descriptor) {
  if (synced) synced->push_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)));
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace ingot::base {
namespace {

class Files : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_files_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(Files, atomic_write_replaces_the_whole_file_and_leaves_nothing_beside_it) {
  write_file_atomically(folder / "a", "first");
  write_file_atomically(folder / "a", "second");
  EXPECT_EQ(read_file(folder / "a"), "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(Files, folders_missing_files_and_oversized_ones_are_named) {
  EXPECT_THROW(read_file(folder), FileError);
  EXPECT_THROW(MappedFile(folder / "none"), FileError);
  std::ofstream(folder / "big") << std::string(100, 'x');
  try {
    read_file(folder / "big", 10);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("more than the 10"));
  }
}

TEST_F(Files, a_lock_is_one_holders_at_a_time_and_ends_with_it) {
  {
    auto held = FileLock::try_take(folder / "lock");
    ASSERT_TRUE(held.has_value());
    EXPECT_FALSE(FileLock::try_take(folder / "lock").has_value());
    const FileLock moved = std::move(*held);
    held.reset();
    EXPECT_FALSE(FileLock::try_take(folder / "lock").has_value());
  }
  EXPECT_TRUE(FileLock::try_take(folder / "lock").has_value());
  EXPECT_THROW(FileLock::try_take(folder / "none" / "lock"), FileError);
}

// Regression: new folders were in no parent that had been synced, so that a power cut could take a run directory with all of its synced
// files.
TEST_F(Files, new_folders_are_synced_into_their_parents) {
  std::vector<fs::path> calls;
  synced = &calls;
  make_directories(folder / "runs" / "a" / "");
  EXPECT_EQ(calls, (std::vector<fs::path>{folder, folder / "runs"}));
  calls.clear();
  make_directories(folder / "runs" / "a");
  EXPECT_TRUE(calls.empty()) << "nothing was made";
  make_directories(folder / "runs" / "b" / ".." / "c");
  EXPECT_TRUE(fs::is_directory(folder / "runs" / "c"));
  fs::create_directory_symlink(folder / "runs", folder / "link");
  make_directories(folder / "link" / "d");
  EXPECT_EQ(calls.back(), folder / "runs");
  synced = nullptr;
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(make_directories(folder / "file"), FileError);
  EXPECT_THROW(make_directories(folder / "file" / "below"), FileError);
}

TEST_F(Files, a_relative_folder_is_synced_into_the_working_folder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  std::vector<fs::path> calls;
  synced = &calls;
  make_directories("relative/below");
  synced = nullptr;
  fs::current_path(before);
  EXPECT_EQ(calls, (std::vector<fs::path>{folder, folder / "relative"}));
}

TEST_F(Files, a_missing_folder_for_passing_files_is_said_to_be_tmpdirs) {
  const char* before = ::getenv("TMPDIR");
  const std::string kept = before ? before : "";
  ::setenv("TMPDIR", (folder / "none").c_str(), 1);
  try {
    temporary_folder();
    ADD_FAILURE() << "no error";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("TMPDIR"));
  }
  ::setenv("TMPDIR", folder.c_str(), 1);
  EXPECT_EQ(temporary_folder(), folder);
  before ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
}

TEST_F(Files, lines_are_added_whole_and_the_last_ones_read) {
  const auto path = folder / "lines";
  append_line(path, "one");
  append_line(path, "two");
  EXPECT_EQ(read_file(path), "one\ntwo\n");
  EXPECT_EQ(read_last_lines(path, 1000), "one\ntwo\n");
  EXPECT_EQ(read_last_lines(path, 7), "two\n");
  EXPECT_EQ(read_last_lines(path, 4), "two\n");
  EXPECT_EQ(read_last_lines(path, 3), "");
  { OutputFile(path).write("torn"); }
  append_line(path, "three");
  EXPECT_EQ(read_file(path), "torn\nthree\n");
  EXPECT_THROW(append_line(folder, "x"), FileError);
  EXPECT_THROW(append_line("/dev/null", "x"), FileError);
  EXPECT_THROW(append_line(folder / "none" / "x", "x"), FileError);
}

TEST_F(Files, lines_of_several_threads_do_not_mix) {
  const auto path = folder / "lines";
  std::vector<std::thread> threads;
  for (const char letter : {'a', 'b', 'c'})
    threads.emplace_back([&, letter] {
      for (int i = 0; i < 200; ++i) append_line(path, std::string(300, letter));
    });
  for (auto& thread : threads) thread.join();
  auto lines = split(read_file(path), '\n');
  std::erase(lines, "");
  ASSERT_EQ(lines.size(), 600u);
  for (const auto& line : lines) EXPECT_EQ(line, std::string(300, line[0]));
}

TEST_F(Files, full_device_is_reported_with_the_reason) {
  OutputFile file("/dev/full");
  try {
    file.write("x");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("No space left"));
  }
}

TEST_F(Files, empty_file_maps_to_an_empty_span) {
  std::ofstream(folder / "empty").close();
  EXPECT_EQ(MappedFile(folder / "empty").bytes().size(), 0u);
}

}  // namespace
}  // namespace ingot::base
