// Which ranks hold the others up, told from what each of them takes for its own part of a step: time in which it waits for others does not
// count, so that the slow one does not hide behind those that wait for it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/heartbeat.h"

namespace ingot::resilience {

struct RankSteps {
  int rank = 0;
  int64_t role = 0;                    // is compared with others of its role
  std::vector<comm::StepTimes> steps;  // oldest first
  std::string node;                    // "" where there is one only
  std::string remark;                  // what else is known of that node, for the description
};

struct Straggler {
  int rank = 0;
  double own_s = 0, others_s = 0;  // of a step: its median, and the median of the others'
  bool is_data = false;            // of the time for batches; else of computing
  std::string node;
  std::string description;  // "rank 3 on node7 takes 41.2 ms of computing a step, the others 25.8 ms (medians of 16 steps)"
};

/// Names a rank when its last steps but one took longer, each, than kRatio times the median of the others', and that for kSpan_s at least:
/// chance slows one step or another, and not nearly all of them; of short steps a whole window, for a moment. Named again only when its
/// median has been below that meanwhile.
class StragglerWatch {
 public:
  // A rank that takes 1.3 times as long is above 1.2 times in its quickest steps, too, and is named after at most 18 steps.
  static constexpr double kRatio = 1.2, kLeast_s = 1e-3;  // less than a millisecond is nobody's business
  static constexpr size_t kWindow = 16;                   // steps
  static constexpr int64_t kBetween = 3;                  // steps between two looks
  static constexpr double kSpan_s = 1;

  /// Those that are new.
  std::vector<Straggler> look(const std::vector<RankSteps>& ranks);
  /// Ranks that were named and are as fast as the others since the last call.
  std::vector<int> take_recovered();

 private:
  int64_t looked_at_ = 0;              // the last step
  std::set<int> slow_;                 // ranks that are named
  std::map<int, int64_t> slow_since_;  // ranks that are not named yet: the first step of the window that was slow first
  std::vector<int> recovered_;
};

}  // namespace ingot::resilience
