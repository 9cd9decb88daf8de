#include "eval/ladder.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "report/page/document.h"
#include "report/page/html.h"

namespace ingot::eval {
namespace {

using Json = nlohmann::ordered_json;
using base::DataError;
using report::escape;

constexpr int64_t kLargestFile = int64_t{64} << 20;
constexpr size_t kMostTasks = 1000, kMostMetrics = 100;

struct Metric {
  std::string name;
  double value = 0;
  std::optional<double> error;
  bool higher_is_better = true;
};

struct Entry {
  std::string task;
  int64_t items = 0, shots = 0;
  std::vector<Metric> metrics;
};

struct Rung {
  std::string name, about;
  std::vector<Entry> entries;
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file.string()) {}

  Rung read() const {
    const auto json = Json::parse(base::read_file(file_, kLargestFile), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("format", Json()) != "ingot-eval-1")
      throw DataError("{} has no results of `ingot eval`; give what --results has written", file_);
    Rung rung{
        .name = text(json, "model"), .about = std::filesystem::path(file_).filename().string() + ", " + text(json, "dtype"), .entries = {}};
    const auto& tasks = member(json, "tasks");
    if (!tasks.is_array() || tasks.size() > kMostTasks) throw DataError("{}: tasks is no list of at most {}", file_, kMostTasks);
    for (const auto& task : tasks) rung.entries.push_back(entry_of(task));
    return rung;
  }

 private:
  const Json& member(const Json& json, const char* name) const {
    if (!json.is_object() || !json.contains(name)) throw DataError("{}: '{}' is missing; evaluate again", file_, name);
    return json.at(name);
  }
  std::string text(const Json& json, const char* name) const {
    const auto& value = member(json, name);
    if (!value.is_string()) throw DataError("{}: '{}' is no text", file_, name);
    return report::shortened(value.get_ref<const std::string&>(), 200);
  }
  double number(const Json& json, const char* name) const {
    const auto& value = member(json, name);
    if (!value.is_number() || !std::isfinite(value.get<double>())) throw DataError("{}: '{}' is no number", file_, name);
    return value.get<double>();
  }
  int64_t count(const Json& json, const char* name) const { return static_cast<int64_t>(std::clamp(number(json, name), 0.0, 1e15)); }

  Entry entry_of(const Json& task) const {
    Entry entry{.task = text(task, "task"), .items = count(task, "items"), .shots = count(task, "shots"), .metrics = {}};
    const auto& metrics = member(task, "metrics");
    if (!metrics.is_object() || metrics.size() > kMostMetrics) throw DataError("{}: metrics of {} are no object", file_, entry.task);
    for (const auto& [name, metric] : metrics.items()) {
      Metric one{.name = report::shortened(name, 100), .value = number(metric, "value"), .error = {}};
      if (!member(metric, "stderr").is_null()) one.error = std::abs(number(metric, "stderr"));
      one.higher_is_better = member(metric, "higher_is_better") == true;
      entry.metrics.push_back(std::move(one));
    }
    return entry;
  }

  std::string file_;
};

// One metric of one task, of the rungs that have it.
struct Row {
  const Rung* rung;
  const Entry* entry;
  const Metric* metric;
};

double half_width(const Metric& metric) { return metric.error ? 1.96 * *metric.error : 0; }

// A dot and its 95 % interval for each row, on one axis.
std::string bars_of(const std::vector<Row>& rows) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& row : rows) {
    low = std::min(low, row.metric->value - half_width(*row.metric));
    high = std::max(high, row.metric->value + half_width(*row.metric));
  }
  if (!(high > low)) low -= 0.5, high += 0.5;
  constexpr double kWidth = 400, kHeight = 24, kMargin = 12;
  const auto x_of = [&](double value) { return kMargin + (value - low) / (high - low) * (kWidth - 2 * kMargin); };
  const double height = kHeight * static_cast<double>(rows.size());
  std::string svg =
      fmt::format(R"(<svg viewBox="0 0 {} {}" width="100%" style="max-width:480px" role="img" aria-label="values with 95 % intervals">)",
                  kWidth, height + 18);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& metric = *rows[i].metric;
    const double y = kHeight * (static_cast<double>(i) + 0.5), x = x_of(metric.value);
    svg += fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="currentColor" stroke-width="2" opacity="0.5"/>)",
                       x_of(metric.value - half_width(metric)), y, x_of(metric.value + half_width(metric)), y);
    svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="currentColor"><title>{}: {}</title></circle>)", x, y,
                       escape(rows[i].rung->name), report::number(metric.value));
  }
  svg += fmt::format(R"(<text x="{}" y="{}" font-size="11" fill="currentColor">{}</text>)", kMargin, height + 13, report::number(low));
  svg += fmt::format(R"(<text x="{}" y="{}" font-size="11" text-anchor="end" fill="currentColor">{}</text></svg>)", kWidth - kMargin,
                     height + 13, report::number(high));
  return svg;
}

std::string section_of(const std::vector<Row>& rows) {
  const auto best = std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.metric->higher_is_better ? a.metric->value < b.metric->value : a.metric->value > b.metric->value;
  });
  std::string html = fmt::format("<figure class=\"wide\"><h3>{} ({} is better)</h3>", escape(rows[0].metric->name),
                                 rows[0].metric->higher_is_better ? "more" : "less");
  html +=
      "<table><thead><tr><th>model</th><th>results</th><th>shots</th><th>items</th><th>value</th><th>95 % "
      "interval</th></tr></thead><tbody>";
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    const auto& m = *row->metric;
    const auto value = report::number(m.value);
    html += fmt::format("<tr><th>{}</th><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", escape(row->rung->name),
                        escape(row->rung->about), row->entry->shots, report::grouped(row->entry->items),
                        row == best && rows.size() > 1 ? "<strong>" + value + "</strong>" : value,
                        m.error ? "± " + report::number(half_width(m)) : "");
  }
  return html + "</tbody></table>" + bars_of(rows) + "</figure>";
}

}  // namespace

std::string ladder_page(const std::vector<std::filesystem::path>& results, const std::string& written) {
  std::vector<Rung> rungs;
  for (const auto& file : results) rungs.push_back(Reader(file).read());
  std::vector<std::pair<std::string, std::string>> asked;  // task and metric, in the order in which they come
  for (const auto& rung : rungs)
    for (const auto& entry : rung.entries)
      for (const auto& metric : entry.metrics)
        if (const auto one = std::pair(entry.task, metric.name); std::find(asked.begin(), asked.end(), one) == asked.end())
          asked.push_back(one);
  std::string body;
  for (const auto& [task, name] : asked) {
    std::vector<Row> rows;
    for (const auto& rung : rungs)
      for (const auto& entry : rung.entries)
        for (const auto& metric : entry.metrics)
          if (entry.task == task && metric.name == name) rows.push_back({&rung, &entry, &metric});
    const bool is_new = body.empty() || body.find("<h2>" + escape(task) + "</h2>") == std::string::npos;
    if (is_new) body += (body.empty() ? "" : "</section>") + std::string("<section><h2>") + escape(task) + "</h2>";
    body += section_of(rows);
  }
  return report::document("Evaluations", written, body.empty() ? "<p>The results have no tasks.</p>" : body + "</section>");
}

}  // namespace ingot::eval
