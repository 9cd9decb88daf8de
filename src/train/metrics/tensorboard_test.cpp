#include "train/metrics/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;

std::string bytes(std::initializer_list<int> values) {
  std::string out;
  for (const int value : values) out += static_cast<char>(value);
  return out;
}

// The vectors of RFC 3720, appendix B.4.
TEST(TensorBoard, crc32c_gives_the_published_values) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

// Recorded from tensorboard.summary.writer.record_writer.RecordWriter and tensorboard.compat.proto (TensorBoard 2.21).
TEST(TensorBoard, record_and_version_event_have_the_bytes_that_tensorboard_itself_writes) {
  const auto event = bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x1a, 0x0d}) + "brain.Event:2";
  EXPECT_EQ(encode_version_event(1.5), event);
  EXPECT_EQ(tfrecord(event),
            bytes({0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xa3, 0x7f, 0x4b, 0x22}) + event + bytes({0x2a, 0x28, 0x64, 0x6c}));
}

TEST(TensorBoard, scalar_event_has_the_bytes_that_tensorboard_itself_writes) {
  const std::array<Scalar, 2> scalars = {{{"a", 2.5}, {"b/c", -1.0}}};
  EXPECT_EQ(encode_scalars_event(2.0, 300, scalars),
            bytes({0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x10, 0xac, 0x02, 0x2a, 0x16, 0x0a, 0x08, 0x0a, 0x01,
                   0x61, 0x15, 0x00, 0x00, 0x20, 0x40, 0x0a, 0x0a, 0x0a, 0x03, 0x62, 0x2f, 0x63, 0x15, 0x00, 0x00, 0x80, 0xbf}));
}

TEST(TensorBoard, start_event_has_the_bytes_that_tensorboard_itself_writes) {
  EXPECT_EQ(encode_start_event(2.0, 5), bytes({0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x10, 0x05, 0x3a, 0x02, 0x08, 0x01}));
}

TEST(TensorBoard, histogram_event_has_the_bytes_that_tensorboard_itself_writes) {
  const std::array<double, 3> edges = {1, 2, 3};
  const std::array<double, 2> counts = {3, 4};
  EXPECT_EQ(
      encode_histogram_event(2.0, 5, "h", edges, counts),
      bytes({0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x10, 0x05, 0x2a, 0x58, 0x0a, 0x56, 0x0a, 0x01, 0x68, 0x2a, 0x51, 0x09,
             0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x3f, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x40, 0x19, 0x00, 0x00, 0x00,
             0x00, 0x00, 0x00, 0x1c, 0x40, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x2d, 0x40, 0x29, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc0,
             0x3f, 0x40, 0x32, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x40, 0x3a,
             0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x40}));
}

TEST(TensorBoard, every_start_opens_a_file_of_its_own_that_sorts_after_the_older_ones) {
  const fs::path folder = fs::temp_directory_path() / ("ingot_tensorboard_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const TensorBoardWriter first(folder, 1700000000.25, 0), second(folder, 1700000000.75, 40);
  EXPECT_THAT(first.path().filename().string(), ::testing::StartsWith("events.out.tfevents.1700000000."));
  EXPECT_LT(first.path().string(), second.path().string());
  EXPECT_EQ(base::read_file(second.path()),
            tfrecord(encode_version_event(1700000000.75)) + tfrecord(encode_start_event(1700000000.75, 41)));
  EXPECT_THROW(TensorBoardWriter(folder / "none", 1, 0), base::FileError);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ingot::train
