// Whether a job that failed is started again, and when: decided from its history alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::resilience {

enum class Cause : uint8_t {
  crash,      // a rank exited with an error, or a signal of its own doing ended it
  killed,     // SIGKILL or SIGTERM from outside
  hang,       // ended by the launcher
  elsewhere,  // on another machine, which says why itself
  unfit,      // a rank found that its machine computes wrongly
  usage,      // called wrongly
  stopped,    // a person or a scheduler asked the job to stop
};

/// "crash", "killed" …
const char* name_of(Cause cause);
inline constexpr Cause kCauses[] = {Cause::crash, Cause::killed, Cause::hang, Cause::elsewhere, Cause::unfit, Cause::usage, Cause::stopped};

struct FailedAttempt {
  Cause cause = Cause::crash;
  int64_t step = 0;                   // that failed; 0: before the first, or not known
  std::string signature;              // what tells one failure from another: status and last words, without numbers
  double started_s = 0, ended_s = 0;  // Unix time
};

struct RetryLimits {
  int64_t restarts = 0;          // in all
  int64_t restarts_per_day = 0;  // within 24 hours; 0: no limit of its own
  double longest_pause_s = 60;
};

struct Retry {
  bool restarts = false;
  double pause_s = 0;
  std::string why;                // in words, either way
  bool is_deterministic = false;  // the same failure again: no accident
};

/// After the last of `attempts`, all of which failed.
/// - Wrong calls and jobs that were asked to stop are not started again, nor is one whose limits are reached.
/// - Two crashes in a row in the same step with the same signature are not chance: not started again.
/// - A job that came to a later step than before starts again at once. One that did not waits 1 s, then 2, 4 …
Retry after(const std::vector<FailedAttempt>& attempts, const RetryLimits& limits);

/// Digits become one #, so that addresses, steps and times do not tell equal failures apart.
std::string signature_of(int exit_status, const std::string& last_line);

}  // namespace ingot::resilience
