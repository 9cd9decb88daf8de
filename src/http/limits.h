// What a client may cost.
#pragma once

#include <chrono>
#include <cstddef>

namespace ingot::http {

using Clock = std::chrono::steady_clock;

struct Limits {
  size_t request_bytes = 32 << 10;                    // of a body; a head has up to 64 KiB of it
  Clock::duration request = std::chrono::seconds(5);  // from the connection to the end of the request
  Clock::duration stall = std::chrono::seconds(5);    // that an answer waits for its client in all, and a second for each 16 KiB taken
  Clock::duration answer = std::chrono::hours(24);    // from its first byte on
  size_t connections = 8;                             // answered at once; as many and 128 more wait
  size_t incoming = 64;                               // whose requests are still coming; beyond, the oldest one is closed
};

}  // namespace ingot::http
