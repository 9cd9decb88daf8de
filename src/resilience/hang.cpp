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

std::optional<Hang> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                              const std::function<std::optional<Divergence>()>& divergence) {
  const double limit = limit_of(ranks, limits.silence_s);
  if (limits.silence_s == 0) return std::nullopt;
  std::vector<const WatchedRank*> silent;
  for (const auto& rank : ranks)
    if ((rank.pulse.process != 0 && rank.pulse.is_settled && rank.pulse.age_s > limit) || rank.stopped_s > limit) silent.push_back(&rank);
  const auto hang = [](const WatchedRank& r, const std::string& how) {
    const double silent_s = std::max(r.pulse.is_settled ? r.pulse.age_s : 0, r.stopped_s);
    return Hang{
        .rank = r.rank,
        .description = fmt::format("rank {} (process {}) hangs {}: {}; silent for {:.1f} s", r.rank, r.pulse.process,
                                   r.pulse.step > 0 ? fmt::format("in step {}", r.pulse.step) : "before its first step", how, silent_s),
        .silent_s = silent_s};
  };
  const auto is_stopped = [](const WatchedRank* r) { return r->state == 'T' || r->state == 't'; };
  if (const auto found = std::find_if(silent.begin(), silent.end(), is_stopped); found != silent.end())
    return hang(**found, fmt::format("its process is stopped (SIGSTOP, or a debugger){}", last_of(**found)));
  if (const auto found = std::find_if(silent.begin(), silent.end(), [](const auto* r) { return !r->pulse.is_waiting; });
      found != silent.end())
    return hang(**found, (*found)->state == 'D' ? fmt::format("it waits for the kernel, as for storage{}", last_of(**found))
                                                : fmt::format("it does not wait for other ranks but works on{}", last_of(**found)));
  if (silent.empty() || silent.size() < ranks.size()) return std::nullopt;  // they wait for one that is not silent yet
  const auto& first = *silent.front();
  const auto together = [&](const std::string& what) {
    return Hang{.rank = -1, .description = fmt::format("{}, for {:.1f} s", what, first.pulse.age_s), .silent_s = first.pulse.age_s};
  };
  if (const auto found = divergence ? divergence() : std::nullopt) {
    const auto odd = std::find_if(ranks.begin(), ranks.end(), [&](const auto& r) { return r.rank == found->ranks.front(); });
    if (found->ranks.size() == 1) return hang(*odd, "it left the common path, " + found->description);
    return together("ranks that do not do the same wait for each other: " + found->description);
  }
  if (!limits.is_whole_job) return std::nullopt;

  // A message that one end waits for, and the other is elsewhere: it is missing, or one too many.
  for (const auto* rank : silent) {
    const auto peer = std::find_if(ranks.begin(), ranks.end(), [&](const auto& r) { return r.rank == rank->pulse.message_peer; });
    if (peer == ranks.end() || peer->pulse.message_peer >= 0) continue;
    return together(fmt::format("rank {} (process {}) waits in {}, rank {} (process {}) in {}", rank->rank, rank->pulse.process,
                                rank->pulse.operation, peer->rank, peer->pulse.process, peer->pulse.operation));
  }
  std::map<std::string, std::vector<const WatchedRank*>> by_operation;
  for (const auto* rank : silent) by_operation[rank->pulse.operation].push_back(rank);
  if (by_operation.size() == 1)
    return together(fmt::format("all ranks wait in {}: what carries their bytes stands still", first.pulse.operation));
  const auto [fewest, most] = std::minmax_element(by_operation.begin(), by_operation.end(),
                                                  [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (fewest->second.size() < most->second.size())
    return hang(*fewest->second.front(),
                fmt::format("it waits in {}, rank {} in {}", fewest->first, most->second.front()->rank, most->first));
  std::string each;
  for (const auto* rank : silent) each += fmt::format("{}rank {} in {}", each.empty() ? "" : ", ", rank->rank, rank->pulse.operation);
  return together("all ranks wait for each other: " + each);
}

}  // namespace ingot::resilience
