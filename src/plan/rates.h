// How long single operations take on a machine, from its profile, for one compute dtype. Built once from a profile that must
// outlive nothing; then read by any thread.
#pragma once

#include <map>
#include <string>

#include "optim/newton_schulz.h"
#include "plan/profile.h"
#include "plan/surface.h"
#include "plan/within_steps.h"

namespace ingot::plan {

enum class Pass { forward, grad_input, grad_weight };
const char* name_of(Pass pass);

class Rates {
 public:
  /// dtype: "fp32" or "bf16". Throws ProfileError when the profile has no GEMMs of it or no memory rates.
  Rates(const MachineProfile& profile, const std::string& dtype);

  /// One GEMM of `pass` for a linear layer of `rows` rows, as it computes: [rows, in] x [in, out] and its two gradients.
  /// `wide`: in fp32 although the model computes in bf16.
  double gemm_s(Pass pass, int64_t rows, int64_t in, int64_t out, bool wide) const;
  /// Rate that gemm_s uses, FLOP/s, by the GEMM's own sizes.
  double gemm_rate(Pass pass, int64_t m, int64_t n, int64_t k, bool wide) const;
  /// Softmax attention of so many forward FLOPs whose queries see `keys_per_query` keys in the mean, forward or backward.
  double attention_s(double flops, double keys_per_query, int64_t head_dim, bool backward) const;
  /// A kernel of the profile on [rows, width] elements; nothing when the profile lacks it. `moved_bytes`: of one kernel of several that
  /// were measured as one call; its share of the call's time is that of the bytes. 0: all of it.
  std::optional<double> kernel_s(const std::string& name, int64_t rows, int64_t width, bool backward, double moved_bytes = 0) const;
  /// Reading and writing `bytes` in one pass.
  double move_s(double bytes) const;
  /// Work around a linear layer besides its GEMMs, forward and backward together.
  double operation_s() const { return operation_s_; }
  /// By how much all of these take longer within a training step.
  const WithinStepsFactors& within_steps() const { return within_steps_; }

 private:
  using ByPass = std::map<Pass, Surface>;
  void add_gemms(const MachineProfile& profile, const std::string& dtype, ByPass& surfaces);

  optim::Iterates iterates_;  // of Muon, where the profile was measured
  ByPass gemms_, wide_gemms_;
  std::map<bool, Surface> attention_;                        // by backward: FLOP/s (forward FLOPs) over (keys, head_dim)
  std::map<std::pair<std::string, bool>, Surface> kernels_;  // by name and backward: work per second over (rows, width)
  std::map<std::pair<std::string, bool>, Surface> moved_;    // the same: bytes of a call for each element
  Surface move_;                                             // bytes per second over bytes
  double operation_s_ = 0;
  WithinStepsFactors within_steps_;
};

/// The amount by which a kernel's time is taken to grow, whatever the unit: elements, but FLOPs for "muon" (Newton-Schulz on
/// one matrix).
double kernel_work(const std::string& name, optim::Iterates iterates, int64_t rows, int64_t width);

}  // namespace ingot::plan
