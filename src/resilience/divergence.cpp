#include "resilience/divergence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace ingot::resilience {
namespace {

using Place = std::pair<int64_t, int64_t>;  // period and index
using comm::BegunOperation;

Place place_of(const BegunOperation& operation) { return {operation.period, operation.index}; }

struct Doing {
  std::string what;
  int64_t step = 0;
  std::vector<int> ranks;
};

std::string in_words(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? fmt::format("rank {}", ranks[0]) : fmt::format("ranks {}", ranks);
}

// What each rank did at a place; a rank that has gone past it without a collective there did nothing; one that is not there yet, or whose
// memory does not reach back, is not asked.
std::map<uint64_t, Doing> doings_at(const Place& place, const std::vector<const RankHistory*>& ranks) {
  std::map<uint64_t, Doing> doings;
  for (const auto* rank : ranks) {
    const auto& operations = rank->operations;
    const auto at = std::lower_bound(operations.begin(), operations.end(), place,
                                     [](const BegunOperation& operation, const Place& p) { return place_of(operation) < p; });
    if (at == operations.end() || (at == operations.begin() && place_of(*at) != place)) continue;
    const bool is_there = place_of(*at) == place;
    auto& doing = doings[is_there ? at->identity : 0];
    doing.what = is_there ? at->what : "no collective more";
    doing.step = is_there ? at->step : std::prev(at)->step;
    doing.ranks.push_back(rank->rank);
  }
  return doings;
}

std::optional<std::pair<Place, Divergence>> first_of(const std::vector<const RankHistory*>& ranks) {
  std::set<Place> places;
  for (const auto* rank : ranks)
    for (const auto& operation : rank->operations) places.insert(place_of(operation));
  for (const auto& place : places) {
    const auto doings = doings_at(place, ranks);
    if (doings.size() < 2) continue;
    std::vector<Doing> fewest_first;
    for (const auto& [identity, doing] : doings) fewest_first.push_back(doing);
    std::stable_sort(fewest_first.begin(), fewest_first.end(),
                     [](const Doing& a, const Doing& b) { return a.ranks.size() < b.ranks.size(); });
    Divergence found;
    const auto most = fewest_first.back().ranks.size();
    const bool is_decided = fewest_first[fewest_first.size() - 2].ranks.size() < most;
    std::string text;
    for (const auto& doing : fewest_first) {
      if (!is_decided || doing.ranks.size() < most) found.ranks.insert(found.ranks.end(), doing.ranks.begin(), doing.ranks.end());
      text += fmt::format("{}{} began {}", text.empty() ? "" : ", ", in_words(doing.ranks), doing.what);
    }
    found.description = fmt::format("{} as collective {} of step {}", text, place.second, fewest_first.back().step);
    return std::pair{place, found};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Divergence> find_divergence(const std::vector<RankHistory>& histories) {
  std::map<int64_t, std::vector<const RankHistory*>> by_role;
  for (const auto& history : histories) by_role[history.role].push_back(&history);
  std::optional<std::pair<Place, Divergence>> first;
  for (const auto& [role, ranks] : by_role)
    if (auto found = first_of(ranks); found && (!first || found->first < first->first)) first = std::move(found);
  if (!first) return std::nullopt;
  return first->second;
}

}  // namespace ingot::resilience
