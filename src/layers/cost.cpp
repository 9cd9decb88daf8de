#include "layers/cost.h"

namespace ingot::layers {

Cost& Cost::operator+=(const Cost& other) {
  flops += other.flops;
  weight_bytes += other.weight_bytes;
  activation_bytes += other.activation_bytes;
  saved_bytes += other.saved_bytes;
  return *this;
}

Cost linear_cost(int64_t tokens, int64_t in, int64_t out, int64_t element_bytes, bool saves_input) {
  const auto t = static_cast<double>(tokens), i = static_cast<double>(in), o = static_cast<double>(out),
             b = static_cast<double>(element_bytes);
  return {2 * t * i * o, i * o * b, t * (i + o) * b, saves_input ? t * i * b : 0};
}

double visible_pairs(int64_t seq, int64_t window) {
  const auto s = static_cast<double>(seq);
  if (window <= 0 || window >= seq) return s * (s + 1) / 2;
  const auto w = static_cast<double>(window);
  return w * (w + 1) / 2 + (s - w) * w;
}

Cost attention_cost(int64_t batch, int64_t seq, int64_t window, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t element_bytes) {
  const auto rows = static_cast<double>(batch * seq), width = static_cast<double>(heads * head_dim);
  const double query_bytes = rows * width * static_cast<double>(element_bytes);
  const double key_bytes = rows * static_cast<double>(kv_heads * head_dim * element_bytes);
  Cost cost;
  cost.flops = 4 * static_cast<double>(batch) * visible_pairs(seq, window) * width;
  cost.activation_bytes = 2 * query_bytes + 2 * key_bytes;
  cost.saved_bytes = 2 * query_bytes + 2 * key_bytes + rows * static_cast<double>(heads) * 4;
  return cost;
}

}  // namespace ingot::layers
