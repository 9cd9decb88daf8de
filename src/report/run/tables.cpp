#include "report/run/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/text.h"
#include "report/page/html.h"
#include "report/plots/palette.h"
#include "report/run/summary.h"

namespace ingot::report {
namespace {

constexpr std::string_view kDash = "–";
// Errors of a prediction above this are marked.
constexpr double kLargeError = 0.1;
constexpr size_t kLongCell = 20;  // characters from which on it may take more than a line

std::string count_text(double value) { return value > 0 ? base::format_count(value) : std::string(kDash); }
std::string integer_text(double value) { return std::isfinite(value) ? grouped(static_cast<int64_t>(value)) : std::string(kDash); }
std::string bytes_text(double bytes) {
  return bytes > 0 && bytes < 0x1p62 ? base::format_bytes(static_cast<int64_t>(bytes)) : std::string(kDash);
}
std::string percent_text(double fraction) { return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : std::string(kDash); }
std::string duration_text(double seconds) { return std::isfinite(seconds) ? base::format_duration(seconds) : std::string(kDash); }
std::string step_time_text(double ms) {
  if (!std::isfinite(ms)) return std::string(kDash);
  return ms >= 1e4 ? number(ms / 1e3) + " s" : number(ms) + " ms";
}

std::string run_name(const std::vector<RunData>& runs, size_t run) {
  return fmt::format("<span class=\"dot {}\"></span>{}", colour_class(run), escape(runs[run].name));
}

struct Row {
  std::string name;  // HTML
  std::function<std::string(const RunData&, const Summary&)> text;
};

bool all_unknown(const std::vector<std::string>& cells) {
  return std::all_of(cells.begin(), cells.end(), [](const auto& cell) { return cell == kDash; });
}

// Rows that no run knows are left out; "" when that leaves none.
std::string card(const std::vector<RunData>& runs, const std::vector<Summary>& summaries, std::string_view title,
                 const std::vector<Row>& rows) {
  std::string body;
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < runs.size(); ++i) cells.push_back(row.text(runs[i], summaries[i]));
    if (all_unknown(cells)) continue;
    body += fmt::format("<tr><th scope=\"row\">{}</th>", row.name);
    for (const auto& cell : cells) body += fmt::format("<td{}>{}</td>", cell.size() > kLongCell ? " class=\"long\"" : "", escape(cell));
    body += "</tr>\n";
  }
  if (body.empty()) return "";
  std::string head;
  if (runs.size() > 1) {
    head = "<thead><tr><td></td>";
    for (size_t i = 0; i < runs.size(); ++i) head += fmt::format("<th scope=\"col\">{}</th>", run_name(runs, i));
    head += "</tr></thead>";
  }
  return fmt::format("<section class=\"card\"><h2>{}</h2><div class=\"scroll\"><table>{}<tbody>\n{}</tbody></table></div></section>\n",
                     title, head, body);
}

std::string error_cell(double error) {
  if (!std::isfinite(error)) return fmt::format("<td>{}</td>", kDash);
  return fmt::format("<td{}>{}</td>", std::abs(error) > kLargeError ? " class=\"far\"" : "", signed_percent(error));
}

std::string prediction_card(const std::vector<RunData>& runs, const std::vector<Summary>& summaries) {
  std::string body;
  const auto row = [&](const std::string& what, size_t run, double predicted, double measured, std::string (*text)(double)) {
    if (!std::isfinite(predicted)) return;
    body += fmt::format("<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td>{}</tr>\n", what,
                        runs.size() > 1 ? ", " + run_name(runs, run) : "", text(predicted), text(measured),
                        error_cell(predicted / measured - 1));
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    const Summary& s = summaries[i];
    row("step time", i, s.predicted_step_ms, s.step_ms, step_time_text);
    row("step time, calibrated by earlier runs", i, s.calibrated_step_ms, s.step_ms, step_time_text);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const Summary& s = summaries[i];
    row("peak memory", i, s.predicted_memory_bytes, s.memory_bytes, bytes_text);
    row("peak memory, calibrated by earlier runs", i, s.calibrated_memory_bytes, s.memory_bytes, bytes_text);
  }
  if (body.empty()) return "";
  return "<section class=\"card\"><h2>Predicted beside measured</h2><div class=\"scroll\"><table><thead><tr><td></td><th "
         "scope=\"col\">predicted</th>"
         "<th scope=\"col\">measured</th><th scope=\"col\">error</th></tr></thead><tbody>\n" +
         body + "</tbody></table></div></section>\n";
}

std::string fact(const RunData& run, std::string_view name) {
  const auto found = std::find_if(run.facts.begin(), run.facts.end(), [&](const auto& entry) { return entry.first == name; });
  return found == run.facts.end() || found->second.empty() ? std::string(kDash) : found->second;
}

std::string verdict(const RunData& run, const Summary& s) {
  if (run.metrics.step.empty()) return "no step has been recorded.";
  const bool finished = s.last_step >= s.planned_steps;
  auto text = finished ? fmt::format("finished all {} steps", integer_text(s.last_step))
                       : fmt::format("is at step {}{}", integer_text(s.last_step),
                                     std::isfinite(s.planned_steps) ? " of " + integer_text(s.planned_steps) : "");
  if (std::isfinite(s.final_loss)) text += fmt::format("; loss {} → <b>{}</b>", number(s.first_loss), number(s.final_loss));
  if (std::isfinite(s.best_validation))
    text += fmt::format(", best validation loss <b>{}</b> at step {}", number(s.best_validation), integer_text(s.best_validation_step));
  if (std::isfinite(s.tokens_per_s)) text += fmt::format("; <b>{}</b> tokens/s", count_text(s.tokens_per_s));
  if (std::isfinite(s.mfu)) text += fmt::format(" at {} MFU", percent_text(s.mfu));
  std::vector<std::string> errors;
  if (std::isfinite(s.step_error())) errors.push_back("step time " + signed_percent(s.step_error()));
  if (std::isfinite(s.memory_error())) errors.push_back("memory " + signed_percent(s.memory_error()));
  if (!errors.empty()) text += "; prediction errors: " + base::join(errors, ", ");
  return text + ".";
}

std::string pairs_table(const NamedTexts& pairs) {
  std::string out = "<div class=\"scroll\"><table class=\"pairs\"><tbody>\n";
  for (const auto& [name, value] : pairs)
    out += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value));
  return out + "</tbody></table></div>\n";
}

std::string differing_settings(const std::vector<RunData>& runs) {
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, value] : runs[i].settings) values.try_emplace(name, runs.size(), std::string(kDash)).first->second[i] = value;
  }
  std::string body;
  for (const auto& [name, cells] : values) {
    if (std::equal(cells.begin() + 1, cells.end(), cells.begin())) continue;
    body += fmt::format("<tr><th scope=\"row\">{}</th>", escape(name));
    for (const auto& cell : cells) body += fmt::format("<td>{}</td>", escape(cell));
    body += "</tr>\n";
  }
  if (body.empty()) return runs.size() > 1 ? "<p>All runs have the same settings.</p>\n" : "";
  std::string head;
  for (size_t i = 0; i < runs.size(); ++i) head += fmt::format("<th scope=\"col\">{}</th>", run_name(runs, i));
  return fmt::format("<div class=\"scroll\"><table class=\"differ\"><thead><tr><td></td>{}</tr></thead><tbody>\n{}</tbody></table></div>\n",
                     head, body);
}

}  // namespace

std::string verdicts(const std::vector<RunData>& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    out += fmt::format("<p class=\"verdict\"><span class=\"run r-{}\">{}</span> {}</p>\n", i, run_name(runs, i),
                       verdict(runs[i], summarise(runs[i].metrics)));
  }
  return out;
}

namespace {

// The rows of each card.
std::vector<Row> size_rows() {
  return {
      {"model", [](const RunData& run, const Summary&) { return fact(run, "model"); }},
      {"parameters", [](const RunData& run, const Summary&) { return count_text(run.parameters); }},
      {"… active per token", [](const RunData& run, const Summary&) { return count_text(run.active_parameters); }},
      {"precision", [](const RunData& run, const Summary&) { return fact(run, "precision"); }},
      {"ranks", [](const RunData& run, const Summary&) { return fact(run, "ranks"); }},
      {"device", [](const RunData& run, const Summary&) { return fact(run, "device"); }},
  };
}

std::vector<Row> result_rows() {
  return {
      {"steps",
       [](const RunData&, const Summary& s) {
         return integer_text(s.last_step) +
                (std::isfinite(s.planned_steps) && s.planned_steps != s.last_step ? " of " + integer_text(s.planned_steps) : "");
       }},
      {"tokens", [](const RunData&, const Summary& s) { return count_text(s.tokens); }},
      {"final loss", [](const RunData&, const Summary& s) { return number(s.final_loss); }},
      {"… mean of the last 2 %", [](const RunData&, const Summary& s) { return number(s.recent_loss); }},
      {"best validation loss", [](const RunData&, const Summary& s) { return number(s.best_validation); }},
      {"… at step", [](const RunData&, const Summary& s) { return integer_text(s.best_validation_step); }},
      {"time in steps", [](const RunData&, const Summary& s) { return duration_text(s.training_s); }},
  };
}

std::vector<Row> speed_rows() {
  return {
      {"tokens/s, median", [](const RunData&, const Summary& s) { return count_text(s.tokens_per_s); }},
      {"step time, median", [](const RunData&, const Summary& s) { return step_time_text(s.step_ms); }},
      {"… 95th percentile", [](const RunData&, const Summary& s) { return step_time_text(s.slow_step_ms); }},
      {"TFLOP/s per rank", [](const RunData&, const Summary& s) { return s.tflops > 0 ? number(s.tflops) : std::string(kDash); }},
      {"MFU", [](const RunData&, const Summary& s) { return percent_text(s.mfu); }},
      {"peak memory", [](const RunData&, const Summary& s) { return bytes_text(s.memory_bytes); }},
      {"expert imbalance",
       [](const RunData&, const Summary& s) {
         return std::isfinite(s.expert_imbalance) ? fmt::format("{:.2f} ×", s.expert_imbalance) : std::string(kDash);
       }},
  };
}

std::vector<Row> health_rows() {
  return {
      {"restarts", [](const RunData& run, const Summary&) { return grouped(static_cast<int64_t>(run.metrics.restarts.size())); }},
      {"skipped steps", [](const RunData& run, const Summary&) { return grouped(run.metrics.lines.skipped); }},
      {"steps with NaN or Inf", [](const RunData& run, const Summary&) { return grouped(run.metrics.lines.nonfinite); }},
      {"unreadable lines", [](const RunData& run, const Summary&) { return grouped(run.metrics.lines.unreadable); }},
      {"warnings in the log", [](const RunData& run, const Summary&) { return grouped(run.log_warning_count); }},
  };
}

}  // namespace

std::string headline_tables(const std::vector<RunData>& runs) {
  std::vector<Summary> summaries;
  for (const auto& run : runs) summaries.push_back(summarise(run.metrics));
  // A card needs room for one more column with every run.
  return fmt::format("<div class=\"cards\" style=\"--card:{}px\">\n", 200 + 100 * std::min<size_t>(runs.size(), 8)) +
         card(runs, summaries, "Result", result_rows()) + card(runs, summaries, "Speed", speed_rows()) + prediction_card(runs, summaries) +
         card(runs, summaries, "Size", size_rows()) + card(runs, summaries, "Health", health_rows()) + "</div>\n";
}

std::string source_tables(const std::vector<RunData>& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto sources = summarise_sources(runs[i].metrics);
    double all = 0;
    for (const auto& source : sources) all += source.tokens;
    std::string body;
    for (const auto& source : sources)
      body +=
          fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(source.name),
                      number(source.first_loss), number(source.recent_loss), count_text(source.tokens), percent_text(source.tokens / all));
    if (body.empty()) continue;
    out += fmt::format(
        "<div class=\"scroll r{}\"><table><thead><tr><td>{}</td><th scope=\"col\">loss, first tenth</th><th scope=\"col\">loss, last "
        "tenth</th><th scope=\"col\">tokens</th><th scope=\"col\">share</th></tr></thead><tbody>\n{}</tbody></table></div>\n",
        i, runs.size() > 1 ? run_name(runs, i) : "", body);
  }
  return out;
}

std::string settings_tables(const std::vector<RunData>& runs) {
  std::string out = differing_settings(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto fold = [&](std::string_view what, const NamedTexts& pairs) {
      if (!pairs.empty())
        out += fmt::format("<details><summary>{} of {}</summary>\n{}</details>\n", what, run_name(runs, i), pairs_table(pairs));
    };
    fold("All settings", runs[i].settings);
    fold("Facts", runs[i].facts);
    fold("Machine profile", runs[i].profile);
  }
  return out;
}

std::string file_remarks(const std::vector<RunData>& runs) {
  constexpr size_t kMaxRestarts = 50;
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    std::string items = fmt::format("<li>{} lines of metrics.jsonl, {} steps shown</li>\n", grouped(run.metrics.lines.total),
                                    grouped(static_cast<int64_t>(run.metrics.step.size())));
    for (const auto& remark : run.remarks) items += fmt::format("<li class=\"far\">{}</li>\n", escape(remark));
    for (size_t k = 0; k < std::min(kMaxRestarts, run.metrics.restarts.size()); ++k) {
      const auto& restart = run.metrics.restarts[k];
      items += fmt::format("<li>before step {}: {}</li>\n", integer_text(restart.step), escape(restart.what));
    }
    if (run.metrics.restarts.size() > kMaxRestarts)
      items += fmt::format("<li>… and {} more restarts</li>\n", run.metrics.restarts.size() - kMaxRestarts);
    if (run.log_warning_count > 0) {
      items += fmt::format("<li>warnings and errors in log.txt: {}", grouped(run.log_warning_count));
      if (static_cast<size_t>(run.log_warning_count) > run.log_warnings.size())
        items += fmt::format("; the last {}:", run.log_warnings.size());
      items += "<pre>";
      for (const auto& line : run.log_warnings) items += escape(line) + "\n";
      items += "</pre></li>\n";
    }
    out += fmt::format("<h3>{}</h3><ul>\n{}</ul>\n", run_name(runs, i), items);
  }
  return out;
}

}  // namespace ingot::report
