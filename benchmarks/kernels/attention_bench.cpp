// Attention, forward and forward + backward: this project's kernel against at::scaled_dot_product_attention, by turns in one
// process, beside the fp32 and bf16 matrix product (2048 cubed) measured in the same rounds. Prints a Markdown table of medians
// and ranges. FLOPs count visible scores only: 4 head_dim per score forward, 10 more backward.
//   kernels_bench [rounds = 15] [threads = all] [cpu]     cpu: processor time, for a machine that others use as well
#include <ATen/Parallel.h>

#include <cmath>
#include <string_view>

#include "contenders.h"
#include "device/aten.h"
#include "kernels/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/differentiable.h"

namespace {

struct Shape {
  int64_t batch, seq, heads, kv_heads, head_dim;
};

at::Tensor operand(const Shape& s, int64_t heads, at::ScalarType dtype) {
  return at::randn({s.batch, s.seq, heads, s.head_dim}, dtype).requires_grad_();
}

at::Tensor product(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool repeat) {
  const int64_t group = q.size(2) / k.size(2);
  const auto keys = repeat ? k.repeat_interleave(group, 2) : k, values = repeat ? v.repeat_interleave(group, 2) : v;
  return at::scaled_dot_product_attention(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), {}, 0, /*is_causal=*/true, {},
                                          /*enable_gqa=*/!repeat);
}

void compare(const Shape& s, at::ScalarType dtype, int rounds) {
  const auto q = operand(s, s.heads, dtype), k = operand(s, s.kv_heads, dtype), v = operand(s, s.kv_heads, dtype);
  const auto grad = at::randn({s.batch, s.seq, s.heads, s.head_dim}, dtype), grad_by_head = grad.transpose(1, 2);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  const double forward = 4.0 * s.head_dim * s.batch * s.heads * (s.seq * (s.seq + 1) / 2);
  const auto a = at::randn({2048, 2048}, dtype), b = at::randn({2048, 2048}, dtype);
  const auto backward = [=](bool repeat) {
    return [=] { ingot::kernels::gradients({product(q, k, v, repeat)}, {q, k, v}, {grad_by_head}); };
  };
  const auto ours = [=](bool both) {
    return [=] {
      const at::AutoDispatchBelowADInplaceOrView no_grad;
      const auto [out, log_sum_exp] = ingot::kernels::attention_forward(q, k, v, scale);
      if (both) ingot::kernels::attention_backward(grad, q, k, v, out, log_sum_exp, scale);
    };
  };
  std::vector<Contender> contenders = {
      {"ingot forward", forward, ours(false)},
      {"SDPA forward, enable_gqa", forward,
       [=] {
         const at::AutoDispatchBelowADInplaceOrView no_grad;
         product(q, k, v, false);
       }},
      {"SDPA forward, kv repeated", forward,
       [=] {
         const at::AutoDispatchBelowADInplaceOrView no_grad;
         product(q, k, v, true);
       }},
      {"ingot forward + backward", 3.5 * forward, ours(true)},
      {"SDPA forward + backward, enable_gqa", 3.5 * forward, backward(false)},
      {"SDPA forward + backward, kv repeated", 3.5 * forward, backward(true)},
      {"at::mm 2048 cubed", 2.0 * 2048 * 2048 * 2048, [=] { at::mm(a, b); }},
  };
  fmt::print("\n{} batch {}, seq {}, heads {}, kv {}, head_dim {}\n\n| what | median ms | range ms | GFLOP/s |\n|---|---|---|---|\n",
             c10::toString(dtype), s.batch, s.seq, s.heads, s.kv_heads, s.head_dim);
  measure(contenders, rounds);
}

void decode(at::ScalarType dtype, int rounds) {
  const auto q = at::randn({1, 1, 32, 128}, dtype), k = at::randn({1, 4096, 8, 128}, dtype), v = at::randn({1, 4096, 8, 128}, dtype);
  const double flop = 4.0 * 128 * 32 * 4096;
  const at::AutoDispatchBelowADInplaceOrView no_grad;
  std::vector<Contender> contenders = {
      {"ingot one token", flop, [=] { ingot::kernels::attention_forward(q, k, v, 0.1, {.query_offset = 4095}); }},
      {"SDPA one token, enable_gqa", flop,
       [=] { at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0, false, {}, true); }}};
  fmt::print("\n{} one query, 4096 keys, heads 32, kv 8, head_dim 128\n\n| what | median ms | range ms | GFLOP/s |\n|---|---|---|---|\n",
             c10::toString(dtype));
  measure(contenders, rounds);
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 15;
  if (count > 2) at::set_num_threads(std::atoi(arguments[2]));
  is_processor_time = count > 3 && std::string_view(arguments[3]) == "cpu";
  if (rounds < 1) return 2;
  fmt::print("threads {}, kernels for {}, {} time\n", at::get_num_threads(), ingot::kernels::cpu::name(ingot::kernels::cpu::best_isa()),
             is_processor_time ? "processor" : "wall");
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Shape& shape : {Shape{4, 512, 8, 2, 64}, Shape{1, 2048, 8, 2, 64}, Shape{1, 1024, 8, 8, 128}}) compare(shape, dtype, rounds);
    decode(dtype, rounds);
  }
}
