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

Retry after(const std::vector<FailedAttempt>& attempts, const RetryLimits& limits) {
  const auto& last = attempts.back();
  const auto restarts = static_cast<int64_t>(attempts.size()) - 1;
  if (last.cause == Cause::usage) return {false, 0, "it was called wrongly, which starting again would only repeat"};
  if (last.cause == Cause::stopped) return {false, 0, "it was asked to stop"};
  if (restarts >= limits.restarts)
    return {false, 0,
            restarts == 0 ? "no restarts are allowed (--max-restarts)"
                          : fmt::format("given up after {} restart{}", restarts, restarts == 1 ? "" : "s")};
  const auto recent = std::count_if(attempts.begin() + 1, attempts.end(), [&](const auto& a) { return a.started_s > last.ended_s - kDay; });
  if (limits.restarts_per_day > 0 && recent >= limits.restarts_per_day)
    return {false, 0, fmt::format("{} restarts within a day are as many as --restarts-per-day allows", recent)};
  if (attempts.size() > 1) {
    const auto& before = attempts[attempts.size() - 2];
    if (last.cause == Cause::crash && before.cause == Cause::crash && last.step > 0 && last.step == before.step &&
        last.signature == before.signature)
      return {false, 0,
              fmt::format("step {} failed twice in the same way, so it is no accident: a third time would fail, too. Look at the failure "
                          "above; other data (data.seed), a lower learning rate, fp32 or another machine tell what it hangs on",
                          last.step)};
  }
  const auto stuck = without_progress(attempts);
  if (stuck == 0) return {true, 0, "at once"};
  const double pause = std::min(limits.longest_pause_s, std::exp2(static_cast<double>(std::min<int64_t>(stuck, 30)) - 1));
  return {true, pause, fmt::format("in {:g} s, since it came no further than before", pause)};
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
