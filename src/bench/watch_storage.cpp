// The storage benchmark at a terminal.
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "bench/storage.h"

namespace ingot::bench {

StorageReport watch_storage(const StorageOptions& options, const resilience::StopSignal& stop) {
  std::optional<base::ProgressBar> bar;
  auto report = measure_storage(
      options,
      [&](size_t done, size_t all, const std::string& next) {
        if (!bar) bar.emplace("bench storage", static_cast<int64_t>(all), base::ProgressUnit::count);
        bar->update(static_cast<int64_t>(done), next);
      },
      [&] { return stop.received() != 0; });
  if (!bar) return report;
  bar->update(static_cast<int64_t>(report.results.size()));
  bar->finish(report.complete ? "" : "stopped; what was measured is kept");
  return report;
}

std::vector<plan::StorageRate> storage_rates(const std::string& folder) {
  const resilience::StopSignal stop(kStorageStopNote);
  std::vector<plan::StorageRate> rates;
  try {
    for (const auto& result :
         watch_storage({.folder = folder, .size_bytes = int64_t{64} << 20, .seconds = 0.1, .budget_s = 8}, stop).results)
      rates.push_back(result.rate);
  } catch (const base::Error& refused) {
    base::log_warning("storage is not measured: {}", refused.what());
  }
  return rates;
}

}  // namespace ingot::bench
