#include "data/sample_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"

namespace ingot::data {

int64_t SampleOrder::row_of(int64_t sample) const {
  const auto& o = options_;
  const int64_t at = o.first + sample, epoch = at / o.rows, units = o.rows / o.unit_rows;
  if (o.curriculum && epoch == 0) return o.curriculum->row_of(at);
  const auto name = fmt::format("source {} epoch {}", o.source, epoch);
  const int64_t window = at % o.rows / (o.window_units * o.unit_rows), first_unit = window * o.window_units;
  int64_t place = at % o.rows - first_unit * o.unit_rows;  // in the window
  if (const int64_t size = std::min(o.window_units, units - first_unit) * o.unit_rows; o.unit_rows > 1) {
    const uint64_t key = base::stream_key(o.seed, fmt::format("{} window {}", name, window));
    place = static_cast<int64_t>(base::permute(key, static_cast<uint64_t>(place), static_cast<uint64_t>(size)));
  }
  const auto unit = static_cast<uint64_t>(first_unit + place / o.unit_rows);
  return static_cast<int64_t>(base::permute(base::stream_key(o.seed, name), unit, static_cast<uint64_t>(units))) * o.unit_rows +
         place % o.unit_rows;
}

int64_t SampleOrder::first_untouched_unit(int64_t sample) const {
  const auto& o = options_;
  const int64_t at = o.first + sample, units = o.rows / o.unit_rows;
  const int64_t touched = (at % o.rows + o.unit_rows - 1) / o.unit_rows, windows = (touched + o.window_units - 1) / o.window_units;
  return at / o.rows * units + std::min(windows * o.window_units, units);
}

}  // namespace ingot::data
