#include "optim/newton_schulz.h"

namespace ingot::optim {

at::Tensor newton_schulz(const at::Tensor& x, int64_t steps, const Quintic& q) {
  const bool tall = x.size(-2) > x.size(-1);
  auto y = (tall ? x.transpose(-2, -1) : x).contiguous();
  if (y.dim() == 2) y = y.unsqueeze(0);
  y = y.flatten(0, -3);  // [matrices, rows, cols]
  y = y / (y.to(y.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).norm(2, {1, 2}, /*keepdim=*/true) + 1e-7).to(y.scalar_type());
  for (int64_t step = 0; step < steps; ++step) {
    const auto gram = at::bmm(y, y.transpose(1, 2));
    const auto polynomial = at::baddbmm(gram, gram, gram, q.b, q.c);
    y = at::baddbmm(y, polynomial, y, q.a, 1);
  }
  y = tall ? y.transpose(1, 2) : y;
  return y.reshape(x.sizes());
}

}  // namespace ingot::optim
