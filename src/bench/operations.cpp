#include "bench/operations.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/differentiable.h"
#include "kernels/matmul.h"
#include "layers/dtype.h"
#include "layers/linear.h"

namespace ingot::bench {
namespace {

at::TensorOptions options_of(const std::string& dtype, at::Device device) {
  return at::TensorOptions().dtype(layers::compute_dtype(dtype)).device(device);
}

// Sets of tensors that are used in turn, so that each has left the caches near the cores when its turn comes again, as in a model.
template <class Set>
class InTurn {
 public:
  InTurn(int64_t set_bytes, const std::function<Set()>& make) {
    const int64_t count = std::clamp<int64_t>(kWorkingSetBytes / std::max<int64_t>(set_bytes, 1), 1, kMostSets);
    for (int64_t i = 0; i < count; ++i) sets_.push_back(make());
  }
  Set& next() { return sets_[next_++ % sets_.size()]; }

 private:
  static constexpr int64_t kWorkingSetBytes = int64_t{48} << 20, kMostSets = 32;
  std::vector<Set> sets_;
  size_t next_ = 0;
};

}  // namespace

plan::GemmRate measure_gemm(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, const Repeats& repeats,
                            at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(dtype, device);
  const auto fp32_or_wider = dtype == "fp64" ? at::kDouble : at::kFloat;
  // As layers/linear.cpp calls them: x W^T, g W and g^T x into the gradient buffer.
  struct Operands {
    at::Tensor a, b, out;
  };
  const int64_t bytes = (m * k + k * n + m * n) * static_cast<int64_t>(options.dtype().itemsize());
  const auto first_a = pass == plan::Pass::grad_weight ? at::rand({k, m}, options).t() : at::rand({m, k}, options);
  const auto first_b = pass == plan::Pass::forward ? at::rand({n, k}, options).t() : at::rand({k, n}, options);
  InTurn<Operands> sets(bytes, [&] {
    return Operands{first_a.clone(), first_b.clone(),
                    at::zeros({m, n}, pass == plan::Pass::grad_weight ? options.dtype(fp32_or_wider) : options)};
  });
  const double seconds = median_seconds(
      [&] {
        auto& [a, b, out] = sets.next();
        if (pass == plan::Pass::forward) kernels::matmul(a, b, options.dtype().toScalarType());
        else kernels::matmul_into(out, a, b, pass == plan::Pass::grad_input);
      },
      repeats, device);
  return {
      dtype, "plain", plan::name_of(pass), m, n, k, 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / seconds};
}

plan::AttentionTime measure_attention(const std::string& dtype, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                      int64_t head_dim, const Repeats& repeats, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(dtype, device);
  struct Operands {
    at::Tensor q, k, v, grad;
    kernels::AttentionOutput result;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const int64_t bytes = batch * seq * (3 * heads + 2 * kv_heads) * head_dim * static_cast<int64_t>(options.dtype().itemsize());
  const auto q = at::randn({batch, seq, heads, head_dim}, options), k = at::randn({batch, seq, kv_heads, head_dim}, options);
  const auto v = at::randn_like(k), grad = at::randn_like(q);
  const auto result = kernels::attention_forward(q, k, v, scale);
  InTurn<Operands> sets(bytes, [&] {
    return Operands{q.clone(), k.clone(), v.clone(), grad.clone(), {result.out.clone(), result.log_sum_exp.clone()}};
  });
  const double forward_s = median_seconds(
      [&] {
        const auto& set = sets.next();
        kernels::attention_forward(set.q, set.k, set.v, scale);
      },
      repeats, device);
  const double backward_s = median_seconds(
      [&] {
        const auto& set = sets.next();
        kernels::attention_backward(set.grad, set.q, set.k, set.v, set.result.out, set.result.log_sum_exp, scale);
      },
      repeats, device);
  return {dtype, batch, seq, heads, kv_heads, head_dim, forward_s, backward_s};
}

plan::MemoryRate measure_memory(const std::string& operation, int64_t bytes, const Repeats& repeats, at::Device device) {
  const at::NoGradGuard no_grad;
  const int64_t count = std::max<int64_t>(1, bytes / 4);
  auto a = at::rand({count}, at::TensorOptions().device(device)), b = at::rand_like(a), c = at::rand_like(a);
  struct Stream {
    const char* name;
    int arrays;
    std::function<void()> run;
  };
  const Stream streams[] = {{"copy", 2, [&] { c.copy_(a); }},
                            {"scale", 2, [&] { at::mul_out(b, c, at::scalar_tensor(0.4)); }},
                            {"add", 3, [&] { at::add_out(c, a, b); }},
                            {"triad", 3, [&] { at::add_out(a, b, c, 0.4); }},
                            {"dot", 2, [&] { at::dot(a, b); }}};
  for (const auto& stream : streams) {
    if (operation != stream.name) continue;
    const double seconds = median_seconds(stream.run, repeats, device);
    return {operation, 4 * count, static_cast<double>(stream.arrays * 4 * count) / seconds};
  }
  throw base::UsageError("unknown memory operation '{}'; it is copy, scale, add, triad or dot", operation);
}

double measure_operation(const Repeats& repeats, at::Device device) {
  constexpr int kLayers = 64;
  layers::ParameterList list;
  auto& weight = list.add({.name = "weight", .shape = {8, 8}, .kind = layers::Parameter::Kind::matrix});
  list.allocate(at::kFloat, device);
  const auto x = at::rand({1, 8}, at::TensorOptions().device(device)).set_requires_grad(true);
  const double seconds = median_seconds(
      [&] {
        auto y = x;
        for (int i = 0; i < kLayers; ++i) y = layers::linear(y, {&weight});
        kernels::backward({y});
        x.mutable_grad().reset();
      },
      repeats, device);
  return seconds / kLayers;
}

}  // namespace ingot::bench
