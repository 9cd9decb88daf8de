#include "report/data/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "report/data/tokens.h"
#include "report/page/html.h"
#include "report/plots/bar_plot.h"
#include "report/plots/line_plot.h"
#include "report/plots/palette.h"

namespace ingot::report {
namespace {

using Bins = std::vector<data::LengthCounts::Bin>;

constexpr double kPointsPerDecade = 60;

std::string tooltip_of(const Bar& bar, const std::vector<Bins>& bins, const std::vector<BarPart>& parts, size_t number) {
  int64_t documents = 0, tokens = 0;
  std::string each;
  for (size_t part = 0; part < bins.size(); ++part) {
    if (number >= bins[part].size()) continue;
    documents += bins[part][number].documents, tokens += bins[part][number].tokens;
    if (bins.size() > 1) each += fmt::format("\n{}: {}", parts[part].name, grouped(bins[part][number].documents));
  }
  return fmt::format("{} tokens\n{} documents\n{} tokens in all{}", text_of(bar.x), grouped(documents), grouped(tokens), each);
}

// Datasets of the same last name are told apart by their paths.
std::vector<BarPart> parts_of(const std::vector<data::DatasetStatistics>& datasets) {
  std::vector<BarPart> parts;
  std::multiset<std::string> names;
  const auto name_of = [](const auto& dataset) { return std::filesystem::path(dataset.path).filename().string(); };
  for (const auto& dataset : datasets) names.insert(name_of(dataset));
  for (size_t i = 0; i < datasets.size(); ++i)
    parts.push_back({spelled(names.count(name_of(datasets[i])) > 1 ? datasets[i].path : name_of(datasets[i])), colour_class(i)});
  return parts;
}

void mark_rows(const std::vector<data::PackedPhase>& phases, Bar& bar) {
  std::set<int64_t> lengths;
  for (const auto& phase : phases) {
    const auto length = static_cast<double>(phase.seq_len);
    if (length >= bar.x.first && length <= bar.x.last) lengths.insert(phase.seq_len);
  }
  for (const int64_t length : lengths) bar.mark += fmt::format("{}data.seq_len = {}", bar.mark.empty() ? "" : "; ", length);
}

}  // namespace

std::string length_plot(const data::Inspection& inspection) {
  const auto& datasets = inspection.statistics.datasets;
  BarPlot plot{.title = "Lengths of documents",
               .unit = "documents",
               .x_label = "tokens of a document, from this number on",
               .note = inspection.phases.empty() ? "" : "the line is at data.seq_len",
               .parts = parts_of(datasets),
               .beside = {},
               .tick_name = "",
               .bars = {},
               .y = {},
               .wide = true};
  std::vector<Bins> bins;
  size_t count = 0;
  for (const auto& dataset : datasets) count = std::max(count, bins.emplace_back(dataset.lengths.bins()).size());
  double highest = 0;
  for (size_t number = 0; number < count; ++number) {
    auto& bar = plot.bars.emplace_back();
    double height = 0;
    for (const auto& of : bins) {
      const bool is_there = number < of.size();
      if (is_there) bar.x = {static_cast<double>(of[number].from), static_cast<double>(of[number].to)};
      height += bar.heights.emplace_back(is_there ? static_cast<double>(of[number].documents) : 0);
    }
    highest = std::max(highest, height);
    bar.text = tooltip_of(bar, bins, plot.parts, number);
    mark_rows(inspection.phases, bar);
  }
  if (datasets.size() == 1) plot.parts.front().name = "documents";
  plot.y = fitted(0, highest, false, true, Format::count);
  return render(plot);
}

std::string frequency_plot(const data::VocabularyUse& vocabulary) {
  const auto ids = data::by_frequency(vocabulary);
  if (ids.size() < 2) return "";
  Series series{.name = "occurrences", .curve = {}};
  for (double rank = 1; rank < static_cast<double>(ids.size()) + 0.5;
       rank = std::max(rank + 1, rank * std::pow(10, 1 / kPointsPerDecade))) {
    series.curve.x.push_back(std::floor(rank));
    series.curve.y.push_back(static_cast<double>(vocabulary.counts[static_cast<size_t>(ids[static_cast<size_t>(rank) - 1])]));
  }
  Plot plot{.title = "Frequency of tokens by rank",
            .unit = "occurrences",
            .x_label = "rank of the token",
            .note = "both axes are logarithmic; text has nearly a straight line",
            .series = {series},
            .marks = {},
            .x = fitted(1, static_cast<double>(ids.size()), true, false, Format::count),
            .y = fitted(series.curve.y.back(), series.curve.y.front(), true, false, Format::count),
            .tall = true};
  return render(plot);
}

}  // namespace ingot::report
