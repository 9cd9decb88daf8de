// The weights of a run's sources over its steps, in a file that may change while the run goes on:
//
//   0.7 data/web            weight, space, path as in data.sources; a source without a line has weight 0
//   0.3 data/books
//   step 2000               the lines below hold from the step of this number on
//   0.5 data/web
//   0.5 data/books
//
// What a run has done is written in the same form: given to another run, it takes the same samples.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/config.h"

namespace ingot::data {

namespace fs = base::fs;

class Blend {
 public:
  struct Stretch {
    int64_t first_step = 0;       // as metrics.jsonl counts, from 1; 0: from the beginning
    std::vector<double> weights;  // of each source, in the order of data.sources
  };

  /// Throws DataError "NAME:LINE: …" for text of another form, unknown or repeated sources, and weights that are all 0.
  static Blend parse(const std::string& text, const std::string& name, const std::vector<DataSource>& sources);

  /// The weights for the step of this number; empty before the first stretch.
  const std::vector<double>& at(int64_t step) const;
  /// The weights from this step on are others; later stretches go.
  void change(int64_t step, std::vector<double> weights);
  /// Stretches that begin there or later go.
  void forget_from(int64_t step);
  std::string text(const std::vector<DataSource>& sources) const;

 private:
  std::vector<Stretch> stretches_;  // with rising steps
};

/// The file of a run that goes on. One thread.
class BlendFile {
 public:
  /// Throws FileError, and DataError as Blend::parse().
  BlendFile(fs::path path, std::vector<DataSource> sources);
  /// What the file wants for the step of this number; empty for nothing. It is looked at once a second; while it is missing or wrong, which
  /// is said once, it wants what it did before.
  const std::vector<double>& at(int64_t step);

 private:
  void look();

  fs::path path_;
  std::vector<DataSource> sources_;
  Blend blend_;
  std::string text_;
  std::chrono::steady_clock::time_point looked_at_{};
};

}  // namespace ingot::data
