#include "report/run/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "report/page/html.h"
#include "report/plots/heat_map.h"
#include "report/plots/line_plot.h"
#include "report/run/summary.h"

namespace ingot::report {
namespace {

// A curve of up to twice as many points is on the page as it is. Runs share them, so that a page stays under 2 MB.
constexpr size_t kBuckets = 2000, kTallBuckets = 6000;
constexpr size_t kMeans = 200;
constexpr size_t kMaxHeatMaps = 4;
constexpr size_t kMaxHeatColumns = 120;

size_t share(size_t buckets, size_t runs) { return std::max<size_t>(16, buckets / runs); }

// Noisy curves are drawn faintly step by step, and strongly as a running mean, or median where rare extremes are normal.
enum class Smoothing { none, mean, median };

struct Spec {
  const char* title;
  std::string unit;
  Field field;
  Field predicted = Field::count;  // count: none
  double factor = 1;               // from the file's unit to `unit`
  RangeOptions range;
  Smoothing smoothing = Smoothing::none;
  bool zero_is_unknown = false;  // the field is 0 when it was not measured
};

// Runs whose batches differ compare by tokens, others by steps.
bool compare_by_tokens(const std::vector<RunData>& runs) {
  double least = INFINITY, most = 0;
  for (const auto& run : runs) {
    if (run.metrics.step.empty()) continue;
    const double per_step = run.metrics[Field::tokens].back() / run.metrics.step.back();
    if (!(per_step > 0)) return false;
    least = std::min(least, per_step);
    most = std::max(most, per_step);
  }
  return runs.size() > 1 && most > least * 1.01 && std::isfinite(most);
}

Curve curve_of(const RunData& run, Field field, const Spec& spec, bool by_tokens) {
  const auto& x = by_tokens ? run.metrics[Field::tokens] : run.metrics.step;
  const auto& y = run.metrics[field];
  Curve curve;
  for (size_t row = 0; row < y.size(); ++row) {
    if (!std::isfinite(x[row]) || (!curve.x.empty() && x[row] <= curve.x.back())) continue;
    const bool unknown = spec.zero_is_unknown && !(y[row] > 0);
    curve.x.push_back(x[row]);
    curve.y.push_back(unknown ? Summary::kUnknown : y[row] * spec.factor);
  }
  return curve;
}

bool has_values(const Curve& curve) {
  return std::any_of(curve.y.begin(), curve.y.end(), [](double y) { return std::isfinite(y); });
}

Curve without_gaps(const Curve& curve) {
  Curve out;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.y[i])) continue;
    out.x.push_back(curve.x[i]);
    out.y.push_back(curve.y[i]);
  }
  return out;
}

// "predicted" for one run, "small: predicted" for several.
std::string label_of(const std::vector<RunData>& runs, size_t run, std::string_view what) {
  return runs.size() == 1 ? std::string(what) : fmt::format("{}: {}", runs[run].name, what);
}

void add_marks(Plot& plot, const std::vector<RunData>& runs, bool by_tokens) {
  constexpr size_t kMaxMarks = 100;
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto& metrics = runs[run].metrics;
    const size_t stride = (metrics.restarts.size() + kMaxMarks - 1) / kMaxMarks;
    for (size_t i = 0; i < metrics.restarts.size(); i += stride) {
      const auto& restart = metrics.restarts[i];
      if (restart.row >= metrics.step.size()) continue;
      const double x = by_tokens ? metrics[Field::tokens][restart.row] : restart.step;
      plot.marks.push_back(
          {x, run, fmt::format("{}{} before step {:.0f}", runs.size() == 1 ? "" : runs[run].name + ": ", restart.what, restart.step)});
    }
  }
}

// Full-length series thinned out for the page.
std::vector<Series> thinned(const std::vector<Series>& full, Smoothing smoothing, double low, double high, size_t buckets) {
  std::vector<Series> out;
  for (const auto& series : full) {
    Series small{series.name, series.run, series.stroke, min_max(series.curve, low, high, buckets)};
    const bool long_enough = series.curve.x.size() >= 80;
    if (smoothing != Smoothing::none && series.stroke == Stroke::line && long_enough) {
      const size_t stretches = std::min(kMeans, series.curve.x.size() / 4);
      small.stroke = Stroke::faint;
      out.push_back(
          {series.name + (smoothing == Smoothing::mean ? ", running mean" : ", running median"), series.run, Stroke::mean,
           smoothing == Smoothing::mean ? means(series.curve, low, high, stretches) : medians(series.curve, low, high, stretches)});
    }
    out.push_back(std::move(small));
  }
  return out;
}

std::string note_of(const Plot& plot, size_t clipped, size_t stretches) {
  std::vector<std::string> parts;
  if (plot.y.logarithmic) parts.push_back("logarithmic");
  if (clipped > 0)
    parts.push_back(fmt::format("{} value{} beyond the frame", grouped(static_cast<int64_t>(clipped)), clipped == 1 ? "" : "s"));
  if (stretches > 0)
    parts.push_back(fmt::format("the lowest and highest of each of {} stretches", grouped(static_cast<int64_t>(stretches))));
  return base::join(parts, " · ");
}

// The axes are chosen from every value, before the curves are thinned out.
std::string draw(const std::vector<RunData>& runs, const Spec& spec, const std::vector<Series>& full, bool by_tokens, bool tall) {
  Plot plot{.title = spec.title, .unit = spec.unit, .x_label = by_tokens ? "tokens" : "step", .tall = tall};
  const auto [low, high] = x_range(full);
  // Room at the end for the last dot; and a run that starts at step 1 has its axis start at 0.
  plot.x = Axis{low > 0 && low < 0.05 * high ? 0 : low, high + 0.008 * (high - low), false, Format::count};
  plot.y = y_axis(full, spec.range);
  add_marks(plot, runs, by_tokens);
  const auto buckets = share(tall ? kTallBuckets : kBuckets, runs.size());
  plot.series = thinned(full, spec.smoothing, low, high, buckets);
  const bool is_thin = std::any_of(full.begin(), full.end(), [&](const Series& series) { return series.curve.x.size() > 2 * buckets; });
  plot.note = note_of(plot, clipped_points(full, plot.y), is_thin ? buckets : 0);
  return render(plot);
}

std::string line_plot(const std::vector<RunData>& runs, const Spec& spec) {
  std::vector<Series> full;
  for (size_t run = 0; run < runs.size(); ++run) {
    auto measured = curve_of(runs[run], spec.field, spec, false);
    const char* name = spec.predicted == Field::count ? spec.title : "measured";
    if (has_values(measured)) full.push_back({label_of(runs, run, name), run, Stroke::line, std::move(measured)});
    if (spec.predicted == Field::count) continue;
    auto predicted = curve_of(runs[run], spec.predicted, spec, false);
    if (has_values(predicted)) full.push_back({label_of(runs, run, "predicted"), run, Stroke::dashed, std::move(predicted)});
  }
  return full.empty() ? "" : draw(runs, spec, full, false, false);
}

double largest(const std::vector<RunData>& runs, double Summary::*member) {
  double most = 0;
  for (const auto& run : runs) {
    const double value = summarise(run.metrics).*member;
    if (value > most) most = value;
  }
  return most;
}

std::string load_over_steps(const RunData& run, size_t index, bool named) {
  const auto& load = run.metrics.load;
  if (load.empty()) return "";
  size_t layers = 0;
  for (const auto& stretch : load) layers = std::max(layers, stretch.layers.size());
  // Columns of equal width in steps; a stretch fills every column that it reaches into.
  const double first = load.front().first_step, last = load.back().last_step;
  const auto columns =
      static_cast<size_t>(std::clamp(last - first + 1, 1.0, static_cast<double>(std::min(kMaxHeatColumns, 2 * load.size()))));
  std::vector<std::vector<double>> sums(layers, std::vector<double>(columns)), counts = sums;
  const auto column_of = [&](double step) {
    return static_cast<size_t>(
        std::clamp((step - first) / (last - first + 1) * static_cast<double>(columns), 0.0, static_cast<double>(columns - 1)));
  };
  std::vector<double> all;
  for (const auto& stretch : load) {
    for (size_t column = column_of(stretch.first_step); column <= column_of(stretch.last_step); ++column) {
      for (size_t layer = 0; layer < stretch.layers.size(); ++layer) {
        sums[layer][column] += stretch.layers[layer];
        ++counts[layer][column];
      }
    }
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    for (size_t column = 0; column < columns; ++column) {
      sums[layer][column] = counts[layer][column] > 0 ? sums[layer][column] / counts[layer][column] : Summary::kUnknown;
      all.push_back(sums[layer][column]);
    }
  }
  return render(HeatMap{.title = "Busiest expert of each layer" + (named ? ", " + run.name : ""),
                        .note = "load imbalance: tokens of the most loaded expert over the layer's mean",
                        .x_label = "step",
                        .y_label = "MoE layer",
                        .rows = std::move(sums),
                        .low = 1,
                        .high = std::max(1.5, quantile(all, 0.99)),
                        .unit = "× even",
                        .x_low = first,
                        .x_high = std::max(last, first + 1),
                        .x_format = Format::count,
                        .run = index});
}

std::string load_over_experts(const RunData& run, size_t index, bool named) {
  auto rows = run.metrics.expert_tokens;
  size_t experts = 0;
  double most = 1.5;
  for (auto& layer : rows) {
    experts = std::max(experts, layer.size());
    double sum = 0;
    for (const double tokens : layer) sum += tokens;
    for (double& tokens : layer) {
      tokens = sum > 0 ? tokens * static_cast<double>(layer.size()) / sum : 0;
      most = std::max(most, tokens);
    }
  }
  for (auto& layer : rows) layer.resize(experts, Summary::kUnknown);
  return render(HeatMap{.title = "Load of each expert" + (named ? ", " + run.name : ""),
                        .note = "share of its layer's tokens over the last tenth of the run",
                        .x_label = "expert",
                        .y_label = "MoE layer",
                        .rows = std::move(rows),
                        .low = 0,
                        .high = most,
                        .unit = "× even",
                        .run = index});
}

}  // namespace

std::string loss_plot(const std::vector<RunData>& runs) {
  const bool by_tokens = compare_by_tokens(runs);
  const Spec spec{.title = "Loss",
                  .unit = "nats per token",
                  .field = Field::loss,
                  .range = {.allow_logarithmic = true, .clip = 0.015},
                  .smoothing = Smoothing::mean};
  std::vector<Series> full;
  for (size_t run = 0; run < runs.size(); ++run) {
    auto training = curve_of(runs[run], Field::loss, spec, by_tokens);
    auto validation = without_gaps(curve_of(runs[run], Field::validation_loss, spec, by_tokens));
    if (has_values(training)) full.push_back({label_of(runs, run, "training"), run, Stroke::line, std::move(training)});
    if (!validation.x.empty()) full.push_back({label_of(runs, run, "validation"), run, Stroke::dots, std::move(validation)});
  }
  return full.empty() ? "" : draw(runs, spec, full, by_tokens, true);
}

std::string source_plots(const std::vector<RunData>& runs) {
  std::string out;
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto& metrics = runs[run].metrics;
    const auto named = summarise_sources(metrics);
    std::vector<Series> full;
    for (size_t source = 0; source < named.size(); ++source) {
      Curve curve;
      for (const auto& stretch : metrics.source_loss) {
        if (!std::isfinite(stretch.loss(source))) continue;
        curve.x.push_back(stretch.last_step);
        curve.y.push_back(stretch.loss(source));
      }
      if (!curve.x.empty()) full.push_back({shortened(named[source].name, 60), source, Stroke::line, std::move(curve)});
    }
    if (full.empty()) continue;
    const auto title = "Loss of each source" + (runs.size() > 1 ? ", " + runs[run].name : "");
    const auto [low, high] = x_range(full);
    Plot plot{.title = title, .unit = "nats per token", .x_label = "step", .series = full, .tall = true, .keys = true};
    plot.x = Axis{low > 0 && low < 0.05 * high ? 0 : low, high + 0.008 * (high - low), false, Format::count};
    plot.y = y_axis(full, {.allow_logarithmic = true, .clip = 0.015});
    plot.note = note_of(plot, clipped_points(full, plot.y), 0);
    const auto lines = metrics.source_loss.front().lines;
    if (lines > 1) plot.note += fmt::format("{}means over {} steps", plot.note.empty() ? "" : " · ", grouped(lines));
    out += fmt::format("<div class=\"plots r{}\">\n{}</div>\n", run, render(plot));
  }
  return out;
}

std::string small_plots(const std::vector<RunData>& runs) {
  const bool seconds = largest(runs, &Summary::step_ms) > 1e4;
  const bool gib = std::max(largest(runs, &Summary::memory_bytes), largest(runs, &Summary::predicted_memory_bytes)) >= 0x1p30;
  const Spec specs[] = {
      {.title = "Step time",
       .unit = seconds ? "s" : "ms",
       .field = Field::step_ms,
       .predicted = Field::predicted_step_ms,
       .factor = seconds ? 1e-3 : 1,
       .range = {.from_zero = true, .clip = 0.01},
       .smoothing = Smoothing::median,
       .zero_is_unknown = true},
      {.title = "Throughput",
       .unit = "tokens/s",
       .field = Field::tokens_per_s,
       .range = {.from_zero = true, .clip = 0.01, .format = Format::count},
       .smoothing = Smoothing::median,
       .zero_is_unknown = true},
      {.title = "Peak memory",
       .unit = gib ? "GiB" : "MiB",
       .field = Field::memory_peak_bytes,
       .predicted = Field::predicted_memory_bytes,
       .factor = gib ? 0x1p-30 : 0x1p-20,
       .range = {.from_zero = true},
       .zero_is_unknown = true},
      {.title = "Gradient norm",
       .unit = "before clipping",
       .field = Field::grad_norm,
       .range = {.allow_logarithmic = true, .clip = 0.01},
       .smoothing = Smoothing::mean},
      {.title = "Learning rate", .unit = "", .field = Field::lr, .range = {.from_zero = true}},
      {.title = "Expert imbalance",
       .unit = "max / mean",
       .field = Field::expert_imbalance,
       .range = {.clip = 0.01},
       .smoothing = Smoothing::mean,
       .zero_is_unknown = true},
  };
  std::string out;
  for (const auto& spec : specs) out += line_plot(runs, spec);
  return out;
}

std::string evaluation_plots(const std::vector<RunData>& runs) {
  constexpr double kInterval = 1.96;  // standard errors
  std::map<std::pair<std::string, std::string>, std::vector<Series>> by_metric;
  for (size_t run = 0; run < runs.size(); ++run)
    for (const auto& curve : runs[run].metrics.evaluations) {
      auto& series = by_metric[{curve.task, curve.metric}];
      Curve low{curve.step, {}}, high{curve.step, {}};
      for (size_t i = 0; i < curve.step.size(); ++i) {
        low.y.push_back(curve.value[i] - kInterval * curve.error[i]);
        high.y.push_back(curve.value[i] + kInterval * curve.error[i]);
      }
      if (has_values(low)) {
        series.push_back({label_of(runs, run, "interval, low end"), run, Stroke::faint, std::move(low)});
        series.push_back({label_of(runs, run, "interval, high end"), run, Stroke::faint, std::move(high)});
      }
      series.push_back({label_of(runs, run, curve.metric), run, Stroke::line, {curve.step, curve.value}});
    }
  std::string out;
  for (const auto& [name, series] : by_metric)
    if (std::any_of(series.begin(), series.end(), [](const Series& one) { return has_values(one.curve); }))
      out += draw(runs, {.title = name.first.c_str(), .unit = name.second, .field = Field::count}, series, false, false);
  return out;
}

std::string expert_plots(const std::vector<RunData>& runs) {
  std::string out;
  size_t shown = 0;
  for (size_t run = 0; run < runs.size() && shown < kMaxHeatMaps; ++run) {
    if (runs[run].metrics.load.empty()) continue;
    out += fmt::format("<div class=\"plots r{}\">\n{}{}</div>\n", run, load_over_steps(runs[run], run, runs.size() > 1),
                       load_over_experts(runs[run], run, runs.size() > 1));
    ++shown;
  }
  return out;
}

}  // namespace ingot::report
