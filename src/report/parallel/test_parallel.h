// For tests: results as `ingot bench parallel` writes them.
#pragma once

#include <string>
#include <vector>

#include "schedule/sweep.h"

namespace ingot::report {

/// tp, sp and tp2+sp4 over 8 ranks at 8K, 16K and 64K tokens, of a block and of attention; sp does not fit at 64K, and tp2+sp4 was refused
/// at 16K. No number appears twice.
inline schedule::SweepResult parallel_sweep() {
  schedule::SweepResult sweep;
  int64_t next = 0;
  for (const char* layer : {"block", "attention"}) {
    for (const char* method : {"tp", "sp", "tp2+sp4"}) {
      for (const int64_t seq : {8192, 16384, 65536}) {
        ++next;
        if (method == std::string("tp2+sp4") && seq == 16384) continue;
        schedule::Result result{.method = method, .layer = layer, .ranks = 8, .seq = seq, .batch = 1, .pass = "both"};
        result.time_ms = 1.0 / 3 + static_cast<double>(seq + next) / 1000;
        result.exposed_ms = 0.1 * static_cast<double>(next);
        result.peak_bytes = (seq << 14) + next;
        result.fits = !(method == std::string("sp") && seq == 65536);
        result.ops["all_gather"] = {next + 100, seq * 1000 + next, seq * 2000 + next};
        if (method == std::string("tp")) result.ops["all_reduce"] = {next + 200, 64, 64};
        sweep.results.push_back(result);
      }
    }
  }
  sweep.crossovers.push_back({"sp", "tp", "attention", 8, "both", schedule::Quantity::time, 32768});
  sweep.crossovers.push_back({"sp", "tp", "block", 8, "both", schedule::Quantity::received_bytes, 41472});
  sweep.crossovers.push_back({"tp2+sp4", "tp", "block", 8, "both", schedule::Quantity::peak_bytes, 9001});
  sweep.refusals.push_back({"tp2+sp4", 8, 16384, "heads = 6 is not a multiple of 4"});
  return sweep;
}

}  // namespace ingot::report
