#include "train/metrics/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace ingot::train {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);  // the polynomial, reflected
    table[byte] = crc;
  }
  return table;
}();

template <class Integer>
void put_little_endian(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof(value); ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

// Protobuf's wire format: a key (field number and wire type), then the value.
class Message {
 public:
  Message& integer(int field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& fixed64(int field, double value) {
    key(field, 1);
    put_little_endian(bytes_, std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& fixed32(int field, float value) {
    key(field, 5);
    put_little_endian(bytes_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& inner) { return bytes(field, inner.bytes_); }
  Message& packed(int field, std::span<const double> values) {
    std::string raw;
    for (const double value : values) put_little_endian(raw, std::bit_cast<uint64_t>(value));
    return bytes(field, raw);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// Field numbers of the protocol files.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kHistogram = 5;
}
namespace histogram_proto {
constexpr int kMinimum = 1, kMaximum = 2, kNumber = 3, kSum = 4, kSumSquares = 5, kBucketLimits = 6, kBuckets = 7;
}
namespace session_log {
constexpr int kStatus = 1, kStart = 1;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name.data();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string tfrecord(std::string_view data) {
  std::string record;
  put_little_endian(record, static_cast<uint64_t>(data.size()));
  put_little_endian(record, masked_crc32c(record));
  record += data;
  put_little_endian(record, masked_crc32c(data));
  return record;
}

std::string encode_version_event(double wall_time_s) {
  return Message().fixed64(event::kWallTime, wall_time_s).bytes(event::kFileVersion, "brain.Event:2").take();
}

std::string encode_start_event(double wall_time_s, int64_t step) {
  return Message()
      .fixed64(event::kWallTime, wall_time_s)
      .integer(event::kStep, step)
      .message(event::kSessionLog, Message().integer(session_log::kStatus, session_log::kStart))
      .take();
}

std::string encode_scalars_event(double wall_time_s, int64_t step, std::span<const Scalar> scalars) {
  Message all;
  for (const auto& scalar : scalars) {
    all.message(summary::kValue, Message().bytes(value::kTag, scalar.tag).fixed32(value::kSimpleValue, static_cast<float>(scalar.value)));
  }
  return Message().fixed64(event::kWallTime, wall_time_s).integer(event::kStep, step).message(event::kSummary, all).take();
}

std::string encode_histogram_event(double wall_time_s, int64_t step, std::string_view tag, std::span<const double> edges,
                                   std::span<const double> counts) {
  double number = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double centre = (edges[i] + edges[i + 1]) / 2;
    number += counts[i];
    sum += counts[i] * centre;
    squares += counts[i] * centre * centre;
  }
  Message histogram;
  histogram.fixed64(histogram_proto::kMinimum, edges.front())
      .fixed64(histogram_proto::kMaximum, edges.back())
      .fixed64(histogram_proto::kNumber, number)
      .fixed64(histogram_proto::kSum, sum)
      .fixed64(histogram_proto::kSumSquares, squares)
      .packed(histogram_proto::kBucketLimits, edges.subspan(1))
      .packed(histogram_proto::kBuckets, counts);
  const Message one = std::move(Message().bytes(value::kTag, tag).message(value::kHistogram, histogram));
  return Message()
      .fixed64(event::kWallTime, wall_time_s)
      .integer(event::kStep, step)
      .message(event::kSummary, Message().message(summary::kValue, one))
      .take();
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, double wall_time_s, int64_t resumed_step) {
  // TensorBoard reads the files of a folder in the order of their names; ten digits sort until the year 2286.
  const auto stem = fmt::format("events.out.tfevents.{:010d}.{}", static_cast<int64_t>(wall_time_s), host_name());
  int number = 0;
  std::error_code ignored;
  while (std::filesystem::exists(folder / fmt::format("{}.{}", stem, number), ignored)) ++number;
  file_.emplace(folder / fmt::format("{}.{}", stem, number), AppendFile::Mode::create_new);
  auto opening = tfrecord(encode_version_event(wall_time_s));
  if (resumed_step > 0) opening += tfrecord(encode_start_event(wall_time_s, resumed_step + 1));
  try {
    file_->append(opening);
  } catch (...) {
    std::filesystem::remove(file_->path(), ignored);
    throw;
  }
}

void TensorBoardWriter::scalars(double wall_time_s, int64_t step, std::span<const Scalar> values) {
  file_->append(tfrecord(encode_scalars_event(wall_time_s, step, values)));
}

void TensorBoardWriter::histogram(double wall_time_s, int64_t step, std::string_view tag, std::span<const double> edges,
                                  std::span<const double> counts) {
  file_->append(tfrecord(encode_histogram_event(wall_time_s, step, tag, edges, counts)));
}

}  // namespace ingot::train
