#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

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
