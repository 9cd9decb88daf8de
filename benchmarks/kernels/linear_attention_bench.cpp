// Linear attention, forward + backward: this project's kernels against the same chunked algorithm written in PyTorch operations, with
// autograd or, for gates per channel and the delta rules, with the backward pass written out (kernels/reference), and against causal
// at::scaled_dot_product_attention of the same sizes, by turns in one process. Prints a Markdown table of medians and ranges. FLOPs are
// those of the chunked algorithm with chunks of 64 and half of the scores, a token and head: 3 (64 (k + v) + 4 k v) of keys of k and values
// of v, for the delta rules 3 (2 * 64 (k + v) + 6 k v); for SDPA those of the visible scores.
//   linear_attention_bench [rounds = 5] [threads = all] [longest = 65536] [cpu] [wide] [softmax]
//     cpu: processor time; wide: heads beyond 128; softmax: 12 heads of 64, gated delta rule and this project's softmax attention,
//     from 512 tokens on (benchmarks/linear_attention_beside_fla.py)
#include <ATen/Parallel.h>

#include <cmath>
#include <string_view>

#include "contenders.h"
#include "device/aten.h"
#include "kernels/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu_memory.h"
#include "kernels/differentiable.h"
#include "kernels/linear_attention.h"

namespace {

using ingot::kernels::LinearAttentionInputs;
namespace kernels = ingot::kernels;

constexpr int64_t kChunk = 64;
constexpr int64_t kLongestSoftmax = 4096;  // behind which it would take minutes

// As one writes it in PyTorch: chunks as a batch, states by a loop over chunks (a running sum where nothing decays).
at::Tensor eager(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_gate) {
  const int64_t count = q.size(1) / kChunk;
  const auto by_chunk = [&](const at::Tensor& x) {
    return x.transpose(1, 2).unflatten(2, {count, kChunk});
  };  // [batch, heads, count, chunk, dim]
  const auto queries = by_chunk(q), keys = by_chunk(k), values = by_chunk(v);
  auto scores = at::matmul(queries, keys.transpose(-1, -2));
  at::Tensor out;
  if (!log_gate.defined()) {
    const auto added = at::matmul(keys.transpose(-1, -2), values);
    out = at::matmul(scores.tril(), values) + at::matmul(queries, added.cumsum(2) - added);
  } else {
    const auto sums = log_gate.transpose(1, 2).unflatten(2, {count, kChunk}).cumsum(-1);  // [batch, heads, count, chunk]
    const auto last = sums.narrow(-1, kChunk - 1, 1);
    const auto above = at::ones({kChunk, kChunk}, at::kBool).triu(1);
    const auto between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(above, -1e30).exp();
    const auto added = at::matmul((keys * (last - sums).exp().unsqueeze(-1).to(k.scalar_type())).transpose(-1, -2), values);
    const auto by_count = added.unbind(2), whole = last.exp().unsqueeze(-1).unbind(2);  // whose gradients are one stack, unlike select's
    auto state = at::zeros_like(by_count[0], at::kFloat);
    std::vector<at::Tensor> states;
    for (size_t n = 0; n < by_count.size(); ++n) {
      states.push_back(state);
      state = whole[n] * state + by_count[n];
    }
    out = at::matmul((scores * between).to(v.scalar_type()), values) +
          at::matmul(queries * sums.exp().unsqueeze(-1).to(q.scalar_type()), at::stack(states, 2).to(v.scalar_type()));
  }
  return out.flatten(2, 3).transpose(1, 2);
}

enum class Variant { basic, scalar_gate, diagonal_gate, delta, gated_delta, kda };
constexpr Variant kVariants[] = {Variant::basic, Variant::scalar_gate, Variant::diagonal_gate,
                                 Variant::delta, Variant::gated_delta, Variant::kda};
constexpr const char* kVariantNames[] = {"basic", "scalar gate", "diagonal gate", "delta rule", "gated delta rule", "KDA"};
struct Dims {
  int64_t keys, values;
};

void compare(Variant variant, int64_t seq, int64_t heads, Dims dims, at::ScalarType dtype, int rounds) {
  const auto operand = [&](int64_t dim) {
    return (at::randn({1, seq, heads, dim}) / std::sqrt(static_cast<double>(dim))).to(dtype).requires_grad_();
  };
  const auto q = operand(dims.keys), k = operand(dims.keys), v = operand(dims.values);
  const auto grad = at::randn({1, seq, heads, dims.values}).to(dtype);
  const bool has_delta = variant == Variant::delta || variant == Variant::gated_delta || variant == Variant::kda;
  const bool is_written_out = has_delta || variant == Variant::diagonal_gate;
  const auto gates = [&](at::IntArrayRef sizes) { return at::log_sigmoid(at::randn(sizes) + 3).requires_grad_(); };
  LinearAttentionInputs in{q, k, v, {}, {}, {}};
  if (variant == Variant::scalar_gate || variant == Variant::gated_delta) in.log_gate = gates({1, seq, heads});
  if (variant == Variant::diagonal_gate || variant == Variant::kda) in.log_gate = gates({1, seq, heads, dims.keys});
  if (has_delta) in.beta = at::sigmoid(at::randn({1, seq, heads}));
  const int64_t scores = kChunk * (dims.keys + dims.values), states = dims.keys * dims.values;
  const double flop = 3.0 * static_cast<double>(heads * seq * (has_delta ? 2 * scores + 6 * states : scores + 4 * states));
  std::vector<at::Tensor> leaves = {q, k, v};
  if (in.log_gate.defined()) leaves.push_back(in.log_gate);
  std::vector<Contender> contenders = {{"ingot forward", flop / 3,
                                        [=] {
                                          const at::AutoDispatchBelowADInplaceOrView no_grad;
                                          kernels::linear_attention_forward(in);
                                        }},
                                       {"ingot forward + backward", flop,
                                        [=] {
                                          const at::AutoDispatchBelowADInplaceOrView no_grad;
                                          const auto result = kernels::linear_attention_forward(in);
                                          kernels::linear_attention_backward(grad, {}, in, {}, result.saved);
                                        }},
                                       {"PyTorch, chunked, forward + backward", flop, [=] {
                                          if (!is_written_out)
                                            return static_cast<void>(kernels::gradients({eager(q, k, v, in.log_gate)}, leaves, {grad}));
                                          const at::AutoDispatchBelowADInplaceOrView no_grad;
                                          kernels::reference::linear_attention_forward(in, {});
                                          kernels::reference::linear_attention_backward(grad, {}, in, {});
                                        }}};
  if (seq <= kLongestSoftmax)
    contenders.push_back(
        {"SDPA causal, forward + backward", 3.5 * 2 * static_cast<double>((dims.keys + dims.values) * heads * (seq * (seq + 1) / 2)), [=] {
           const auto out =
               at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0, /*is_causal=*/true);
           kernels::gradients({out}, {q, k, v}, {grad.transpose(1, 2)});
         }});
  fmt::print("\n{} {}, seq {}, heads {}, keys {}, values {}\n\n| what | median ms | range ms | GFLOP/s |\n|---|---|---|---|\n",
             c10::toString(dtype), kVariantNames[static_cast<int>(variant)], seq, heads, dims.keys, dims.values);
  measure(contenders, rounds);
}

// Forward and backward of one layer's worth of heads, the gated delta rule's and softmax attention's.
void compare_with_softmax(int64_t seq, at::ScalarType dtype, int rounds) {
  constexpr int64_t kHeads = 12, kDim = 64;
  const auto operand = [&] { return (at::randn({1, seq, kHeads, kDim}) / std::sqrt(static_cast<double>(kDim))).to(dtype); };
  const auto q = operand(), k = operand(), v = operand(), grad = operand();
  const LinearAttentionInputs in{q, k, v, at::log_sigmoid(at::randn({1, seq, kHeads}) + 3), at::sigmoid(at::randn({1, seq, kHeads})), {}};
  const double linear_flop = 3.0 * static_cast<double>(kHeads * seq * (2 * kChunk * 2 * kDim + 6 * kDim * kDim));
  const double softmax_flop = 3.5 * 2 * static_cast<double>(2 * kDim * kHeads * (seq * (seq + 1) / 2));
  std::vector<Contender> contenders = {{"gated delta rule", linear_flop,
                                        [=] {
                                          const auto result = kernels::linear_attention_forward(in);
                                          kernels::linear_attention_backward(grad, {}, in, {}, result.saved);
                                        }},
                                       {"softmax attention", softmax_flop, [=] {
                                          const auto [out, log_sum_exp] = kernels::attention_forward(q, k, v, 0.125);
                                          kernels::attention_backward(grad, q, k, v, out, log_sum_exp, 0.125);
                                        }}};
  fmt::print("\n{}, seq {}, heads {} of {}, forward + backward\n\n| what | median ms | range ms | GFLOP/s |\n|---|---|---|---|\n",
             c10::toString(dtype), seq, kHeads, kDim);
  measure(contenders, rounds);
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 5;
  if (count > 2 && std::atoi(arguments[2]) > 0) at::set_num_threads(std::atoi(arguments[2]));
  const int64_t longest = count > 3 ? std::atoll(arguments[3]) : 65536;
  kernels::use_page_pool();  // as every verb does
  bool is_wide = false, is_beside_softmax = false;
  for (int i = 4; i < count; ++i) {
    const std::string_view word = arguments[i];
    (word == "wide" ? is_wide : word == "softmax" ? is_beside_softmax : is_processor_time) = true;
  }
  const auto dims = is_wide ? std::vector<Dims>{{256, 256}, {256, 512}, {64, 512}, {273, 64}} : std::vector<Dims>{{64, 64}, {128, 128}};
  if (rounds < 1) return 2;
  fmt::print("threads {}, kernels for {}, {} time\n", at::get_num_threads(), kernels::cpu::name(kernels::cpu::best_isa()),
             is_processor_time ? "processor" : "wall");
  if (is_beside_softmax) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (int64_t seq = 512; seq <= longest; seq *= 2) compare_with_softmax(seq, dtype, rounds);
    return 0;
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto variant : kVariants)
      for (const auto& of : dims)
        for (int64_t seq = 2048; seq <= longest; seq *= seq < 8192 ? 2 : 8) compare(variant, seq, 8, of, dtype, rounds);
}
