// Colours of runs: eight that people with any common colour blindness tell apart (after Okabe and Ito, with darker yellow and
// sky blue for white paper), each in a light and a dark form. The values are in the style sheet; here are their numbers.
#pragma once

#include <cstddef>

namespace ingot::report {

inline constexpr size_t kColours = 8;
inline size_t colour_of(size_t run) { return run % kColours; }

}  // namespace ingot::report
