#include "report/checkpoints/section.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/page/html.h"
#include "report/plots/bar_plot.h"
#include "report/plots/heat_map.h"
#include "report/plots/line_plot.h"
#include "report/plots/palette.h"
#include "report/run/summary.h"

namespace ingot::report {
namespace {

constexpr size_t kMaxRunsDrawn = 4;
// More columns than these need the whole width of the page.
constexpr size_t kColumnsOfNarrowPlot = 24;
constexpr std::string_view kDash = "–";

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return std::string(kDash);
  if (seconds < 0.1) return number(seconds * 1e3) + " ms";
  return seconds < 120 ? number(seconds) + " s" : base::format_duration(seconds);
}

std::string bytes_text(double bytes) {
  return bytes >= 0 && bytes < 0x1p62 ? base::format_bytes(static_cast<int64_t>(bytes)) : std::string(kDash);
}

std::string rate_text(double gb_per_s) {
  if (!std::isfinite(gb_per_s)) return std::string(kDash);
  return gb_per_s < 0.1 ? number(gb_per_s * 1e3) + " MB/s" : number(gb_per_s) + " GB/s";
}
std::string step_text(double step) { return text_of({step, step}); }

double rate(double bytes, double seconds) { return seconds > 0 ? bytes / seconds / 1e9 : SaveTimes::kUnknown; }

double largest(const std::vector<double>& values) { return quantile(values, 1); }

// Each phase takes what it says of what is left of the total, so that a bar is never higher than the total; the last part is what no
// phase explains. Without a total it is the sum.
std::vector<double> parts_of(double total_s, const std::vector<double>& phases_s) {
  std::vector<double> parts;
  double left_s = std::isnan(total_s) ? INFINITY : total_s;
  for (const double phase_s : phases_s) {
    parts.push_back(std::isnan(phase_s) ? 0 : std::min(phase_s, left_s));
    left_s -= parts.back();
  }
  parts.push_back(std::isinf(left_s) ? 0 : left_s);
  return parts;
}

double height_of(const Bar& bar) {
  double sum = 0;
  for (const double part : bar.heights) sum += part;
  return sum;
}

std::string failure_text(const std::string& failure) { return failure.empty() ? "no reason is given" : failure; }

std::string tooltip_of(const SaveStretch& stretch) {
  const auto& save = stretch.slowest;
  std::string out;
  if (stretch.saves > 1)
    out = fmt::format("{} saves, steps {}\n", grouped(stretch.saves), text_of(Span{stretch.first_step, stretch.last_step}));
  if (stretch.failed > 0) {
    out +=
        stretch.saves == 1 ? fmt::format("step {}: ", step_text(stretch.first_step)) : fmt::format("{} of them ", grouped(stretch.failed));
    out += "failed: " + failure_text(stretch.failure) + "\n";
  }
  if (std::isnan(save.step)) return out;
  out += fmt::format("{}step {}: {} for {}, {}\n", stretch.saves > 1 ? "the slowest, " : "", step_text(save.step),
                     seconds_text(save.total_s), bytes_text(save.bytes), rate_text(rate(save.bytes, save.total_s)));
  if (save.slowest_rank >= 0) {
    out += fmt::format("rank {}, the slowest of {}: plan {}, copy {}, hash and write {} (hash {}), sync {}\n", grouped(save.slowest_rank),
                       grouped(save.ranks), seconds_text(save.plan_s), seconds_text(save.copy_s), seconds_text(save.write_s),
                       seconds_text(save.hash_s), seconds_text(save.sync_s));
  }
  return out +
         fmt::format("commit, with waiting for all ranks, {}; training waited {}", seconds_text(save.commit_s), seconds_text(save.stall_s));
}

std::string tooltip_of(const LoadTimes& load) {
  auto out = fmt::format("step {}: {}, read {} of {} wanted, {}\n", step_text(load.step), seconds_text(load.total_s),
                         bytes_text(load.read_bytes), bytes_text(load.wanted_bytes), rate_text(rate(load.read_bytes, load.total_s)));
  if (!load.ok) out += "failed: " + failure_text(load.failure) + "\n";
  if (load.slowest_rank >= 0) {
    out += fmt::format("rank {}, the slowest of {}: plan {}, read {}, exchange {}\n", grouped(load.slowest_rank), grouped(load.ranks),
                       seconds_text(load.plan_s), seconds_text(load.read_s), seconds_text(load.exchange_s));
  }
  return out + "from " + load.from;
}

// Seconds or milliseconds, and the axis that fits.
void finish(BarPlot& plot) {
  std::vector<Series> tops(1);
  for (const auto& bar : plot.bars) {
    for (const double value : {height_of(bar), bar.tick}) {
      tops[0].curve.x.push_back(0);
      tops[0].curve.y.push_back(value);
    }
  }
  const bool seconds = largest(tops[0].curve.y) >= 0.5;
  plot.unit = seconds ? "s" : "ms";
  if (!seconds) {
    for (auto& bar : plot.bars) {
      for (double& height : bar.heights) height *= 1e3;
      for (double* value : {&bar.beside_from, &bar.beside_to, &bar.tick}) *value *= 1e3;
    }
    for (double& value : tops[0].curve.y) value *= 1e3;
  }
  plot.y = y_axis(tops, {.from_zero = true, .clip = 0.01});
  const auto beyond = std::count_if(plot.bars.begin(), plot.bars.end(), [&](const Bar& bar) { return height_of(bar) > plot.y.high; });
  if (beyond > 0) plot.note += fmt::format("{}{} beyond the frame", plot.note.empty() ? "" : " · ", grouped(beyond));
  plot.wide = plot.bars.size() > kColumnsOfNarrowPlot;
}

std::string save_bars(const std::vector<SaveStretch>& stretches, const std::string& title, size_t run) {
  BarPlot plot{.title = title,
               .unit = "",
               .x_label = "step of the save",
               .note = "",
               .parts = {{"plan", "c6"}, {"hash and write", "c0"}, {"sync", "c5"}, {"commit", "c2"}, {"other", "other"}},
               .beside = {"copy, meanwhile", "c3"},
               .tick_name = "training waited",
               .bars = {},
               .y = {},
               .run = run};
  bool joined = false;
  for (const auto& stretch : stretches) {
    joined = joined || stretch.saves > 1;
    const auto& save = stretch.slowest;
    auto& bar = plot.bars.emplace_back(Bar{.x = {stretch.first_step, stretch.last_step}, .heights = {}});
    bar.failed = stretch.failed > 0;
    if (stretch.after_load) bar.mark = fmt::format("a checkpoint was loaded before step {}", step_text(stretch.first_step));
    bar.text = tooltip_of(stretch);
    if (std::isnan(save.step)) continue;
    bar.heights = parts_of(save.total_s, {save.plan_s, save.write_s, save.sync_s, save.commit_s});
    const auto known = [](double seconds) { return std::isnan(seconds) ? 0 : seconds; };
    const double height = height_of(bar);
    bar.beside_from = std::min(known(save.plan_s), height);
    bar.beside_to = std::min(known(save.plan_s) + known(save.copy_s), height);
    bar.tick = known(save.stall_s);
  }
  if (joined) plot.note = "each bar is the slowest of several saves";
  finish(plot);
  return render(plot);
}

std::string rate_map(const std::vector<SaveStretch>& stretches, const SaveHistory& history, const std::string& title, size_t run) {
  size_t rows = 0;
  for (const auto& stretch : stretches) rows = std::max(rows, stretch.gb_per_s.size());
  HeatMap map{.title = title,
              .note = "bytes over writing and syncing; slow is strong",
              .x_label = "step of the save",
              .y_label = "rank",
              .rows = std::vector(rows, std::vector<double>(stretches.size(), SaveTimes::kUnknown)),
              .unit = "GB/s",
              .run = run,
              .low_is_strong = true,
              .wide = stretches.size() > kColumnsOfNarrowPlot};
  std::vector<double> all;
  bool joined = history.ranks_per_row > 1;
  for (size_t column = 0; column < stretches.size(); ++column) {
    const auto& stretch = stretches[column];
    joined = joined || stretch.saves > 1;
    map.column_spans.push_back({stretch.first_step, stretch.last_step});
    for (size_t row = 0; row < stretch.gb_per_s.size(); ++row) {
      map.rows[row][column] = stretch.gb_per_s[row];
      if (std::isfinite(stretch.gb_per_s[row])) all.push_back(stretch.gb_per_s[row]);
    }
  }
  // Of a single rank the bars say all.
  if (all.empty() || history.ranks < 2) return "";
  for (size_t row = 0; row < rows; ++row) {
    const auto first = static_cast<int64_t>(row) * history.ranks_per_row;
    map.row_spans.push_back({static_cast<double>(first), static_cast<double>(std::min(first + history.ranks_per_row, history.ranks) - 1)});
  }
  if (joined) map.note += "; a cell is the slowest of its ranks and saves";
  // The scale begins at nothing, so that ranks of about the same rate look the same.
  map.high = quantile(std::move(all), 0.95);
  return render(map);
}

std::string load_bars(const Checkpoints& checkpoints, const std::string& title, size_t run) {
  BarPlot plot{.title = title,
               .unit = "",
               .x_label = "step of the checkpoint",
               .note = "",
               .parts = {{"plan", "c6"}, {"read", "c0"}, {"exchange", "c3"}, {"other", "other"}},
               .beside = {},
               .tick_name = "",
               .bars = {},
               .y = {},
               .run = run};
  for (const auto& load : checkpoints.loads) {
    auto& bar = plot.bars.emplace_back(
        Bar{.x = {load.step, load.step}, .heights = parts_of(load.total_s, {load.plan_s, load.read_s, load.exchange_s})});
    bar.failed = !load.ok;
    bar.text = tooltip_of(load);
  }
  if (checkpoints.load_count > static_cast<int64_t>(checkpoints.loads.size()))
    plot.note = fmt::format("the last {} of {}", checkpoints.loads.size(), grouped(checkpoints.load_count));
  finish(plot);
  return render(plot);
}

// A small table of one value per column and row; "" without columns.
struct Column {
  std::string head;  // HTML
  std::vector<std::string> cells;
  std::vector<bool> warns{};
};

std::string card(std::string_view title, const std::vector<std::string>& names, const std::vector<Column>& columns) {
  if (columns.empty()) return "";
  std::string out = fmt::format("<section class=\"card\"><h2>{}</h2><div class=\"scroll\"><table><thead><tr><td></td>", title);
  for (const auto& column : columns) out += fmt::format("<th scope=\"col\">{}</th>", column.head);
  out += "</tr></thead><tbody>\n";
  for (size_t row = 0; row < names.size(); ++row) {
    out += fmt::format("<tr><th scope=\"row\">{}</th>", names[row]);
    for (const auto& column : columns)
      out +=
          fmt::format("<td{}>{}</td>", row < column.warns.size() && column.warns[row] ? " class=\"far\"" : "", escape(column.cells[row]));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div></section>\n";
}

std::string head_of(const std::vector<RunData>& runs, size_t run, std::string_view where) {
  if (runs.size() == 1) return std::string(where);
  return fmt::format("<span class=\"dot {}\"></span>{}{}{}", colour_class(run), escape(runs[run].name), where.empty() ? "" : ", ", where);
}

std::string save_table(const std::vector<RunData>& runs) {
  std::vector<Column> columns;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const bool memory : {false, true}) {
      const auto& history = memory ? runs[run].checkpoints.memory : runs[run].checkpoints.folder;
      if (history.saves == 0) continue;
      columns.push_back({head_of(runs, run, memory ? "memory" : "folder"),
                         {grouped(history.saves), grouped(history.failed), bytes_text(quantile(history.bytes, 0.5)),
                          seconds_text(quantile(history.total_s, 0.5)), seconds_text(largest(history.total_s)),
                          seconds_text(quantile(history.stall_s, 0.5)), seconds_text(largest(history.stall_s)),
                          rate_text(quantile(history.gb_per_s, 0.5))},
                         {false, history.failed > 0}});
    }
  }
  return card("Saves",
              {"saves", "… failed", "bytes, median", "until complete, median", "… worst", "training waited, median", "… worst",
               "rate of all ranks, median"},
              columns);
}

std::string load_table(const std::vector<RunData>& runs) {
  std::vector<Column> columns;
  for (size_t run = 0; run < runs.size(); ++run) {
    const auto& loads = runs[run].checkpoints.loads;
    if (loads.empty()) continue;
    const auto& last = loads.back();
    columns.push_back(
        {head_of(runs, run, runs.size() == 1 ? "the last" : ""),
         {grouped(runs[run].checkpoints.load_count), step_text(last.step), seconds_text(last.total_s), bytes_text(last.wanted_bytes),
          bytes_text(last.read_bytes), bytes_text(last.received_bytes), rate_text(rate(last.read_bytes, last.total_s))}});
  }
  return card("Loads",
              {"loads", "last one: step", "… took", "… wanted by all ranks", "… read from storage", "… received from other ranks",
               "… rate of reading"},
              columns);
}

std::string failures(const std::vector<RunData>& runs) {
  std::string items;
  for (const auto& run : runs) {
    for (const auto& failed : run.checkpoints.failed_saves) {
      items += fmt::format("<li>{}step {}, {}: <span class=\"far\">{}</span></li>\n", runs.size() == 1 ? "" : escape(run.name) + ", ",
                           step_text(failed.step), failed.in_memory ? "memory" : "folder", escape(failure_text(failed.failure)));
    }
  }
  return items.empty() ? "" : "<h3>Saves that failed last</h3><ul>\n" + items + "</ul>\n";
}

constexpr std::string_view kKey =
    "<p class=\"key\">A bar is one save, from the call until the checkpoint was complete, with the phases of its slowest rank; copying "
    "goes "
    "on while blocks are hashed and written. Line across: so long training waited. ▾&nbsp;a checkpoint was loaded. ✕&nbsp;failed.</p>\n";

}  // namespace

std::string checkpoint_section(const std::vector<RunData>& runs) {
  const auto drawn =
      static_cast<size_t>(std::count_if(runs.begin(), runs.end(), [](const RunData& run) { return !run.checkpoints.empty(); }));
  if (drawn == 0) return "";
  std::string out = fmt::format("<div class=\"cards\" style=\"--card:{}px\">\n{}{}</div>\n", runs.size() == 1 ? 400 : 600, save_table(runs),
                                load_table(runs)) +
                    failures(runs) + std::string(kKey);
  // The page has room for one run at full detail.
  const size_t columns = kMaxSaveStretches / std::min(drawn, kMaxRunsDrawn);
  size_t shown = 0;
  for (size_t run = 0; run < runs.size() && shown < kMaxRunsDrawn; ++run) {
    const auto& checkpoints = runs[run].checkpoints;
    if (checkpoints.empty()) continue;
    const auto named = [&](std::string_view title) { return std::string(title) + (runs.size() > 1 ? ", " + runs[run].name : ""); };
    out += fmt::format("<div class=\"plots level r{}\">\n", run);
    const auto folder = checkpoints.folder.joined(columns), memory = checkpoints.memory.joined(columns);
    out += save_bars(folder, named("Saves to the folder"), run);
    out += rate_map(folder, checkpoints.folder, named("Rate of each rank, to the folder"), run);
    out += save_bars(memory, named("Saves to memory"), run);
    out += rate_map(memory, checkpoints.memory, named("Rate of each rank, to memory"), run);
    out += load_bars(checkpoints, named("Loads"), run) + "</div>\n";
    ++shown;
  }
  if (drawn > shown) out += fmt::format("<p class=\"key\">Drawn for the first {} runs only.</p>\n", shown);
  return out;
}

}  // namespace ingot::report
