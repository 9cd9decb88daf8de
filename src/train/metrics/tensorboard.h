// TensorBoard event files without protobuf: the TFRecord frames and the few fields of tensorflow.Event that scalars and
// histograms need. Belongs to one thread. Format: tensorflow/core/lib/io/record_writer.h (frames),
// tensorflow/core/util/event.proto and framework/summary.proto (fields).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/metrics/append_file.h"
#include "train/metrics/scalar.h"

namespace ingot::train {

/// CRC-32C (Castagnoli) as TFRecord uses it, and its mask: rotated right by 15 bits, plus a constant.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

/// One TFRecord: length (8 bytes, little endian), its masked CRC, the data, its masked CRC.
std::string tfrecord(std::string_view data);

/// The encoded tensorflow.Event messages. Values are stored in single precision, as TensorBoard does.
std::string encode_version_event(double wall_time_s);
std::string encode_start_event(double wall_time_s, int64_t step);
std::string encode_scalars_event(double wall_time_s, int64_t step, std::span<const Scalar> scalars);
/// `counts[i]` values lie in [edges[i], edges[i + 1]); edges has one element more than counts.
std::string encode_histogram_event(double wall_time_s, int64_t step, std::string_view tag, std::span<const double> edges,
                                   std::span<const double> counts);

class TensorBoardWriter {
 public:
  /// Creates events.out.tfevents.<seconds>.<host>.<n> in the folder, never touching a file that is there already. A run that
  /// goes on after `resumed_step` > 0 tells TensorBoard to forget the later steps of older files. Throws FileError.
  TensorBoardWriter(const std::filesystem::path& folder, double wall_time_s, int64_t resumed_step);

  /// One event, written through at once. Throws FileError; the file then ends with the event before.
  void scalars(double wall_time_s, int64_t step, std::span<const Scalar> values);
  void histogram(double wall_time_s, int64_t step, std::string_view tag, std::span<const double> edges, std::span<const double> counts);

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  std::optional<AppendFile> file_;
};

}  // namespace ingot::train
