// The steps between the halves of blocks: a branch joins the residual stream, and what comes next gets it normed.
#pragma once

#include "kernels/norm.h"
#include "models/decode/program.h"

namespace ingot::models::decode {

struct Join {
  bool has_branch = true;  // false: the stream alone is normed
  at::Tensor behind;       // [hidden]: norms the branch first; undefined: nothing does
  double scale = 1;        // of the branch
  kernels::ResidualScale residual{};
  at::Tensor before;  // [hidden]: norms the stream for what comes next; undefined: it gets it as it is
  double eps = 0;
};

/// Slot::residual and Slot::branch -> Slot::residual and Slot::normed.
class JoinStep final : public Step {
 public:
  explicit JoinStep(Join join) : join_(std::move(join)) {}
  void prepare(Pass& pass) override;
  void run(Pass& pass, const Worker& worker) override;

 private:
  const Join join_;
};

}  // namespace ingot::models::decode
