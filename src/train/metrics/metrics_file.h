// metrics.jsonl: one JSON object per step, each line written whole with one write(2). Belongs to one thread of one rank.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "train/metrics/append_file.h"

namespace ingot::train {

class MetricsFile {
 public:
  /// Opens the file for a run that goes on after `resumed_step` (0: from the start). A torn last line and the lines of later
  /// steps are cut off, since those steps will be done again; from the start all is put aside as metrics.before.jsonl. Throws FileError.
  MetricsFile(const std::filesystem::path& path, int64_t resumed_step);

  /// Appends one line. Throws FileError (disk full); the file then ends with the line before, and later lines may succeed.
  void append(const nlohmann::ordered_json& line);

  /// How many bytes the constructor cut off.
  int64_t dropped_bytes() const { return dropped_bytes_; }

 private:
  AppendFile file_;
  int64_t dropped_bytes_ = 0;
};

}  // namespace ingot::train
