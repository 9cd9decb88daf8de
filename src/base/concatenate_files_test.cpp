#include "base/concatenate_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace ingot::base {
namespace {

struct ConcatenateFiles : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("ingot_concatenate_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path file(const std::string& name, const std::string& content) const {
    std::ofstream(folder / name, std::ios::binary) << content;
    return folder / name;
  }
};

TEST_F(ConcatenateFiles, bytes_follow_one_another) {
  const std::string large(3'000'001, 'x');
  const auto a = file("a", "first\n"), none = file("none", ""), b = file("b", large), to = file("to", "what was there before");
  concatenate_files({a, none, b, a}, to);
  EXPECT_EQ(read_file(to), "first\n" + large + "first\n");
  concatenate_files({}, to);
  EXPECT_EQ(read_file(to), "");
}

// Files of /proc have no bytes that the kernel could copy: they are read.
TEST_F(ConcatenateFiles, what_the_kernel_does_not_copy_is_read) {
  concatenate_files({file("a", "a"), "/proc/self/cmdline"}, folder / "to");
  EXPECT_THAT(read_file(folder / "to"), ::testing::AllOf(::testing::StartsWith("a"), ::testing::HasSubstr("base_test")));
}

TEST_F(ConcatenateFiles, failures_name_the_file) {
  const auto message = [&](const std::vector<fs::path>& from, const fs::path& to) -> std::string {
    try {
      concatenate_files(from, to);
    } catch (const FileError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({folder / "missing"}, folder / "to"), ::testing::HasSubstr("missing: No such file"));
  EXPECT_THAT(message({file("a", "a")}, folder / "none" / "to"), ::testing::HasSubstr("cannot create"));
  EXPECT_THAT(message({file("a", "a")}, "/dev/full"), ::testing::HasSubstr("cannot write /dev/full: No space left"));
}

}  // namespace
}  // namespace ingot::base
