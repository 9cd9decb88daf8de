#include "train/metrics/checkpoint_record.h"

#include <nlohmann/json.hpp>

namespace ingot::train {

nlohmann::ordered_json to_json(const checkpoint::SaveOutcome& outcome, const char* where) {
  const auto& r = outcome.report;
  nlohmann::ordered_json json = {
      {"kind", "save"}, {"where", where}, {"step", r.step}, {"path", r.path.string()}, {"ok", outcome.failure.empty()}};
  if (!outcome.failure.empty()) json["failure"] = outcome.failure;
  json["bytes"] = r.data_bytes;
  json["metadata_bytes"] = r.metadata_bytes;
  json["planned"] = r.planned;
  json["total_s"] = r.phases.total_s;
  json["stall_s"] = r.phases.stall_s;
  json["commit_s"] = r.phases.commit_s;
  json["clean_s"] = r.clean_s;
  size_t slowest = 0;
  auto ranks = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < r.ranks.size(); ++rank) {
    const auto& p = r.ranks[rank];
    const auto durable_s = [](const checkpoint::SavePhases& q) { return q.write_s + q.sync_s; };
    if (durable_s(p) > durable_s(r.ranks[slowest])) slowest = rank;
    const double rate = durable_s(p) > 0 ? static_cast<double>(p.bytes) / durable_s(p) / 1e9 : 0;
    ranks.push_back({{"bytes", p.bytes},
                     {"plan_s", p.plan_s},
                     {"stall_s", p.stall_s},
                     {"copy_s", p.copy_s},
                     {"hash_s", p.hash_s},
                     {"write_s", p.write_s},
                     {"sync_s", p.sync_s},
                     {"gb_per_s", rate}});
  }
  if (!ranks.empty()) json["slowest_rank"] = slowest;
  json["ranks"] = std::move(ranks);
  return json;
}

nlohmann::ordered_json load_json(const std::string& path, int64_t step, const checkpoint::LoadReport& report) {
  nlohmann::ordered_json json = {{"kind", "load"}, {"step", step}, {"path", path}, {"ok", true}, {"total_s", report.phases.total_s}};
  size_t slowest = 0;
  auto ranks = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const auto& p = report.ranks[rank];
    if (p.read_s + p.exchange_s > report.ranks[slowest].read_s + report.ranks[slowest].exchange_s) slowest = rank;
    ranks.push_back({{"wanted_bytes", p.wanted_bytes},
                     {"read_bytes", p.read_bytes},
                     {"cached_bytes", p.cached_bytes},
                     {"sent_bytes", p.sent_bytes},
                     {"received_bytes", p.received_bytes},
                     {"plan_s", p.plan_s},
                     {"read_s", p.read_s},
                     {"exchange_s", p.exchange_s},
                     {"total_s", p.total_s},
                     {"gb_per_s", p.total_s > 0 ? static_cast<double>(p.read_bytes) / p.total_s / 1e9 : 0}});
  }
  json["slowest_rank"] = slowest;
  json["ranks"] = std::move(ranks);
  return json;
}

}  // namespace ingot::train
