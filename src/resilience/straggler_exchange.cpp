#include "resilience/straggler_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"

namespace ingot::resilience {
namespace {

using Json = nlohmann::json;

std::string name_of(const Node& node) { return fmt::format("steps.{}", node.id); }

Json to_json(const RankSteps& rank) {
  auto steps = Json::array();
  for (const auto& step : rank.steps) steps.push_back({step.step, step.own_s, step.waited_s, step.data_s});
  return {{"rank", rank.rank}, {"role", rank.role}, {"steps", std::move(steps)}};
}

RankSteps rank_of(const Json& json) {
  RankSteps rank{.rank = json.at("rank").get<int>(), .role = json.at("role").get<int64_t>(), .steps = {}, .node = {}, .remark = {}};
  for (const auto& step : json.at("steps"))
    rank.steps.push_back({step.at(0).get<int64_t>(), step.at(1).get<double>(), step.at(2).get<double>(), step.at(3).get<double>()});
  return rank;
}

}  // namespace

void StragglerExchange::begin(const Round& round) {
  round_ = round;
  watch_ = StragglerWatch();
  told_at_ = {};
}

StragglerExchange::News StragglerExchange::look(std::vector<RankSteps> own) {
  const bool is_alone = round_.nodes.size() <= 1;
  if (!is_alone) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_at_ < std::chrono::duration<double>(every_s_)) return {};
    told_at_ = now;
    if (round_.own != 0) {
      tell(own);
      return {};
    }
    for (auto& rank : own) rank.node = round_.nodes[0].host;
    read_others(own);
  }
  News news;
  news.stragglers = watch_.look(own);
  for (auto& found : news.stragglers)
    if (is_alone || found.node == round_.nodes[0].host)
      if (const auto remark = remark_(); !remark.empty()) found.description += "; " + remark;
  for (const int number : watch_.take_recovered()) {
    const auto rank = std::find_if(own.begin(), own.end(), [&](const auto& r) { return r.rank == number; });
    news.recovered.push_back({.rank = number,
                              .own_s = 0,
                              .others_s = 0,
                              .is_data = false,
                              .node = rank != own.end() ? rank->node : "",
                              .description = fmt::format("rank {} is as fast as the others again", number)});
  }
  return news;
}

void StragglerExchange::tell(const std::vector<RankSteps>& own) {
  auto ranks = Json::array();
  for (const auto& rank : own) ranks.push_back(to_json(rank));
  try {
    store_->put(name_of(round_.nodes[round_.own]),
                Json{{"round", round_.number}, {"remark", remark_()}, {"ranks", std::move(ranks)}}.dump());
  } catch (const base::CommError& failure) {  // whoever needs the place to go on says that it is gone
    base::log_debug("{}", failure.what());
  }
}

// What a node has not told yet, or what cannot be read, waits for the next time: nobody is compared with a part of the ranks.
void StragglerExchange::read_others(std::vector<RankSteps>& all) {
  for (size_t i = 1; i < round_.nodes.size(); ++i) {
    const auto& node = round_.nodes[i];
    try {
      const auto text = store_->get(name_of(node));
      if (!text) return all.clear();
      const auto json = Json::parse(*text);
      if (json.at("round").get<int64_t>() != round_.number) return all.clear();
      for (const auto& rank : json.at("ranks")) {
        all.push_back(rank_of(rank));
        all.back().node = node.host;
        all.back().remark = json.at("remark").get<std::string>();
      }
    } catch (const std::exception& failure) {
      base::log_debug("steps of {}: {}", node.host, failure.what());
      return all.clear();
    }
  }
}

}  // namespace ingot::resilience
