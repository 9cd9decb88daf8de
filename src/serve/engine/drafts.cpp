#include "serve/engine/drafts.h"

#include <algorithm>

namespace ingot::serve {
namespace {

constexpr int64_t kRuns[] = {3, 2};  // lengths of runs that are looked for, the longest first
constexpr int64_t kLongestPause = 32;

uint64_t hash_of(std::span<const int64_t> run) {
  uint64_t hash = run.size();
  for (const int64_t id : run) {
    hash = (hash ^ static_cast<uint64_t>(id)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  return hash;
}

std::span<const int64_t> run_before(std::span<const int64_t> ids, int64_t end, int64_t tokens) {
  return ids.subspan(static_cast<size_t>(end - tokens), static_cast<size_t>(tokens));
}

}  // namespace

std::vector<int64_t> Lookup::drafts(std::span<const int64_t> ids, int64_t most) {
  const auto length = static_cast<int64_t>(ids.size());
  std::vector<int64_t> found;
  for (; read_ < length; ++read_)  // runs that end before the newest token
    for (const int64_t tokens : kRuns)
      if (read_ >= tokens) last_[hash_of(run_before(ids, read_, tokens))] = read_;
  for (const int64_t tokens : kRuns) {
    if (length <= tokens) continue;
    const auto newest = run_before(ids, length, tokens);
    const auto place = last_.find(hash_of(newest));
    if (place == last_.end() || !std::ranges::equal(newest, run_before(ids, place->second, tokens))) continue;
    // What repeats itself goes on repeating itself: drafts are read behind the text's end, too.
    for (int64_t at = place->second; static_cast<int64_t>(found.size()) < most; ++at)
      found.push_back(at < length ? ids[static_cast<size_t>(at)] : found[static_cast<size_t>(at - length)]);
    break;
  }
  return found;
}

int64_t DraftLength::next() {
  if (left_ == 0) return wanted_;
  --left_;
  return 0;
}

void DraftLength::learn(int64_t drafted, int64_t taken) {
  if (drafted == 0) return;
  if (taken == 0) {
    wanted_ = 1;
    pause_ = std::min(kLongestPause, 2 * pause_ + 1);
    left_ = pause_;
    return;
  }
  pause_ = 0;
  wanted_ = std::min(most_, taken == drafted ? std::max(wanted_, 2 * drafted) : taken + 1);
}

}  // namespace ingot::serve
