#include "bench/operations.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "kernels/attention.h"
#include "kernels/differentiable.h"
#include "kernels/grouped_matmul.h"
#include "kernels/matmul.h"
#include "kernels/operand.h"
#include "layers/dtype.h"
#include "layers/linear.h"
#include "layers/sequences.h"

namespace ingot::bench {
namespace {

at::TensorOptions options_of(const std::string& dtype, at::Device device) {
  return at::TensorOptions().dtype(layers::precision_named(dtype).dtype).device(device);
}

// Sets of tensors that are used in turn, so that each has left the caches near the cores when its turn comes again, as weights, results
// and what the forward pass kept have in a model. What the operation before has just written is one tensor for all turns.
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

struct Operands {
  at::Tensor a, b, out;
};

double flops_of(int64_t m, int64_t n, int64_t k) { return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }

// What gradients of weights are added to.
at::TensorOptions sum_options(const at::TensorOptions& options) {
  return options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat);
}

// The largest of `groups` shares i^-power, over their mean.
double largest_share(int64_t groups, double power) {
  double sum = 0;
  for (int64_t i = 1; i <= groups; ++i) sum += std::pow(static_cast<double>(i), -power);
  return static_cast<double>(groups) / sum;
}

}  // namespace

plan::GemmRate measure_gemm(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, const Repeats& repeats,
                            at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(dtype, device);
  // As layers/linear.cpp calls them: x W^T, g W and g^T x into the gradient buffer.
  const int64_t bytes = (k * n + m * n) * static_cast<int64_t>(options.dtype().itemsize());
  const auto fresh = pass == plan::Pass::grad_weight ? at::rand({k, m}, options).t() : at::rand({m, k}, options);
  const auto first_b = pass == plan::Pass::forward ? at::rand({n, k}, options).t() : at::rand({k, n}, options);
  InTurn<Operands> sets(bytes, [&] {
    return Operands{fresh, first_b.clone(), at::zeros({m, n}, pass == plan::Pass::grad_weight ? sum_options(options) : options)};
  });
  const double seconds = median_seconds(
      [&] {
        auto& [a, b, out] = sets.next();
        if (pass == plan::Pass::forward) kernels::matmul(a, b, options.dtype().toScalarType());
        else kernels::matmul_into(out, a, b, pass == plan::Pass::grad_input);
      },
      repeats, device);
  return {dtype, "plain", plan::name_of(pass), m, n, k, flops_of(m, n, k) / seconds};
}

plan::GemmRate measure_batched(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, int64_t groups,
                               const Repeats& repeats, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(dtype, device);
  // a b, g b^T and a^T g: what is transposed lies in memory as the forward pass has it.
  const auto fresh =
      pass == plan::Pass::grad_weight ? at::rand({groups, k, m}, options).transpose(1, 2) : at::rand({groups, m, k}, options);
  const auto first_b =
      pass == plan::Pass::grad_input ? at::rand({groups, n, k}, options).transpose(1, 2) : at::rand({groups, k, n}, options);
  const int64_t bytes = groups * (k * n + m * n) * static_cast<int64_t>(options.dtype().itemsize());
  InTurn<Operands> sets(bytes, [&] { return Operands{fresh, first_b.clone(), {}}; });
  const double seconds = median_seconds(
      [&] {
        const auto& [a, b, out] = sets.next();
        at::matmul(a, b);
      },
      repeats, device);
  return {dtype, "batched", plan::name_of(pass), m, n, k, static_cast<double>(groups) * flops_of(m, n, k) / seconds, groups};
}

std::vector<int64_t> shared_out(int64_t rows, int64_t groups, double imbalance) {
  double low = 0, high = 64;  // of the power
  for (int i = 0; i < 100; ++i) (largest_share(groups, (low + high) / 2) < imbalance ? low : high) = (low + high) / 2;
  const double power = imbalance > 1 ? high : 0,
               unit = static_cast<double>(rows) * largest_share(groups, power) / static_cast<double>(groups);
  std::vector<int64_t> counts;
  double exact = 0;
  int64_t given = 0;
  for (int64_t i = 1; i <= groups; ++i) {
    exact += unit * std::pow(static_cast<double>(i), -power);
    const int64_t until = i == groups ? rows : std::min<int64_t>(rows, std::llround(exact));
    counts.push_back(until - given);
    given = until;
  }
  return counts;
}

namespace {

void multiply_by_experts(const Operands& set, plan::Pass pass, const std::vector<int64_t>& counts) {
  const auto& [a, b, out] = set;
  const bool is_sum = pass == plan::Pass::grad_weight;
  const auto operand = [](const at::Tensor& x, int64_t summed) {
    return kernels::operand_of(x, {}, kernels::OperandKind::activation, summed);
  };
  std::vector<kernels::MatmulOfAnyRows> all;
  int64_t from = 0;
  for (size_t group = 0; group < counts.size(); from += counts[group++]) {
    const int64_t count = counts[group];
    if (count == 0) continue;
    const auto g = static_cast<int64_t>(group);
    const auto part = a.narrow(0, from, count);
    if (is_sum) all.push_back({out[g], operand(part, 0), operand(b.narrow(0, from, count), 0), /*overwrite=*/false});
    else all.push_back({out.narrow(0, from, count), operand(part, 1), operand(b[g], pass == plan::Pass::forward ? 1 : 0)});
  }
  kernels::matmuls_of_any_rows_into(all);
}

void multiply_grouped(const Operands& set, plan::Pass pass, const at::Tensor& ends) {
  if (pass == plan::Pass::grad_weight) kernels::grouped_gradient_into(set.out, set.a, set.b, ends, /*overwrite=*/false);
  else kernels::grouped_matmul(set.a, pass == plan::Pass::forward ? set.b.transpose(1, 2) : set.b, ends);
}

at::Tensor ends_of(const std::vector<int64_t>& counts, at::Device device) {
  std::vector<int32_t> ends;
  for (int32_t end = 0; const int64_t count : counts) ends.push_back(end += static_cast<int32_t>(count));
  return at::tensor(ends, at::kInt).to(device);
}

}  // namespace

plan::GemmRate measure_grouped(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, int64_t groups, double imbalance,
                               const Repeats& repeats, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(dtype, device);
  const bool is_sum = pass == plan::Pass::grad_weight;
  const int64_t rows = groups * (is_sum ? k : m);
  const auto counts = shared_out(rows, groups, imbalance);
  // a: rows of tokens; b: weights [groups, …], or of grad_weight the other rows of tokens; out: rows, or weights' gradients.
  const auto fresh = at::rand({rows, is_sum ? m : k}, options);
  const auto first_b = is_sum                        ? at::rand({rows, n}, options)
                       : pass == plan::Pass::forward ? at::rand({groups, n, k}, options)
                                                     : at::rand({groups, k, n}, options);
  const int64_t bytes = groups * (k * n + m * n) * static_cast<int64_t>(options.dtype().itemsize());
  InTurn<Operands> sets(bytes, [&] {
    return Operands{fresh, first_b.clone(), is_sum ? at::zeros({groups, m, n}, sum_options(options)) : at::zeros({rows, n}, options)};
  });
  const auto weights = is_sum ? at::empty({1}, options).expand({groups, m, n}) : first_b;
  const bool is_one_call = kernels::takes_grouped_matmul(fresh, weights);
  const auto ends = ends_of(counts, device);
  const double seconds = median_seconds(
      [&] { is_one_call ? multiply_grouped(sets.next(), pass, ends) : multiply_by_experts(sets.next(), pass, counts); }, repeats, device);
  return {dtype, "grouped", plan::name_of(pass), m, n, k, static_cast<double>(groups) * flops_of(m, n, k) / seconds, groups, imbalance};
}

plan::AttentionTime measure_attention(const std::string& dtype, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                      int64_t head_dim, const Repeats& repeats, at::Device device, int64_t window) {
  const at::NoGradGuard no_grad;
  const auto options = options_of(dtype, device);
  struct Tensors {
    at::Tensor q, k, v;
    kernels::AttentionOutput result;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const int64_t bytes = batch * seq * (2 * heads + 2 * kv_heads) * head_dim * static_cast<int64_t>(options.dtype().itemsize());
  const auto q = at::randn({batch, seq, heads, head_dim}, options), k = at::randn({batch, seq, kv_heads, head_dim}, options);
  const auto v = at::randn_like(k), grad = at::randn_like(q);
  const kernels::AttentionMask mask{layers::Sequences(batch, seq, {}, 0, device).visible_from(window)};
  const auto result = kernels::attention_forward(q, k, v, scale, mask);
  InTurn<Tensors> sets(bytes, [&] { return Tensors{q.clone(), k.clone(), v.clone(), {result.out.clone(), result.log_sum_exp.clone()}}; });
  const double forward_s = median_seconds([&] { kernels::attention_forward(q, k, v, scale, mask); }, repeats, device);
  const double backward_s = median_seconds(
      [&] {
        const auto& set = sets.next();
        kernels::attention_backward(grad, set.q, set.k, set.v, set.result.out, set.result.log_sum_exp, scale, mask);
      },
      repeats, device);
  return {dtype, batch, seq, heads, kv_heads, head_dim, forward_s, backward_s, window};
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
  const Stream streams[] = {{"copy", 2, [&] { c.copy_(a); }},          {"scale", 2, [&] { at::mul_out(b, c, at::scalar_tensor(0.4)); }},
                            {"add", 3, [&] { at::add_out(c, a, b); }}, {"triad", 3, [&] { at::add_out(a, b, c, 0.4); }},
                            {"dot", 2, [&] { at::dot(a, b); }},        {"read", 1, [&] { a.sum(); }},
                            {"write", 1, [&] { a.fill_(0.4); }}};
  for (const auto& stream : streams) {
    if (operation != stream.name) continue;
    const double seconds = median_seconds(stream.run, repeats, device);
    return {operation, 4 * count, static_cast<double>(stream.arrays * 4 * count) / seconds};
  }
  throw base::UsageError("unknown memory operation '{}'; it is one of {}", operation, base::join(memory_operations(), ", "));
}

const std::vector<std::string>& memory_operations() {
  static const std::vector<std::string> all = {"copy", "scale", "add", "triad", "dot", "read", "write"};
  return all;
}

const std::vector<std::string>& transfer_operations() {
  static const std::vector<std::string> all = {"host_to_device_pinned", "host_to_device_pageable", "device_to_host_pinned",
                                               "device_to_host_pageable"};
  return all;
}

plan::MemoryRate measure_transfer(const std::string& operation, int64_t bytes, const Repeats& repeats, at::Device device) {
  if (device.is_cpu()) throw base::UsageError("{} needs a device other than the CPU", operation);
  auto host = at::ones({bytes}, at::kByte);
  if (operation.ends_with("pinned")) host = host.pin_memory();
  auto on_device = at::ones({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  const bool is_to_device = operation.starts_with("host");
  const auto& from = is_to_device ? host : on_device;
  auto& to = is_to_device ? on_device : host;
  const double seconds = median_seconds([&] { to.copy_(from, /*non_blocking=*/true); }, repeats, device);
  return {operation, bytes, static_cast<double>(bytes) / seconds};
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
