// What the benchmarks of this folder share: contenders that are timed by turns, and the table that they make.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

struct Contender {
  std::string name;
  double flop;
  std::function<void()> run;
  std::vector<double> seconds = {};
};

// Wall time, or the processor time of all threads: with one thread that is what a quiet machine's wall time would be.
inline bool is_processor_time = false;

inline double now_s() {
  timespec time{};
  clock_gettime(is_processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

inline double seconds_of(const std::function<void()>& run) {
  const double begin = now_s();
  run();
  return now_s() - begin;
}

inline void measure(std::vector<Contender>& contenders, int rounds) {
  for (int round = -2; round < rounds; ++round)  // two to warm up
    for (auto& contender : contenders) {
      const double seconds = seconds_of(contender.run);
      if (round >= 0) contender.seconds.push_back(seconds);
    }
  for (auto& contender : contenders) {
    auto& seconds = contender.seconds;
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    fmt::print("| {:34} | {:9.2f} | {:8.2f}–{:.2f} | {:7.1f} |\n", contender.name, median * 1e3, seconds.front() * 1e3,
               seconds.back() * 1e3, contender.flop / median * 1e-9);
  }
  std::fflush(stdout);
}
