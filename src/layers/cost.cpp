#include "layers/cost.h"

namespace ingot::layers {

double visible_pairs(int64_t seq, int64_t window) {
  const auto s = static_cast<double>(seq);
  if (window <= 0 || window >= seq) return s * (s + 1) / 2;
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (s - w) * w;
}

double attention_flops(int64_t batch, int64_t seq, int64_t window, int64_t heads, int64_t head_dim) {
  return 4 * static_cast<double>(batch) * visible_pairs(seq, window) * static_cast<double>(heads * head_dim);
}

}  // namespace ingot::layers
