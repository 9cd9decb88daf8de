// transformers computes RMSNorm, softmax and RoPE in fp32 whatever the model's dtype, also in the fp64 runs that serve as
// references. To reproduce such a run to fp64 accuracy the same three must be rounded the same way.
#pragma once

namespace ingot::kernels {

/// While one lives, fp64 models on this thread do norms, softmax and rotary angles in fp32. Used by verification only.
class Fp32Islands {
 public:
  Fp32Islands() : before_(active_) { active_ = true; }
  ~Fp32Islands() { active_ = before_; }
  Fp32Islands(const Fp32Islands&) = delete;
  Fp32Islands& operator=(const Fp32Islands&) = delete;
  static bool active() { return active_; }

 private:
  bool before_;
  static inline thread_local bool active_ = false;
};

}  // namespace ingot::kernels
