// System calls that a signal may interrupt.
#pragma once

#include <cerrno>

namespace ingot::base {

/// Makes a call again as long as a signal interrupts it (EINTR); returns what it returns. Not for calls with a time limit, which would
/// begin anew each time, nor for close, which closes even so.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace ingot::base
