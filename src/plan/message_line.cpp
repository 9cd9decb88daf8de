#include "plan/message_line.h"

#include <algorithm>
#include <cmath>

namespace ingot::plan {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

MessageLine fitted_line(const std::vector<MessageTime>& times) {
  // a + b bytes = time, each equation divided by its time.
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const auto& t : times) {
    const double x = 1 / t.seconds, y = t.bytes / t.seconds;
    aa += x * x, ab += x * y, bb += y * y, a1 += x, b1 += y;
  }
  const double determinant = aa * bb - ab * ab;
  double a = 0, b = bb > 0 ? b1 / bb : 0;
  if (times.size() > 1 && determinant > 1e-12 * aa * bb) {
    a = (a1 * bb - b1 * ab) / determinant;
    b = (b1 * aa - a1 * ab) / determinant;
    if (a < 0) a = 0, b = b1 / bb;
    if (b <= 0) a = a1 / aa, b = 0;
  }
  MessageLine line{.latency_s = a, .bytes_per_s = b > 0 ? 1 / b : 0};
  std::vector<double> errors;
  double best = 0;
  for (const auto& t : times) {
    errors.push_back(std::abs((a + b * t.bytes) / t.seconds - 1));
    best = std::max(best, t.bytes / t.seconds);
  }
  line.median_error = median(errors);
  line.largest_error = *std::max_element(errors.begin(), errors.end());
  line.knee_bytes = std::find_if(times.begin(), times.end(), [&](const auto& t) { return t.bytes / t.seconds >= 0.9 * best; })->bytes;
  return line;
}

double bus_factor(const std::string& operation, double ranks) {
  if (operation == "all_reduce") return 2 * (ranks - 1) / ranks;
  const bool counts_total = operation == "all_gather" || operation == "reduce_scatter" || operation == "all_to_all";
  return counts_total ? (ranks - 1) / ranks : 1;
}

}  // namespace ingot::plan
