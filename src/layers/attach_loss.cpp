#include "layers/attach_loss.h"

#include "layers/autograd.h"

namespace ingot::layers {
namespace {

struct AttachLossFunction : Function<AttachLossFunction, WorkKind::routing> {
  static at::Tensor forward(Context&, const at::Tensor& x, const at::Tensor& /*loss*/) { return x.view_as(x); }
  static TensorList backward(Context&, const TensorList& grads) { return {grads[0], at::ones({}, grads[0].options())}; }
};

}  // namespace

at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss) { return AttachLossFunction::apply(x, loss); }

}  // namespace ingot::layers
