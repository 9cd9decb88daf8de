#include "resilience/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ingot::resilience {
namespace {

constexpr double kShortest = 120, kTimesLongestGap = 20;

double limit_of(const std::vector<WatchedRank>& ranks, double silence_s) {
  if (silence_s >= 0) return silence_s;
  double longest = 0;
  for (const auto& rank : ranks) longest = std::max(longest, rank.pulse.longest_gap_s);
  return std::max(kShortest, kTimesLongestGap * longest);
}

std::string last_of(const WatchedRank& rank) { return rank.pulse.operation.empty() ? "" : fmt::format(" after {}", rank.pulse.operation); }

}  // namespace

std::optional<Hang> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits) {
  const double limit = limit_of(ranks, limits.silence_s);
  if (limits.silence_s == 0) return std::nullopt;
  std::vector<const WatchedRank*> silent;
  for (const auto& rank : ranks)
    if (rank.pulse.process != 0 && rank.pulse.is_settled && rank.pulse.age_s > limit) silent.push_back(&rank);
  const auto hang = [](const WatchedRank& r, const std::string& how) {
    return Hang{.rank = r.rank,
                .description = fmt::format("rank {} (process {}) hangs in step {}: {}, silent for {:.1f} s", r.rank, r.pulse.process,
                                           r.pulse.step, how, r.pulse.age_s),
                .silent_s = r.pulse.age_s};
  };
  const auto is_stopped = [](const WatchedRank* r) { return r->state == 'T' || r->state == 't'; };
  if (const auto found = std::find_if(silent.begin(), silent.end(), is_stopped); found != silent.end())
    return hang(**found, fmt::format("its process is stopped (SIGSTOP, or a debugger),{}", last_of(**found)));
  if (const auto found = std::find_if(silent.begin(), silent.end(), [](const auto* r) { return !r->pulse.is_waiting; });
      found != silent.end())
    return hang(**found, (*found)->state == 'D' ? fmt::format("it waits for the kernel, as for storage,{}", last_of(**found))
                                                : fmt::format("it does not wait for other ranks but works on,{}", last_of(**found)));
  if (silent.empty() || silent.size() < ranks.size() || !limits.is_whole_job)
    return std::nullopt;  // they wait for one that is not silent yet

  std::map<std::string, std::vector<const WatchedRank*>> by_operation;
  for (const auto* rank : silent) by_operation[rank->pulse.operation].push_back(rank);
  const auto& first = *silent.front();
  if (by_operation.size() == 1)
    return Hang{.rank = -1,
                .description = fmt::format("all ranks have waited for {:.1f} s in {}: what carries their bytes stands still",
                                           first.pulse.age_s, first.pulse.operation),
                .silent_s = first.pulse.age_s};
  const auto fewest = std::min_element(by_operation.begin(), by_operation.end(),
                                       [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const auto most = std::max_element(by_operation.begin(), by_operation.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return hang(*fewest->second.front(),
              fmt::format("it waits in {}, rank {} in {},", fewest->first, most->second.front()->rank, most->first));
}

}  // namespace ingot::resilience
