// Whether a step's loss or gradient norm is a spike, as the steps before it tell: above their median by more than `sigmas` standard
// deviations, each estimated from the median of the distances (1.4826 MAD), which spikes hardly move. (OLMo 2, arXiv 2501.00656, skips the
// steps above mean and deviations of the last 128; a mean follows the spikes.)
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace ingot::train {

class SpikeWatch {
 public:
  static constexpr int64_t kFewest = 32;  // steps before which nothing is a spike

  /// `window`: steps that are looked back on. After `limit` spikes in a row they are no spikes but another level, and the watch begins
  /// anew.
  SpikeWatch(double sigmas, int64_t window, int64_t limit) : sigmas_(sigmas), window_(window), limit_(limit) {}

  /// Takes a step with finite numbers. What is a spike about it, as in "loss 9.31, the 128 steps before have 4.02 ± 0.05"; "" when nothing
  /// is. The numbers of spikes are not kept.
  std::string take(double loss, double grad_norm);

  /// What a checkpoint keeps of it, so that a run that goes on decides as one that was never stopped.
  std::string to_json() const;
  /// Throws CheckpointError for what is no such record.
  void restore(const std::string& json, const std::string& origin);

 private:
  std::string spike_in(const char* what, const std::deque<double>& before, double value) const;

  double sigmas_;
  int64_t window_, limit_;
  std::deque<double> losses_, norms_;
  int64_t in_a_row_ = 0;
};

}  // namespace ingot::train
