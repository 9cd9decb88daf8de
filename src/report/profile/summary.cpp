#include "report/profile/summary.h"

#include <nlohmann/json.hpp>

#include "report/profile/difference.h"
#include "report/profile/facts.h"

namespace ingot::report {
namespace {

using Json = nlohmann::ordered_json;

Json summary_of(const Measured& machine) {
  const auto& p = machine.profile;
  Json out = {{"name", machine.name}};
  if (machine.has_profile) out["host"] = p.host, out["device"] = p.device, out["date"] = p.date, out["foreign_load"] = p.foreign_load;
  out["best_flops_per_s"] = Json::object();
  for (const auto& dtype : dtypes_of(p))
    if (p.peak_gemm(dtype) > 0) out["best_flops_per_s"][dtype] = p.peak_gemm(dtype);
  out["memory_bytes_per_s"] = p.memory.empty() ? Json(nullptr) : Json(memory_bytes_per_s(p));
  out["cache_steps"] = Json::array();
  for (const auto& step : cache_steps(p.memory, "triad"))
    out["cache_steps"].push_back({{"fits_bytes", step.fits_bytes},
                                  {"exceeds_bytes", step.exceeds_bytes},
                                  {"before_bytes_per_s", step.before_bytes_per_s},
                                  {"after_bytes_per_s", step.after_bytes_per_s}});
  out["attention"] = Json::array();
  for (const auto& c : attention_curves(p))
    out["attention"].push_back({{"dtype", c.dtype},
                                {"pass", c.backward ? "backward" : "forward"},
                                {"head_dim", c.head_dim},
                                {"heads", c.heads},
                                {"kv_heads", c.kv_heads},
                                {"window", c.window},
                                {"best_flops_per_s", c.best_flops_per_s},
                                {"turn_flops_per_byte", c.ridge > 0 ? Json(c.ridge) : Json(nullptr)},
                                {"turn_seq", c.turn_seq ? Json(*c.turn_seq) : Json(nullptr)},
                                {"measured_seq", c.measured_seq ? Json(*c.measured_seq) : Json(nullptr)}});
  out["collectives"] = Json::array();
  for (const auto& l : collective_lines(p))
    out["collectives"].push_back({{"operation", l.operation},
                                  {"dtype", l.dtype},
                                  {"placement", l.placement},
                                  {"ranks", l.ranks},
                                  {"groups", l.groups},
                                  {"latency_s", l.line.latency_s},
                                  {"bytes_per_s", l.line.bytes_per_s},
                                  {"median_error", l.line.median_error},
                                  {"best_bus_bytes_per_s", l.best_bus_bandwidth()},
                                  {"knee_bytes", l.line.knee_bytes}});
  return out;
}

Json json_of(const Difference& one) {
  return {{"section", one.section}, {"what", one.what},     {"ratio", one.ratio()},
          {"first", one.first},     {"second", one.second}, {"unit", one.unit}};
}

}  // namespace

Json profile_summary(const std::vector<Measured>& machines) {
  Json out = {{"machines", Json::array()}};
  for (const auto& machine : machines) out["machines"].push_back(summary_of(machine));
  if (machines.size() != 2) return out;
  out["warnings"] = comparison_warnings(machines[0], machines[1]);
  const auto all = differences(machines[0], machines[1]);
  out["sections"] = Json::array();
  for (const auto& s : by_section(all))
    out["sections"].push_back({{"section", s.section},
                               {"count", s.count},
                               {"median_ratio", s.median_ratio},
                               {"worst", json_of(s.worst)},
                               {"best", json_of(s.best)}});
  out["differences"] = Json::array();
  for (const auto& one : all) out["differences"].push_back(json_of(one));
  return out;
}

}  // namespace ingot::report
