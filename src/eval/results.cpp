#include "eval/results.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace ingot::eval {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Estimate> estimates_of(const std::vector<std::string>& metrics, const std::vector<const Item*>& items) {
  std::vector<Estimate> all;
  for (size_t m = 0; m < metrics.size(); ++m) {
    std::vector<Share> shares;
    for (const auto* item : items) shares.push_back(item->shares[m]);
    all.push_back(estimate(shares, measure_named(metrics[m]).scale));
  }
  return all;
}

std::vector<const Item*> pointers(const std::vector<Item>& items) {
  std::vector<const Item*> all;
  for (const auto& item : items) all.push_back(&item);
  return all;
}

Json json_of(const std::vector<std::string>& metrics, const std::vector<Estimate>& estimates) {
  Json all = Json::object();
  for (size_t m = 0; m < metrics.size(); ++m) {
    all[metrics[m]] = {{"value", estimates[m].value}, {"higher_is_better", measure_named(metrics[m]).higher_is_better}};
    all[metrics[m]]["stderr"] = estimates[m].error ? Json(*estimates[m].error) : Json();
  }
  return all;
}

std::string shown(double value) { return std::abs(value) < 1e5 ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value); }

}  // namespace

TaskResult summed(std::string name, std::string kind, std::vector<std::string> metrics,
                  const std::map<uint64_t, std::vector<Item>>& items) {
  TaskResult result;
  result.name = std::move(name), result.kind = std::move(kind), result.metrics = std::move(metrics);
  std::vector<Item> mean;  // over seeds, of each question
  for (const auto& [seed, of_seed] : items) {
    result.seeds.push_back(seed);
    if (items.size() > 1) result.by_seed[seed] = estimates_of(result.metrics, pointers(of_seed));
    if (mean.empty()) {
      mean = of_seed;
    } else {
      for (size_t i = 0; i < mean.size(); ++i)
        for (size_t m = 0; m < result.metrics.size(); ++m) {
          mean[i].shares[m].value += of_seed[i].shares[m].value;
          mean[i].shares[m].weight += of_seed[i].shares[m].weight;
        }
    }
    for (auto item : of_seed) {
      if (items.size() > 1) item.details["seed"] = seed;
      result.each.push_back(std::move(item));
    }
  }
  result.items = static_cast<int64_t>(mean.size());
  result.estimates = estimates_of(result.metrics, pointers(mean));
  add_groups(result, "source", mean, [](const Item& item) { return item.source; });
  return result;
}

void add_groups(TaskResult& result, const std::string& by, const std::vector<Item>& items,
                const std::function<std::string(const Item&)>& name_of) {
  std::vector<std::pair<std::string, std::vector<const Item*>>> groups;
  for (const auto& item : items) {
    const auto name = name_of(item);
    if (name.empty()) continue;
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == name; });
    if (found == groups.end()) found = groups.insert(groups.end(), {name, {}});
    found->second.push_back(&item);
  }
  for (const auto& [name, members] : groups)
    result.groups.push_back({by, name, static_cast<int64_t>(members.size()), estimates_of(result.metrics, members)});
}

Json json_of(const TaskResult& r) {
  Json json = {{"task", r.name}, {"kind", r.kind}, {"items", r.items}, {"shots", r.shots}, {"seeds", r.seeds}};
  json["metrics"] = json_of(r.metrics, r.estimates);
  if (!r.by_seed.empty()) {
    json["by_seed"] = Json::array();
    for (const auto& [seed, estimates] : r.by_seed) json["by_seed"].push_back({{"seed", seed}, {"metrics", json_of(r.metrics, estimates)}});
  }
  json["groups"] = Json::array();
  for (const auto& group : r.groups)
    json["groups"].push_back(
        {{"by", group.by}, {"name", group.name}, {"items", group.items}, {"metrics", json_of(r.metrics, group.estimates)}});
  if (!r.positions.empty()) {
    json["loss_by_position"] = Json::array();
    for (const auto& p : r.positions)
      json["loss_by_position"].push_back({{"from", p.from},
                                          {"to", p.to},
                                          {"tokens", p.tokens},
                                          {"loss", p.loss.value},
                                          {"stderr", p.loss.error ? Json(*p.loss.error) : Json()}});
  }
  json["counts"] = r.counts;
  json["seconds"] = r.seconds;
  return json;
}

std::string table_of(const std::vector<TaskResult>& results) {
  std::vector<std::array<std::string, 5>> rows = {{"task", "items", "metric", "value", "std. error"}};
  std::vector<size_t> bars = {0};  // rows behind which a line is drawn
  const auto add = [&](const std::string& name, int64_t items, const std::vector<std::string>& metrics, const std::vector<Estimate>& all) {
    for (size_t m = 0; m < metrics.size(); ++m)
      rows.push_back({m == 0 ? name : "", m == 0 ? std::to_string(items) : "", metrics[m], shown(all[m].value),
                      all[m].error ? shown(*all[m].error) : "-"});
  };
  for (const auto& r : results) {
    add(r.name + (r.shots > 0 ? fmt::format(" ({} shots)", r.shots) : ""), r.items, r.metrics, r.estimates);
    for (const auto& [seed, estimates] : r.by_seed) add(fmt::format("  seed {}", seed), r.items, r.metrics, estimates);
    for (const auto& group : r.groups) add(fmt::format("  {} {}", group.by, group.name), group.items, r.metrics, group.estimates);
    for (const auto& p : r.positions)
      rows.push_back({fmt::format("  tokens behind {}-{}", p.from, p.to), std::to_string(p.tokens), "loss", shown(p.loss.value),
                      p.loss.error ? shown(*p.loss.error) : "-"});
    bars.push_back(rows.size() - 1);
  }
  std::array<size_t, 5> widths{};
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("{:<{}}  {:>{}}  {:<{}}  {:>{}}  {:>{}}\n", rows[i][0], widths[0], rows[i][1], widths[1], rows[i][2], widths[2],
                        rows[i][3], widths[3], rows[i][4], widths[4]);
    if (i + 1 < rows.size() && std::find(bars.begin(), bars.end(), i) != bars.end())
      text += std::string(widths[0] + widths[1] + widths[2] + widths[3] + widths[4] + 8, '-') + "\n";
  }
  for (const auto& r : results)
    if (const auto cut = r.counts.find("cut_contexts"); cut != r.counts.end() && cut->second > 0)
      text += fmt::format("{}: of {} prompts the beginning was cut off, since the model sees no more\n", r.name, cut->second);
  for (const auto& r : results)
    if (const auto without = r.counts.find("without_system"); without != r.counts.end())
      text +=
          fmt::format("{}: of {} prompts the system's message was left out, which the chat template refuses\n", r.name, without->second);
  return text;
}

std::string lines_of(const std::vector<TaskResult>& results) {
  std::string lines;
  for (const auto& r : results)
    for (const auto& item : r.each) {
      Json line = {{"task", r.name}, {"row", item.where}};
      if (!item.source.empty()) line["source"] = item.source;
      line.update(item.details);
      for (size_t m = 0; m < r.metrics.size(); ++m)
        if (measure_named(r.metrics[m]).scale == Scale::plain) line[r.metrics[m]] = item.shares[m].value;
      lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
  return lines;
}

}  // namespace ingot::eval
