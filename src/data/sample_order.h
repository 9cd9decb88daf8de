// Which row of a source its sample j is: a pure function, without a table but a curriculum's (docs/data-formats.md, "Sample order").
#pragma once

#include <cstdint>
#include <memory>

#include "data/curriculum.h"

namespace ingot::data {

class SampleOrder {
 public:
  /// `rows` in units of `unit_rows`, which stay together in windows of `window_units`; `key`: of the seed and the source. Sample 0 is
  /// the one `first` samples behind the beginning of the first epoch.
  struct Options {
    uint64_t seed = 0;
    int64_t source = 0;  // its number
    int64_t rows = 1, unit_rows = 1, window_units = 1;
    int64_t first = 0;
    std::shared_ptr<const Curriculum> curriculum{};  // of the first epoch; null without
  };
  explicit SampleOrder(const Options& options) : options_(options) {}

  int64_t row_of(int64_t sample) const;
  /// The first unit, counted over epochs, of a window that no sample before `sample` has drawn from.
  int64_t first_untouched_unit(int64_t sample) const;
  /// Of `sample` >= 0, that one included.
  int64_t samples_left_of_epoch(int64_t sample) const { return options_.rows - (options_.first + sample) % options_.rows; }
  int64_t first() const { return options_.first; }
  const Curriculum* curriculum() const { return options_.curriculum.get(); }

 private:
  Options options_;
};

}  // namespace ingot::data
