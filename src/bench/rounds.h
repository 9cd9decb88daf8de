// A profile from several rounds of the same measurements. The memory of a machine that is shared with others, and the clock of its cores,
// are faster for minutes than for others; a round lasts minutes, so what is the middle of several is of none of them.
#pragma once

#include <vector>

#include "plan/profile.h"

namespace ingot::bench {

/// How often a whole profile of a CPU is measured. Odd, so that the middle is a time that was measured.
constexpr int kRounds = 3;

/// The first profile with each time and rate replaced by the median over the profiles that have the same entry (dtype, sizes and so on).
/// Times within steps (plan/within_steps.h) count as ratios to what their own round's profile gives for them: a slow minute is in both.
/// Of a round that was stopped early, what it has counts. Throws std::invalid_argument when there is no profile.
plan::MachineProfile middle_of(const std::vector<plan::MachineProfile>& rounds);

}  // namespace ingot::bench
