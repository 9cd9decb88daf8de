#include "resilience/retry_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace ingot::resilience {
namespace {

constexpr double kDay = 86400;

// How many attempts, counted from the last one, came no further than those before them.
int64_t without_progress(const std::vector<FailedAttempt>& attempts) {
  int64_t count = 0;
  for (size_t i = attempts.size(); i-- > 1;) {
    int64_t before = 0;
    for (size_t j = 0; j < i; ++j) before = std::max(before, attempts[j].step);
    if (attempts[i].step > before) break;
    ++count;
  }
  return count;
}

}  // namespace

const char* name_of(Cause cause) {
  switch (cause) {
    case Cause::crash: return "crash";
    case Cause::killed: return "killed";
    case Cause::hang: return "hang";
    case Cause::elsewhere: return "elsewhere";
    case Cause::unfit: return "unfit";
    case Cause::usage: return "usage";
    case Cause::stopped: return "stopped";
  }
  return "unknown";
}

Retry after(const std::vector<FailedAttempt>& attempts, const RetryLimits& limits) {
  const auto& last = attempts.back();
  const auto restarts = static_cast<int64_t>(attempts.size()) - 1;
  if (last.cause == Cause::usage) return {.why = "it was called wrongly, which starting again would only repeat"};
  if (last.cause == Cause::stopped) return {.why = "it was asked to stop"};
  if (restarts >= limits.restarts)
    return {.why = restarts == 0 ? "no restarts are allowed (--max-restarts)"
                                 : fmt::format("given up after {} restart{}", restarts, restarts == 1 ? "" : "s")};
  const auto recent = std::count_if(attempts.begin() + 1, attempts.end(), [&](const auto& a) { return a.started_s > last.ended_s - kDay; });
  if (limits.restarts_per_day > 0 && recent >= limits.restarts_per_day)
    return {.why = fmt::format("{} restarts within a day are as many as --restarts-per-day allows", recent)};
  if (attempts.size() > 1) {
    const auto& before = attempts[attempts.size() - 2];
    if (last.cause == Cause::crash && before.cause == Cause::crash && last.step > 0 && last.step == before.step &&
        last.signature == before.signature)
      return {.why = fmt::format("step {} failed twice in the same way, so it is no accident: a third time would fail, too", last.step),
              .is_deterministic = true};
  }
  const auto stuck = without_progress(attempts);
  if (stuck == 0) return {.restarts = true, .why = "at once"};
  const double pause = std::min(limits.longest_pause_s, std::exp2(static_cast<double>(std::min<int64_t>(stuck, 30)) - 1));
  return {.restarts = true, .pause_s = pause, .why = fmt::format("in {:g} s, since it came no further than before", pause)};
}

std::string signature_of(int exit_status, const std::string& last_line) {
  std::string text = fmt::format("status {}: ", exit_status);
  bool in_number = false;
  for (const char c : last_line) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) text += c;
    else if (!in_number) text += '#';
    in_number = is_digit;
  }
  return text;
}

}  // namespace ingot::resilience
