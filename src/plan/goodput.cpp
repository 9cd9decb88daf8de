#include "plan/goodput.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace ingot::plan {
namespace {

constexpr double kLongestInterval_s = 1e9;

void check(const Reliability& r, double work_s) {
  const auto is_time = [](double s) { return std::isfinite(s) && s >= 0; };
  if (!is_time(r.device_mtbf_h) || !is_time(r.restart_s) || !is_time(r.save_stall_s) || r.devices < 1)
    throw base::ConfigError(
        "time between failures, of a restart and of a save must be finite and not negative, and there is one device at least");
  if (!(work_s > 0 && work_s <= kLongestInterval_s))
    throw base::ConfigError("a run that saves every {} s is none; it must be in (0, 1e9]", work_s);
}

}  // namespace

double expected_goodput(const Reliability& r, double work_s) {
  check(r, work_s);
  const double rate = r.failures_per_s();
  if (rate == 0) return work_s / (work_s + r.save_stall_s);
  const double exponent = rate * (r.restart_s + work_s + r.save_stall_s);
  if (exponent > 700) return 0;
  return rate * work_s / (std::exp(rate * r.restart_s) * std::expm1(rate * (work_s + r.save_stall_s)));
}

double best_save_interval_s(const Reliability& r) {
  check(r, 1);
  // The goodput rises and then falls with the interval: a golden-section search over its logarithm.
  double low = std::log(1e-6), high = std::log(kLongestInterval_s);
  const double golden = (std::sqrt(5.0) - 1) / 2;
  const auto at = [&](double x) { return expected_goodput(r, std::exp(x)); };
  for (int i = 0; i < 100; ++i) {
    const double a = high - golden * (high - low), b = low + golden * (high - low);
    // Where both are 0 the interval is far too long.
    (at(a) >= at(b) ? high : low) = at(a) >= at(b) ? b : a;
  }
  return std::exp((low + high) / 2);
}

double drawn_goodput(const Reliability& r, double work_s, int64_t saves, uint64_t seed) {
  check(r, work_s);
  const double rate = r.failures_per_s();
  if (rate == 0) return expected_goodput(r, work_s);
  const uint64_t key = base::stream_key(seed, "failures");
  uint64_t drawn = 0;
  const auto next_failure = [&] { return -std::log1p(-base::uniform_at(key, drawn++)) / rate; };
  double elapsed_s = 0;
  for (int64_t save = 0; save < saves; ++save) {
    double needed_s = work_s + r.save_stall_s;
    for (double failure_s = next_failure(); failure_s < needed_s; failure_s = next_failure()) {
      elapsed_s += failure_s;
      needed_s = r.restart_s + work_s + r.save_stall_s;
    }
    elapsed_s += needed_s;
  }
  return static_cast<double>(saves) * work_s / elapsed_s;
}

}  // namespace ingot::plan
