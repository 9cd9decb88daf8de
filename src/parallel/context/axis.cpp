#include "parallel/context/axis.h"

#include "parallel/context/attention_spread.h"
#include "parallel/context/halo.h"
#include "parallel/context/linear_attention.h"

namespace ingot::parallel {
namespace {

class OverAxis final : public layers::ContextSchedule {
 public:
  explicit OverAxis(const ContextAxis& axis) : axis_(axis) {}

  const layers::TokenOrder& order() const override { return axis_; }
  at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                       const kernels::ScoreRule& rule, int64_t window, const layers::Sequences& sequences) const override {
    return axis_.method->attend(q, k, v, sinks, AttentionSpread(axis_, sequences, q, q.size(2), rule, window));
  }
  at::Tensor linear_attention(const kernels::LinearAttentionInputs& in, const layers::Sequences& sequences) const override {
    return sharded_linear_attention(in, sequences, axis_);
  }
  at::Tensor bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const layers::Sequences& sequences) const override {
    return sharded_bidirectional_linear_attention(q, k, v, sequences, axis_);
  }
  at::Tensor with_halo(const at::Tensor& x, int64_t halo) const override { return parallel::with_halo(x, axis_, halo); }

 private:
  ContextAxis axis_;
};

}  // namespace

std::shared_ptr<const layers::ContextSchedule> ContextAxis::schedule() const {
  return is_on() ? std::make_shared<OverAxis>(*this) : nullptr;
}

}  // namespace ingot::parallel
