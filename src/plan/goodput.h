// What failures leave of a run's time: work is saved every so often, a failure throws the run back to what was saved last, and starting
// again takes its time. Failures come at random, each as likely at any time (a Poisson process); they may come while the run starts again,
// too.
//
// Between two saves: E[time] = exp(l R) (exp(l (w + c)) - 1) / l, for w seconds of work, a save that stalls for c, restarts of R and l
// failures a second (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006, Eq. 13 with lost
// restarts).
#pragma once

#include <cstdint>

namespace ingot::plan {

struct Reliability {
  double device_mtbf_h = 0;  // of one device with its share of node, network and software; 0: nothing fails
  int64_t devices = 1;
  double restart_s = 0;     // until the run computes again, noticing the failure included
  double save_stall_s = 0;  // what a save keeps the step waiting
  double failures_per_s() const { return device_mtbf_h > 0 ? static_cast<double>(devices) / (device_mtbf_h * 3600) : 0; }
};

/// Of a run's time, the share that goes into steps whose work is kept, when it saves after every `work_s` seconds of steps. 0 when the
/// run does not come forward. Throws ConfigError for what cannot be.
double expected_goodput(const Reliability& reliability, double work_s);

/// The work between saves with the highest goodput, in (0, 1e9] s.
double best_save_interval_s(const Reliability& reliability);

/// The same by drawing failures until `saves` saves were made: the share, for comparison with expected_goodput.
double drawn_goodput(const Reliability& reliability, double work_s, int64_t saves, uint64_t seed);

}  // namespace ingot::plan
