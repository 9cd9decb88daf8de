#include "parallel/tensor/axis.h"

#include "layers/autograd.h"

namespace ingot::parallel {
namespace {

using layers::Context, layers::Function, layers::TensorList, layers::Work;

at::Tensor summed(const at::Tensor& x, comm::Group& group) {
  auto sum = x.contiguous().clone();
  group.all_reduce(sum);
  return sum;
}

// [1, tokens / p, hidden] -> [batch, seq, hidden]
at::Tensor gathered(const at::Tensor& x, int64_t batch, int64_t seq, comm::Group& group) {
  auto all = at::empty({batch, seq, x.size(-1)}, x.options());
  group.all_gather(all, x.contiguous());
  return all;
}

// [batch, seq, hidden] -> [1, tokens / p, hidden]
at::Tensor scattered(const at::Tensor& x, comm::Group& group) {
  auto own = at::empty({1, x.size(0) * x.size(1) / group.size(), x.size(2)}, x.options());
  group.reduce_scatter(own, x.contiguous());
  return own;
}

struct EnterFunction : Function<EnterFunction, Work::Rule::passes> {
  struct Kept {
    comm::Group* group;
    bool shards_tokens;
  };
  static at::Tensor forward(Context& context, const at::Tensor& x, int64_t batch, int64_t seq, comm::Group* group, bool shards_tokens) {
    context.keep(Kept{group, shards_tokens});
    return shards_tokens ? gathered(x, batch, seq, *group) : x.view_as(x);
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto [group, shards_tokens] = context.kept<Kept>();
    return {shards_tokens ? scattered(grads[0], *group) : summed(grads[0], *group)};
  }
};

struct LeaveFunction : Function<LeaveFunction, Work::Rule::passes> {
  struct Kept {
    comm::Group* group;
    bool shards_tokens;
    int64_t batch;
  };
  static at::Tensor forward(Context& context, const at::Tensor& partial, comm::Group* group, bool shards_tokens) {
    context.keep(Kept{group, shards_tokens, partial.size(0)});
    return shards_tokens ? scattered(partial, *group) : summed(partial, *group);
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto [group, shards_tokens, batch] = context.kept<Kept>();
    if (!shards_tokens) return {grads[0]};
    return {gathered(grads[0], batch, grads[0].size(1) * group->size() / batch, *group)};
  }
};

}  // namespace

at::Tensor TensorAxis::enter(const at::Tensor& x, int64_t batch, int64_t seq) const {
  return is_on() ? EnterFunction::apply(x, batch, seq, group, shards_tokens) : x;
}

at::Tensor TensorAxis::leave(const at::Tensor& partial) const {
  return is_on() ? LeaveFunction::apply(partial, group, shards_tokens) : partial;
}

}  // namespace ingot::parallel
