// Colours of runs and methods: eight that people with any common colour blindness tell apart (after Okabe and Ito, with darker yellow
// and sky blue for white paper), each in a light and a dark form. The values are in the style sheet; here are their numbers.
#pragma once

#include <cstddef>
#include <string>

namespace ingot::report {

inline constexpr size_t kColours = 8;
inline size_t colour_of(size_t run) { return run % kColours; }
/// Classes of the style sheet: the ninth to sixteenth have the colours again, with square points; then all comes over again.
inline std::string colour_class(size_t run) { return "c" + std::to_string(colour_of(run)) + (run / kColours % 2 == 1 ? " square" : ""); }

}  // namespace ingot::report
