#include "resilience/trial_exchange.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"

namespace ingot::resilience {
namespace {

using Json = nlohmann::json;

constexpr auto kLookEvery = std::chrono::milliseconds(50);

std::string text_of(const NodeOutcome& o) {
  const Json json = {{"passed", o.passed}, {"failed", o.failed}, {"rank", o.rank}, {"replicas_differ", o.replicas_differ},
                     {"odd", o.odd},       {"what", o.what}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

NodeOutcome outcome_of(const std::string& text) {
  try {
    const auto json = Json::parse(text);
    return {.passed = json.at("passed").get<bool>(),
            .failed = json.at("failed").get<int64_t>(),
            .rank = json.at("rank").get<int64_t>(),
            .replicas_differ = json.at("replicas_differ").get<bool>(),
            .odd = json.at("odd").get<int64_t>(),
            .what = json.at("what").get<std::string>()};
  } catch (const Json::exception&) {
    return {.what = "it has failed, and what was said of it cannot be read"};
  }
}

}  // namespace

std::string TrialExchange::name(int64_t trial, size_t node) const { return fmt::format("trial.{}.{}.{}", round_.number, trial, node); }

std::optional<NodeOutcome> TrialExchange::said(int64_t trial, size_t node) const {
  const auto text = store_->get(name(trial, node));
  return text ? std::optional(outcome_of(*text)) : std::nullopt;
}

std::string TrialExchange::failure_elsewhere(int64_t trial) const {
  for (size_t i = 0; i < round_.nodes.size(); ++i) {
    if (i == round_.own) continue;
    const auto& host = round_.nodes[i].host;
    const auto outcome = said(trial, i);
    if (outcome && !outcome->passed) return fmt::format("node {} ({}): {}", i, host, outcome->what);
    if (!outcome && !is_there_(round_.nodes[i])) return fmt::format("node {} ({}) is lost", i, host);
  }
  return "";
}

std::optional<std::vector<NodeOutcome>> TrialExchange::agree(int64_t trial, const NodeOutcome& own, const std::function<bool()>& stop,
                                                             std::chrono::duration<double> limit) const {
  store_->put(name(trial, round_.own), text_of(own));
  const auto start = std::chrono::steady_clock::now();
  std::vector<NodeOutcome> all;
  while (all.size() < round_.nodes.size()) {
    const size_t node = all.size();
    if (node == round_.own) {
      all.push_back(own);
    } else if (auto outcome = said(trial, node)) {
      all.push_back(*std::move(outcome));
    } else {
      const bool is_lost = !is_there_(round_.nodes[node]);
      if (stop()) return std::nullopt;
      if (is_lost || std::chrono::steady_clock::now() - start > limit) {
        base::log_warning("node {} ({}) {}: what failed is not tried further", node, round_.nodes[node].host,
                          is_lost ? "is lost" : fmt::format("does not say within {:g} s how a trial went", limit.count()));
        return std::nullopt;
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  return all;
}

}  // namespace ingot::resilience
