// What was measured of storage, for people and for programs.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "bench/storage.h"

namespace ingot::bench {
namespace {

std::string duration(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string name_for_people(const std::string& operation) {
  if (operation == "create") return "create+write+fsync";
  if (operation == "open_read") return "open+read+close";
  auto text = operation;
  for (char& c : text)
    if (c == '_') c = ' ';
  return text;
}

}  // namespace

std::string to_table(const StorageReport& report) {
  auto text = fmt::format("{} ({}), files of {} together\n", report.folder, report.folder_type, base::format_bytes(report.size_bytes));
  if (!report.direct_refusal.empty()) text += fmt::format("past the page cache: not measured, {}\n", report.direct_refusal);
  if (report.results.empty()) return text + "nothing was measured\n";
  text += fmt::format("\n{:<20}{:>10}{:>8}  {:<9}{:>10}{:>11}{:>11}{:>11}{:>11}\n", "operation", "block", "writers", "cache", "MB/s",
                      "op/s", "p50", "p99", "fsync");
  bool is_cached = false;
  for (const auto& result : report.results) {
    const auto& r = result.rate;
    is_cached |= result.cached_share > 0.01;
    text += fmt::format("{:<20}{:>10}{:>8}  {:<9}{:>10}{:>11.0f}{:>11}{:>11}{:>11}{}\n", name_for_people(r.operation),
                        base::format_bytes(r.block_bytes), r.writers, r.direct ? "O_DIRECT" : "buffered",
                        r.bytes_per_s > 0 ? fmt::format("{:.1f}", r.bytes_per_s / 1e6) : "", r.operations_per_s, duration(r.p50_s),
                        duration(r.p99_s), result.sync_s > 0 ? duration(result.sync_s) : "",
                        result.cached_share > 0.01 ? fmt::format("  {:.0f} % in cache", 100 * result.cached_share) : "");
  }
  text += "rates count until the last writer's fsync; p50 and p99 are of single operations, without it\n";
  if (is_cached) text += "'in cache': the system kept this share although it was told to drop it; that rate is partly the memory's\n";
  return text;
}

nlohmann::ordered_json to_json(const StorageReport& report) {
  nlohmann::ordered_json json = {{"format", "ingot storage benchmark"},
                                 {"version", 1},
                                 {"folder", report.folder},
                                 {"folder_type", report.folder_type},
                                 {"size_bytes", report.size_bytes},
                                 {"direct_refusal", report.direct_refusal},
                                 {"complete", report.complete},
                                 {"results", nlohmann::ordered_json::array()}};
  for (const auto& result : report.results) {
    const auto& r = result.rate;
    json["results"].push_back({{"operation", r.operation},
                               {"block_bytes", r.block_bytes},
                               {"writers", r.writers},
                               {"direct", r.direct},
                               {"bytes_per_s", r.bytes_per_s},
                               {"operations_per_s", r.operations_per_s},
                               {"p50_s", r.p50_s},
                               {"p99_s", r.p99_s},
                               {"operations", result.operations},
                               {"seconds", result.seconds},
                               {"sync_s", result.sync_s},
                               {"cached_share", result.cached_share}});
  }
  return json;
}

}  // namespace ingot::bench
