// For tests that have a long version.
#pragma once

#include <cstdlib>

namespace ingot::base {

/// Whether the long versions of tests are wanted (scripts/test --night).
inline bool tests_run_at_night() {
  const char* set = std::getenv("INGOT_NIGHT");
  return set != nullptr && *set != '\0';
}

}  // namespace ingot::base
