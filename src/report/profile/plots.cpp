#include "report/profile/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "report/page/html.h"
#include "report/parallel/group.h"
#include "report/plots/heat_map.h"
#include "report/plots/line_plot.h"
#include "report/profile/facts.h"

namespace ingot::report {
namespace {

// A map of more sizes has cells that nobody can tell apart, one of fewer cells shows nothing.
constexpr size_t kMaxMapSizes = 40, kMinMapCells = 4, kMaxMaps = 60, kMaxPlots = 120;

double d(int64_t x) { return static_cast<double>(x); }

struct Scale {
  std::string unit;
  double factor = 1;
};

Scale scaled(double largest, const char* unit) {
  static constexpr std::pair<double, const char*> kPrefixes[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, prefix] : kPrefixes)
    if (largest >= size) return {prefix + std::string(unit), 1 / size};
  return {unit, 1};
}

Scale seconds_scale(double largest) {
  if (largest < 1e-3) return {"µs", 1e6};
  return largest < 1 ? Scale{"ms", 1e3} : Scale{"s", 1};
}

using Points = std::vector<std::pair<double, double>>;

// What one machine has of one thing: dots, a line through them, and a dashed one beside.
struct Trace {
  Points points, dashed;
};

struct Category {
  std::string name;
  std::vector<Trace> machines;
};

enum class Quantity { rate, bandwidth, time };

struct Group {
  std::string title, note, x_label;
  Format x = Format::bytes;
  Quantity quantity = Quantity::rate;
  bool joined = true;  // dots by a line
  std::vector<Category> categories;
  std::vector<Mark> marks;
};

Curve curve_of(const Points& points, double factor) {
  Curve curve;
  for (const auto& [x, y] : points) {
    curve.x.push_back(x);
    curve.y.push_back(y * factor);
  }
  return curve;
}

struct Line {
  std::string name;
  size_t run = 0;
  const Trace* trace = nullptr;
};

void add_series(Plot& plot, const Line& line, double factor, bool joined, Stroke points) {
  if (!line.trace->dashed.empty())
    plot.series.push_back({line.name + ", fitted", line.run, Stroke::dashed, curve_of(line.trace->dashed, factor)});
  if (line.trace->points.empty()) return;
  const auto curve = curve_of(line.trace->points, factor);
  if (joined) plot.series.push_back({line.name, line.run, Stroke::line, curve});
  plot.series.push_back({line.name, line.run, points, curve});
}

std::string plot_of(const Group& group, const std::string& title, const std::vector<Line>& lines) {
  double largest = 0;
  std::set<double> places;
  for (const auto& line : lines)
    for (const auto& [x, y] : line.trace->points) {
      largest = std::max(largest, y);
      places.insert(x);
    }
  if (places.empty()) return "";
  const auto scale =
      group.quantity == Quantity::time ? seconds_scale(largest) : scaled(largest, group.quantity == Quantity::rate ? "FLOP/s" : "B/s");
  Plot plot{.title = title, .unit = scale.unit, .x_label = group.x_label, .note = group.note, .series = {}, .marks = {}, .x = {}, .y = {}};
  plot.keys = lines.size() > 1;
  plot.scattered = !group.joined;
  for (const auto& line : lines) add_series(plot, line, scale.factor, group.joined, group.joined ? Stroke::dots : Stroke::specks);
  plot.marks = group.marks;
  plot.x = fitted(*places.begin(), *places.rbegin(), *places.rbegin() > *places.begin(), false, group.x);
  plot.y = y_axis(plot.series, {.from_zero = true, .allow_logarithmic = true});
  return render(plot);
}

// One plot of all categories for one machine, one of each category for two.
std::string plots_of(const Group& group, const std::vector<Measured>& machines) {
  std::vector<Line> lines;
  if (machines.size() == 1) {
    for (size_t i = 0; i < group.categories.size(); ++i) lines.push_back({group.categories[i].name, i, &group.categories[i].machines[0]});
    return plot_of(group, group.title, lines);
  }
  std::string out;
  for (const auto& category : group.categories) {
    lines.clear();
    for (size_t i = 0; i < machines.size(); ++i) lines.push_back({machines[i].name, i, &category.machines[i]});
    out += plot_of(group, category.name.empty() ? group.title : group.title + ": " + category.name, lines);
  }
  return out;
}

// The trace of `machine` in the category of that name, which is made where there is none.
Trace& trace_of(Group& group, const std::string& name, size_t machine, size_t machines) {
  for (auto& category : group.categories)
    if (category.name == name) return category.machines[machine];
  group.categories.push_back({name, std::vector<Trace>(machines)});
  return group.categories.back().machines[machine];
}

void sort_points(Group& group) {
  for (auto& category : group.categories)
    for (auto& trace : category.machines) std::stable_sort(trace.points.begin(), trace.points.end());
}

std::vector<std::string> all_dtypes(const std::vector<Measured>& machines) {
  std::vector<std::string> dtypes;
  for (const auto& machine : machines)
    for (const auto& dtype : dtypes_of(machine.profile))
      if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) dtypes.push_back(dtype);
  return dtypes;
}

std::string pass_words(std::string pass) {
  std::replace(pass.begin(), pass.end(), '_', ' ');
  return pass;
}

// Sizes of a GEMM by name: maps are slices along the one with fewest values.
constexpr const char* kSizeNames[] = {"m", "n", "k"};
int64_t size_of(const plan::GemmRate& p, size_t which) { return which == 0 ? p.m : which == 1 ? p.n : p.k; }

// "forward", "grouped forward".
std::string words_of(const plan::GemmRate& p) { return (p.kind == "plain" ? "" : p.kind + " ") + pass_words(p.pass); }

// The same with what tells GEMMs of one map from those of another.
std::string map_title(const plan::GemmRate& p) {
  if (p.kind == "plain") return words_of(p);
  return fmt::format("{}, {} groups{}", words_of(p), grouped(p.groups),
                     p.imbalance > 1 ? fmt::format(", load imbalance {:g}", p.imbalance) : "");
}

std::string maps_of(const std::vector<const plan::GemmRate*>& gemms, const std::string& title, double peak, size_t& maps) {
  std::map<int64_t, size_t> counts[3];
  for (const auto* p : gemms)
    for (size_t i = 0; i < 3; ++i) ++counts[i][size_of(*p, i)];
  const auto varied = [&](size_t i) { return counts[i].size(); };
  size_t slice = 2;
  for (size_t i = 0; i < 3; ++i)
    if (varied(i) < varied(slice)) slice = i;
  const size_t row = slice == 0 ? 2 : 0, column = slice == 1 ? 2 : 1;
  const auto scale = scaled(peak, "FLOP/s");
  std::string out;
  for (const auto& [value, count] : counts[slice]) {
    std::set<int64_t> rows, columns;
    for (const auto* p : gemms)
      if (size_of(*p, slice) == value) rows.insert(size_of(*p, row)), columns.insert(size_of(*p, column));
    if (count < kMinMapCells || rows.size() > kMaxMapSizes || columns.size() > kMaxMapSizes || ++maps > kMaxMaps) continue;
    HeatMap map{.title = fmt::format("{}, {} = {}", title, kSizeNames[slice], grouped(value)),
                .note = {},
                .x_label = kSizeNames[column],
                .y_label = kSizeNames[row],
                .rows = {}};
    map.unit = scale.unit;
    map.high = peak * scale.factor;
    map.rows.assign(rows.size(), std::vector<double>(columns.size(), NAN));
    const auto place = [](const std::set<int64_t>& sizes, int64_t size) {
      return static_cast<size_t>(std::distance(sizes.begin(), sizes.find(size)));
    };
    for (const auto* p : gemms)
      if (size_of(*p, slice) == value)
        map.rows[place(rows, size_of(*p, row))][place(columns, size_of(*p, column))] = p->flops_per_s * scale.factor;
    for (const auto size : rows) map.row_spans.push_back({d(size), d(size)});
    for (const auto size : columns) map.column_spans.push_back({d(size), d(size)});
    out += render(map);
  }
  return out;
}

// A roof from the least intensity on: memory's slope, then the best rate of GEMMs.
Points roof_of(const plan::MachineProfile& profile, const std::string& dtype, double low, double high) {
  const auto balance = plan::balance_of(profile, dtype);
  if (!balance) return {};
  Points roof;
  for (const double x : {low, std::clamp(balance->flops_per_byte(), low, high), high})
    roof.emplace_back(x, std::min(balance->flops_per_s, balance->bytes_per_s * x));
  return roof;
}

std::string roofline(const std::vector<Measured>& machines, const std::string& dtype) {
  Group group{.title = "Roofline, " + dtype,
              .note = "roof: triad and the best GEMM",
              .x_label = {},
              .x = Format::plain,
              .joined = false,
              .categories = {},
              .marks = {}};
  double low = INFINITY, high = 0;
  const auto add = [&](const std::string& name, size_t machine, double x, double y) {
    trace_of(group, name, machine, machines.size()).points.emplace_back(x, y);
    low = std::min(low, x);
    high = std::max(high, x);
  };
  for (size_t i = 0; i < machines.size(); ++i) {
    for (const auto& e : machines[i].profile.gemm)
      if (e.dtype == dtype) add(e.kind == "plain" ? "GEMMs" : e.kind + " GEMMs", i, intensity_of(e), e.flops_per_s);
    for (const auto& e : machines[i].profile.attention) {
      if (e.dtype != dtype) continue;
      add("attention forward", i, intensity_of(e), flops_of(e, false) / e.forward_s);
      add("attention backward", i, intensity_of(e), flops_of(e, true) / e.backward_s);
    }
  }
  if (!(low < high)) return "";
  // The ridge is in the picture, also where every point lies on one side of it.
  for (const auto& machine : machines)
    if (const auto balance = plan::balance_of(machine.profile, dtype)) {
      low = std::min(low, balance->flops_per_byte());
      high = std::max(high, balance->flops_per_byte());
    }
  std::string out;
  const auto draw = [&](const std::string& title, const std::vector<Line>& lines) {
    double largest = 0;
    for (const auto& line : lines)
      for (const auto& [x, y] : line.trace->points) largest = std::max(largest, y);
    std::vector<Points> roofs;
    for (const auto& machine : machines) {
      roofs.push_back(roof_of(machine.profile, dtype, low / 1.5, high * 1.5));
      for (const auto& [x, y] : roofs.back()) largest = std::max(largest, y);
    }
    const auto scale = scaled(largest, "FLOP/s");
    Plot plot{
        .title = title, .unit = scale.unit, .x_label = "FLOPs per byte", .note = group.note, .series = {}, .marks = {}, .x = {}, .y = {}};
    plot.keys = true;
    plot.scattered = true;
    for (size_t i = 0; i < roofs.size(); ++i)
      if (!roofs[i].empty())
        plot.series.push_back({machines.size() == 1 ? "roof" : machines[i].name, machines.size() == 1 ? 6 : i, Stroke::line,
                               curve_of(roofs[i], scale.factor)});
    for (const auto& line : lines) {
      const bool is_many = line.name.ends_with("GEMMs") || title.ends_with("GEMMs");  // attention has few points, which lie among these
      add_series(plot, line, scale.factor, false, is_many ? Stroke::specks : Stroke::dots);
    }
    plot.x = {low / 1.5, high * 1.5, true, Format::plain};
    if (const auto balance = plan::balance_of(machines.front().profile, dtype); machines.size() == 1 && balance)
      plot.marks.push_back({balance->flops_per_byte(), 6, fmt::format("balance: {} FLOPs per byte", number(balance->flops_per_byte()))});
    std::pair<double, double> range{INFINITY, 0};
    for (const auto& series : plot.series)
      for (const double y : series.curve.y) range = {std::min(range.first, y), std::max(range.second, y)};
    plot.y = fitted(range.first, range.second, true, false, Format::plain);
    out += render(plot);
  };
  std::vector<Line> lines;
  if (machines.size() == 1) {
    for (size_t i = 0; i < group.categories.size(); ++i) lines.push_back({group.categories[i].name, i, &group.categories[i].machines[0]});
    draw(group.title, lines);
    return out;
  }
  for (const auto& category : group.categories) {
    lines.clear();
    for (size_t i = 0; i < machines.size(); ++i) lines.push_back({machines[i].name, i, &category.machines[i]});
    draw(group.title + ": " + category.name, lines);
  }
  return out;
}

}  // namespace

std::string short_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) bytes /= 1024, ++unit;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string gemm_maps(const Measured& machine, const std::string& dtype) {
  std::string out;
  size_t maps = 0;
  double best = 0;
  std::map<std::string, std::vector<const plan::GemmRate*>> passes;
  for (const auto& e : machine.profile.gemm)
    if (e.dtype == dtype) passes[map_title(e)].push_back(&e), best = std::max(best, e.flops_per_s);
  for (const auto& [pass, gemms] : passes) out += maps_of(gemms, pass, best, maps);
  return out;
}

std::string gemm_plots(const std::vector<Measured>& machines) {
  std::string out;
  for (const auto& dtype : all_dtypes(machines)) {
    Group group{.title = "GEMMs, " + dtype,
                .note = {},
                .x_label = "FLOPs, 2 m n k",
                .x = Format::count,
                .joined = false,
                .categories = {},
                .marks = {}};
    for (size_t i = 0; i < machines.size(); ++i)
      for (const auto& e : machines[i].profile.gemm)
        if (e.dtype == dtype) trace_of(group, words_of(e), i, machines.size()).points.emplace_back(flops_of(e), e.flops_per_s);
    out += plots_of(group, machines);
  }
  return out;
}

std::string rooflines(const std::vector<Measured>& machines) {
  std::string out;
  for (const auto& dtype : all_dtypes(machines)) out += roofline(machines, dtype);
  return out;
}

std::string memory_plots(const std::vector<Measured>& machines) {
  Group group{.title = "Memory bandwidth",
              .note = {},
              .x_label = "one array",
              .x = Format::bytes,
              .quantity = Quantity::bandwidth,
              .categories = {},
              .marks = {}};
  for (size_t i = 0; i < machines.size(); ++i)
    for (const auto& e : machines[i].profile.memory)
      trace_of(group, e.operation, i, machines.size()).points.emplace_back(d(e.bytes), e.bytes_per_s);
  sort_points(group);
  if (machines.size() == 1)
    for (const auto& step : cache_steps(machines[0].profile.memory, "triad")) {
      const double arrays = arrays_of("triad");
      group.marks.push_back({std::sqrt(d(step.fits_bytes) * d(step.exceeds_bytes)) / arrays, 3, "triad leaves a cache"});
    }
  return plots_of(group, machines);
}

std::string attention_plots(const std::vector<Measured>& machines) {
  std::string out;
  for (const auto& dtype : all_dtypes(machines))
    for (const bool backward : {false, true}) {
      Group group{.title = fmt::format("Attention {}, {}", backward ? "backward" : "forward", dtype),
                  .note = machines.size() == 1 ? "▾ bound by compute from here on" : "",
                  .x_label = "tokens of a sequence",
                  .x = Format::tokens,
                  .categories = {},
                  .marks = {}};
      for (size_t i = 0; i < machines.size(); ++i)
        for (const auto& curve : attention_curves(machines[i].profile)) {
          if (curve.dtype != dtype || curve.backward != backward) continue;
          auto& trace = trace_of(group, curve.name(), i, machines.size());
          if (machines.size() == 1 && curve.turn_seq)
            group.marks.push_back({*curve.turn_seq, group.categories.size() - 1, "bound by compute from here on"});
          for (const auto* p : curve.points)
            trace.points.emplace_back(d(p->seq), flops_of(*p, backward) / (backward ? p->backward_s : p->forward_s));
        }
      out += plots_of(group, machines);
    }
  return out;
}

std::string collective_plots(const std::vector<Measured>& machines) {
  // Plots compare operations in groups of one kind.
  std::vector<std::string> kinds;
  std::map<std::string, std::pair<Group, Group>> groups;
  for (size_t i = 0; i < machines.size(); ++i)
    for (const auto& line : collective_lines(machines[i].profile)) {
      const auto kind = fmt::format("{} rank{}{}, {}", line.ranks, line.ranks == 1 ? "" : "s",
                                    line.groups > 1 ? fmt::format(" × {} groups, {}", line.groups, line.placement) : "", line.dtype);
      if (!groups.contains(kind)) {
        kinds.push_back(kind);
        groups[kind] = {{.title = "Bus bandwidth, " + kind,
                         .note = machines.size() == 1 ? "▾ knee" : "",
                         .x_label = "bytes, as nccl-tests counts them",
                         .quantity = Quantity::bandwidth,
                         .categories = {},
                         .marks = {}},
                        {.title = "Time, " + kind,
                         .note = "dashed: fitted",
                         .x_label = "bytes, as nccl-tests counts them",
                         .quantity = Quantity::time,
                         .categories = {},
                         .marks = {}}};
      }
      auto& [bandwidths, times] = groups[kind];
      auto name = line.operation;
      std::replace(name.begin(), name.end(), '_', ' ');
      auto& bandwidth = trace_of(bandwidths, name, i, machines.size());
      auto& time = trace_of(times, name, i, machines.size());
      for (const auto* p : line.points) {
        bandwidth.points.emplace_back(d(p->bytes), line.bus_bandwidth(*p));
        time.points.emplace_back(d(p->bytes), p->seconds);
      }
      if (line.points.size() < 2) continue;
      if (machines.size() == 1) bandwidths.marks.push_back({line.line.knee_bytes, bandwidths.categories.size() - 1, "knee of " + name});
      // A line in bytes bends on a logarithmic axis.
      const double low = d(line.points.front()->bytes), high = d(line.points.back()->bytes);
      constexpr int kPieces = 40;
      for (int piece = 0; piece <= kPieces; ++piece) {
        const double x = low * std::pow(high / low, d(piece) / kPieces);
        time.dashed.emplace_back(x, line.line.seconds(x));
      }
    }
  std::string out;
  size_t plots = 0;
  for (const auto& kind : kinds) {
    if ((plots += 2 * groups[kind].first.categories.size()) > kMaxPlots) break;
    out += plots_of(groups[kind].first, machines) + plots_of(groups[kind].second, machines);
  }
  return out;
}

}  // namespace ingot::report
