// The results of a sweep as JSON and as a table.
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "schedule/sweep.h"

namespace ingot::schedule {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Result& r) {
  Json ops = Json::object();
  for (const auto& kind : traffic_kinds()) {
    const auto found = r.ops.find(kind);
    const auto traffic = found == r.ops.end() ? KindTraffic{} : found->second;
    ops[kind] = {{"calls", traffic.calls}, {"sent_bytes", traffic.sent_bytes}, {"received_bytes", traffic.received_bytes}};
  }
  return {{"method", r.method},
          {"layer", r.layer},
          {"ranks", r.ranks},
          {"seq", r.seq},
          {"batch", r.batch},
          {"pass", r.pass},
          {"time_ms", r.time_ms},
          {"exposed_ms", r.exposed_ms},
          {"peak_bytes", r.peak_bytes},
          {"fits", r.fits},
          {"ops", ops}};
}

// "2 broadcast, 1 all_gather"
std::string calls_of(const Result& r) {
  std::vector<std::string> parts;
  for (const auto& kind : traffic_kinds())
    if (const auto found = r.ops.find(kind); found != r.ops.end()) parts.push_back(fmt::format("{} {}", found->second.calls, kind));
  return parts.empty() ? "none" : base::join(parts, ", ");
}

}  // namespace

std::string to_json(const SweepResult& sweep, const std::string& mode, const std::string& machine) {
  Json json = {{"mode", mode}, {"machine", machine}, {"results", Json::array()}, {"crossovers", Json::array()}, {"refused", Json::array()}};
  for (const auto& result : sweep.results) json["results"].push_back(json_of(result));
  for (const auto& c : sweep.crossovers)
    json["crossovers"].push_back({{"lower", c.lower},
                                  {"higher", c.higher},
                                  {"layer", c.layer},
                                  {"ranks", c.ranks},
                                  {"pass", c.pass},
                                  {"quantity", name_of(c.quantity)},
                                  {"seq", c.seq}});
  for (const auto& r : sweep.refusals)
    json["refused"].push_back({{"method", r.method}, {"ranks", r.ranks}, {"seq", r.seq}, {"reason", r.reason}});
  return json.dump(1) + "\n";
}

std::string to_table(const SweepResult& sweep) {
  auto text = fmt::format("{:<10} {:<16} {:>5} {:>9} {:<16} {:>11} {:>11} {:>11} {:>11}  {}\n", "method", "layer", "ranks", "seq", "pass",
                          "ms", "exposed ms", "received", "peak", "messages");
  for (const auto& r : sweep.results)
    text += fmt::format("{:<10} {:<16} {:>5} {:>9} {:<16} {:>11.3f} {:>11.3f} {:>11} {:>11}{} {}\n", r.method, r.layer, r.ranks, r.seq,
                        r.pass, r.time_ms, r.exposed_ms, base::format_bytes(received_bytes(r.ops)), base::format_bytes(r.peak_bytes),
                        r.fits ? " " : "!", calls_of(r));
  for (const auto& r : sweep.results)
    if (!r.fits) {
      text += "! more than the memory of a device\n";
      break;
    }
  for (const auto& c : sweep.crossovers)
    text += fmt::format("{}, {}, {} ranks: from seq {} on, {} needs less {} than {}\n", c.layer, c.pass, c.ranks, c.seq, c.lower,
                        name_of(c.quantity), c.higher);
  std::set<std::string> reasons;  // layers of a block may be refused alike
  for (const auto& r : sweep.refusals)
    if (reasons.insert(r.reason).second) text += fmt::format("left out: {}\n", r.reason);
  return text;
}

}  // namespace ingot::schedule
