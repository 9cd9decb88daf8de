#include "report/profile/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "plan/disturbed.h"
#include "plan/message_line.h"
#include "report/page/html.h"
#include "report/profile/facts.h"
#include "report/profile/storage.h"

namespace ingot::report {
namespace {

struct Rate {
  std::string section, what;
  double rate = 0;
  std::string unit;
};

double d(int64_t x) { return static_cast<double>(x); }

std::vector<Rate> rates_of(const plan::MachineProfile& p) {
  std::vector<Rate> out;
  const auto add = [&](std::string section, std::string what, double rate, const char* unit) {
    out.push_back({std::move(section), std::move(what), rate, unit});
  };
  for (const auto& e : p.gemm)
    add("GEMMs " + e.dtype,
        fmt::format("{}{} {}{} × {} × {}{}", e.kind == "plain" ? "" : e.kind + " ", e.pass,
                    e.groups > 1 ? fmt::format("{} × ", e.groups) : "", e.m, e.n, e.k,
                    e.imbalance > 1 ? fmt::format(", imbalance {:g}", e.imbalance) : ""),
        e.flops_per_s, "FLOP/s");
  for (const auto& e : p.memory) add("memory", fmt::format("{} {}", e.operation, base::format_bytes(e.bytes)), e.bytes_per_s, "B/s");
  for (const auto& e : p.attention)
    for (const bool backward : {false, true})
      add("attention " + e.dtype,
          fmt::format("{}, {} tokens, head {}, {}/{} heads, batch {}{}", backward ? "backward" : "forward", e.seq, e.head_dim, e.heads,
                      e.kv_heads, e.batch, e.window > 0 ? fmt::format(", window {}", e.window) : ""),
          flops_of(e, backward) / (backward ? e.backward_s : e.forward_s), "FLOP/s");
  for (const auto& e : p.kernels)
    for (const bool backward : {false, true}) {
      const double seconds = backward ? e.backward_s : e.forward_s;
      if (!(seconds > 0)) continue;
      add("kernels " + e.dtype,
          fmt::format("{} {}, {} × {}{}", e.name, backward ? "backward" : "forward", e.rows, e.width,
                      e.count > 1 ? fmt::format(" × {}", e.count) : ""),
          1 / seconds, "calls/s");
    }
  for (const auto& e : p.collectives)
    add("collectives " + e.dtype,
        fmt::format("{} of {}, {} group{} {}, {}", e.operation, e.ranks, e.groups, e.groups == 1 ? "" : "s", e.placement,
                    base::format_bytes(e.bytes)),
        d(e.bytes) / e.seconds * plan::bus_factor(e.operation, d(e.ranks)), "B/s");
  for (const auto& row : storage_rows(p))
    add("storage", row.what, row.bytes_per_s > 0 ? row.bytes_per_s : row.operations_per_s, row.bytes_per_s > 0 ? "B/s" : "calls/s");
  return out;
}

// Sections as the page orders them.
int place_of(const std::string& section) {
  static const std::vector<std::string> kOrder = {"GEMMs", "memory", "attention", "kernels", "collectives", "storage"};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), section.substr(0, section.find(' '))) - kOrder.begin());
}

}  // namespace

std::vector<Difference> differences(const Measured& first, const Measured& second) {
  std::map<std::pair<std::string, std::string>, double> others;
  for (const auto& r : rates_of(second.profile)) others.emplace(std::pair(r.section, r.what), r.rate);
  std::vector<Difference> out;
  for (const auto& r : rates_of(first.profile)) {
    const auto found = others.find({r.section, r.what});
    if (found == others.end() || !(r.rate > 0)) continue;
    out.push_back({r.section, r.what, r.rate, found->second, r.unit});
    others.erase(found);  // what a file says twice counts once
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.ratio() < b.ratio(); });
  return out;
}

std::vector<SectionDifference> by_section(const std::vector<Difference>& all) {
  std::map<std::pair<int, std::string>, std::vector<const Difference*>> sections;
  for (const auto& one : all) sections[{place_of(one.section), one.section}].push_back(&one);
  std::vector<SectionDifference> out;
  for (const auto& [key, list] : sections) {
    const size_t half = list.size() / 2;  // sorted by ratio
    const double median = list.size() % 2 == 1 ? list[half]->ratio() : (list[half - 1]->ratio() + list[half]->ratio()) / 2;
    out.push_back({key.second, list.size(), median, *list.front(), *list.back()});
  }
  return out;
}

std::vector<std::string> comparison_warnings(const Measured& a, const Measured& b) {
  std::vector<std::string> out;
  if (a.has_profile && b.has_profile) {
    const auto& p = a.profile;
    const auto& q = b.profile;
    const auto differ = [&](const char* what, const std::string& x, const std::string& y) {
      if (x != y) out.push_back(fmt::format("{} differ: {} and {}", what, shortened(x, 100), shortened(y, 100)));
    };
    differ("CPUs", p.cpu, q.cpu);
    differ("devices", p.device, q.device);
    differ("numbers of threads", fmt::format("{}", p.threads), fmt::format("{}", q.threads));
    differ("numbers of ranks that measured side by side", fmt::format("{}", p.ranks), fmt::format("{}", q.ranks));
    differ("numbers of cores", fmt::format("{}", p.cores), fmt::format("{}", q.cores));
    differ("versions of torch", p.torch, q.torch);
    differ("builds of ingot", p.program, q.program);
    differ("dtypes", base::join(dtypes_of(p), ", "), base::join(dtypes_of(q), ", "));
    if (p.quick != q.quick)
      out.push_back(fmt::format("{} is a quick profile: few sizes, each measured for a short time", p.quick ? a.name : b.name));
  } else if (a.has_profile != b.has_profile) {
    out.push_back(fmt::format("{} has collectives only, so nothing else can be compared", a.has_profile ? b.name : a.name));
  } else if (a.descriptions != b.descriptions) {
    out.push_back(fmt::format("ranks or machines differ: {} and {}", base::join(a.descriptions, "; "), base::join(b.descriptions, "; ")));
  }
  for (const auto* one : {&a, &b})
    if (one->profile.foreign_load > plan::kBusyShare)
      out.push_back(fmt::format("other programs used {:.0f} % of the machine while {} was measured, so its rates are too low",
                                100 * one->profile.foreign_load, one->name));
  return out;
}

}  // namespace ingot::report
