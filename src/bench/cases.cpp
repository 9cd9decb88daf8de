#include "bench/cases.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <memory>

#include "kernels/activation.h"
#include "kernels/cca.h"
#include "kernels/cross_entropy.h"
#include "kernels/feature_map.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/short_convolution.h"
#include "layers/dtype.h"
#include "layers/embedding.h"
#include "layers/experts.h"
#include "layers/linear_attention.h"
#include "layers/router.h"
#include "optim/optimizer.h"

namespace ingot::bench {
namespace {

using Kind = layers::Parameter::Kind;

constexpr double kEps = 1e-5;

at::ScalarType narrow(const CaseSizes& s) { return layers::compute_dtype(s.dtype); }
at::ScalarType wide(const CaseSizes& s) { return s.dtype == "fp64" ? at::kDouble : at::kFloat; }

// A random leaf that the case asks gradients of.
at::Tensor leaf(Case& c, at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  return c.leaves.emplace_back(at::randn(sizes, at::TensorOptions().device(device)).to(dtype).set_requires_grad(true));
}

kernels::ResidualScale scales(Case& c, const CaseSizes& s) {
  const auto vector = [&] { return leaf(c, {s.width}, wide(s), s.device); };
  return {vector(), vector(), vector(), vector()};
}

kernels::RotaryTable rotary_table(int64_t seq, int64_t half, const CaseSizes& s) {
  const auto angles = at::rand({1, seq, half}, at::TensorOptions().dtype(wide(s)).device(s.device));
  return {angles.cos(), angles.sin()};
}

Case rms_norm(const CaseSizes& s) {
  Case c;
  const auto x = leaf(c, {1, s.rows, s.width}, wide(s), s.device), weight = leaf(c, {s.width}, wide(s), s.device);
  c.forward = [=] { return std::vector{kernels::rms_norm(x, weight, kEps, narrow(s))}; };
  return c;
}

template <bool scaled>
Case join_norm(const CaseSizes& s) {
  Case c;
  const auto residual = leaf(c, {1, s.rows, s.width}, wide(s), s.device), branch = leaf(c, {1, s.rows, s.width}, narrow(s), s.device);
  const auto weight = leaf(c, {s.width}, wide(s), s.device);
  const auto scale = scaled ? scales(c, s) : kernels::ResidualScale{};
  c.forward = [=] {
    const auto [joined, normed] = kernels::join_residual_and_norm(residual, branch, scale, weight, kEps, narrow(s));
    return std::vector{joined, normed};
  };
  return c;
}

template <bool scaled>
Case join(const CaseSizes& s) {
  Case c;
  const auto residual = leaf(c, {1, s.rows, s.width}, wide(s), s.device), branch = leaf(c, {1, s.rows, s.width}, narrow(s), s.device);
  const auto scale = scaled ? scales(c, s) : kernels::ResidualScale{};
  c.forward = [=] { return std::vector{kernels::join_residual(residual, branch, scale)}; };
  return c;
}

Case swiglu(const CaseSizes& s) {
  Case c;
  const auto gate_up = leaf(c, {s.rows, 2 * s.width}, narrow(s), s.device);
  c.forward = [=] { return std::vector{kernels::swiglu(gate_up)}; };
  return c;
}

// width: all heads of q, k and v together; a quarter of them is of k.
Case split_and_rotate(const CaseSizes& s) {
  constexpr int64_t kHeadDim = 64;
  Case c;
  const int64_t all = s.width / kHeadDim, kv_heads = std::max<int64_t>(1, all / 4), heads = all - 2 * kv_heads;
  const auto packed = leaf(c, {1, s.rows, s.width}, narrow(s), s.device);
  const auto table = rotary_table(s.rows, kHeadDim / 2, s);
  c.forward = [=] {
    const auto [q, k, v] = kernels::split_and_rotate(packed, heads, kv_heads, kHeadDim, table);
    return std::vector{q, k, v};
  };
  return c;
}

// rows: tokens times all heads of q and k; width: of a head.
Case cca_mix(const CaseSizes& s) {
  Case c;
  const kernels::CcaShape shape{4, 1, s.width};
  const int64_t tokens = s.rows / (shape.heads + shape.kv_heads), latent = shape.latent();
  const auto packed = leaf(c, {1, tokens, latent + shape.kv_heads * s.width}, narrow(s), s.device);
  const auto own = [&](at::IntArrayRef sizes) { return leaf(c, sizes, wide(s), s.device); };
  const kernels::CcaWeights weights{own({latent, 1, 2}), own({latent}), own({latent, s.width, 2}), own({latent}), own({shape.kv_heads})};
  const auto table = rotary_table(tokens, s.width / 4, s);
  c.forward = [=] {
    const auto [q, k, v] = kernels::cca_mix(packed, shape, weights, table, {}, {});
    return std::vector{q, k, v};
  };
  return c;
}

// rows: tokens times heads; width: of a head's keys and values. The kernels are those of kernels/cpu/linear_attention.h, with a gate per
// head or per channel.
enum class Mixing { gate_per_head, gate_per_channel, delta };
template <Mixing mixing>
Case linear_attention(const CaseSizes& s) {
  constexpr int64_t kHeads = 4;
  Case c;
  const int64_t tokens = s.rows / kHeads;
  const auto operand = [&] { return leaf(c, {1, tokens, kHeads, s.width}, narrow(s), s.device); };
  const auto by_head = [&] { return leaf(c, {1, tokens, kHeads}, wide(s), s.device); };
  const auto q = operand(), k = operand(), v = operand();
  const auto x = mixing == Mixing::gate_per_channel ? leaf(c, {1, tokens, kHeads, s.width}, wide(s), s.device) : by_head();
  const auto y = mixing == Mixing::delta ? by_head() : at::Tensor();
  const auto sequences = std::make_shared<layers::Sequences>(1, tokens, at::Tensor(), 0, s.device);
  c.forward = [=] {
    const auto beta = y.defined() ? at::sigmoid(y) : at::Tensor();
    return std::vector{layers::linear_attention({q, k, v, at::log_sigmoid(x), beta, {}}, *sequences, nullptr)};
  };
  return c;
}

// As layers/linear_attention.cpp writes them.
Case feature_map(const CaseSizes& s) {
  constexpr int64_t kDim = 64;
  Case c;
  const auto x = leaf(c, {1, s.rows, s.width / kDim, kDim}, narrow(s), s.device);
  c.forward = [=] { return std::vector{kernels::feature_map(x, kernels::FeatureMap::l2)}; };
  return c;
}

Case gates(const CaseSizes& s) {
  Case c;
  const auto x = leaf(c, {1, s.rows, s.width}, narrow(s), s.device), bias = leaf(c, {s.width}, wide(s), s.device);
  c.forward = [=] { return std::vector{at::log_sigmoid(x.to(wide(s)) + bias) / 16}; };
  return c;
}

Case output_gate(const CaseSizes& s) {
  Case c;
  const auto x = leaf(c, {1, s.rows, s.width}, narrow(s), s.device), gate = leaf(c, {1, s.rows, s.width}, narrow(s), s.device);
  const auto weight = leaf(c, {s.width}, wide(s), s.device);
  c.forward = [=] { return std::vector{(x.to(wide(s)) * weight * at::silu(gate.to(wide(s)))).to(narrow(s))}; };
  return c;
}

Case short_convolution(const CaseSizes& s) {
  Case c;
  const auto x = leaf(c, {1, s.rows, s.width}, narrow(s), s.device), weight = leaf(c, {s.width, 1, 4}, wide(s), s.device);
  c.forward = [=] { return std::vector{kernels::short_convolution(x, weight)}; };
  return c;
}

// A model's parameters that live as long as the case.
std::shared_ptr<layers::ParameterList> parameters(std::vector<layers::Parameter> described, const CaseSizes& s) {
  auto list = std::make_shared<layers::ParameterList>();
  for (auto& p : described) list->add(std::move(p));
  list->allocate(narrow(s), s.device);
  const at::NoGradGuard no_grad;
  for (const auto& p : list->all()) p->value.copy_(at::randn(p->shape) * 0.02);
  return list;
}

// width: of the router; the projection from the residual stream is kept small, workloads count it as a product.
Case router(const CaseSizes& s) {
  constexpr int64_t kHidden = 16, kClasses = 9;
  Case c;
  const int64_t r = s.width;
  const auto matrix = [](const char* name, int64_t out, int64_t in) {
    return layers::Parameter{.name = name, .shape = {out, in}, .kind = Kind::matrix, .keeps_fp32 = true};
  };
  const auto vector = [](const char* name, int64_t size, Kind kind = Kind::vector) {
    return layers::Parameter{.name = name, .shape = {size}, .kind = kind, .keeps_fp32 = true};
  };
  const auto list = parameters({matrix("down", r, kHidden), vector("down_bias", r), vector("state_scale", r), vector("norm", r),
                                matrix("fc1", r, r), vector("fc1_bias", r), matrix("fc2", r, r), vector("fc2_bias", r),
                                matrix("out", kClasses, r), vector("balancing", kClasses, Kind::buffer)},
                               s);
  const auto get = [&](const char* name) { return &list->get(name); };
  const layers::RouterParameters p{get("down"),     get("down_bias"), get("state_scale"), get("norm"), get("fc1"),
                                   get("fc1_bias"), get("fc2"),       get("fc2_bias"),    get("out"),  get("balancing")};
  const auto x = leaf(c, {s.rows, kHidden}, narrow(s), s.device), before = leaf(c, {s.rows, r}, wide(s), s.device);
  for (const auto& parameter : list->all()) c.leaves.push_back(parameter->value);
  c.forward = [=, keep = list] {
    const auto routing = layers::route(x, before, p, kEps);
    return std::vector{routing.weight, routing.state};
  };
  return c;
}

// Sorting tokens by expert, gathering and returning them; the experts themselves are as small as they can be.
Case expert_dispatch(const CaseSizes& s) {
  constexpr int64_t kExperts = 8, kWidth = 2;
  Case c;
  const auto list = parameters({{.name = "gate_up", .shape = {kExperts, 2 * kWidth, s.width}, .kind = Kind::matrix},
                                {.name = "down", .shape = {kExperts, s.width, kWidth}, .kind = Kind::matrix}},
                               s);
  const auto x = leaf(c, {s.rows, s.width}, narrow(s), s.device), weight = leaf(c, {s.rows}, wide(s), s.device);
  const auto choice = at::randint(kExperts, {s.rows}, at::TensorOptions().dtype(at::kLong).device(s.device));
  c.forward = [=, keep = list] {
    return std::vector{layers::experts(x, choice, weight, list->get("gate_up"), list->get("down"), 1, layers::SkipOutput::zero)};
  };
  return c;
}

Case embedding(const CaseSizes& s) {
  constexpr int64_t kVocabulary = 4096;
  Case c;
  const auto list = parameters({{.name = "table", .shape = {kVocabulary, s.width}, .kind = Kind::embedding}}, s);
  const auto ids = at::randint(kVocabulary, {1, s.rows}, at::TensorOptions().dtype(at::kLong).device(s.device));
  c.forward = [=, keep = list] { return std::vector{layers::embedding(ids, list->get("table"), wide(s))}; };
  return c;
}

// One chunk of logits, which the products before and after it find in the caches; width: of the vocabulary.
Case cross_entropy(const CaseSizes& s) {
  Case c;
  c.alone = true;
  auto logits = at::randn({s.rows, s.width}, at::TensorOptions().dtype(wide(s)).device(s.device));
  const auto targets = at::randint(s.width, {s.rows}, at::TensorOptions().dtype(at::kLong).device(s.device));
  c.forward = [=] {
    kernels::cross_entropy_in_place(logits, targets, 1e-3, true);
    logits.to(narrow(s));
    return std::vector<at::Tensor>{};
  };
  return c;
}

// Gradient norm and clipped update of `count` tensors [rows, width], the way one step of a run does it.
Case update(const CaseSizes& s, Kind kind, int64_t count) {
  Case c;
  c.alone = true;
  c.count = count;
  std::vector<layers::Parameter> described;
  for (int64_t i = 0; i < count; ++i) described.push_back({.name = std::to_string(i), .shape = {s.rows, s.width}, .kind = kind});
  const auto list = parameters(std::move(described), s);
  for (const auto& p : list->all()) p->accumulate(at::randn(p->shape));
  const auto optimizer = std::make_shared<optim::Optimizer>(*list, optim::OptimizerConfig{});
  c.forward = [list, optimizer] {
    bool overwrite = false;
    for (const auto& p : list->all()) p->gradient_buffer(overwrite);  // as if backward had just filled it
    optimizer->step(1e-6, 10 + optimizer->gradient_norm().norm);
    return std::vector<at::Tensor>{};
  };
  return c;
}

}  // namespace

const std::map<std::string, CaseMaker>& case_makers() {
  static const std::map<std::string, CaseMaker> all = {
      {"rms_norm", rms_norm},
      {"join_norm", join_norm<false>},
      {"scaled_join_norm", join_norm<true>},
      {"join", join<false>},
      {"scaled_join", join<true>},
      {"swiglu", swiglu},
      {"split_and_rotate", split_and_rotate},
      {"cca_mix", cca_mix},
      {"linear_attention", linear_attention<Mixing::gate_per_head>},
      {"linear_attention_channels", linear_attention<Mixing::gate_per_channel>},
      {"linear_attention_delta", linear_attention<Mixing::delta>},
      {"short_convolution", short_convolution},
      {"feature_map", feature_map},
      {"gates", gates},
      {"output_gate", output_gate},
      {"router", router},
      {"expert_dispatch", expert_dispatch},
      {"embedding", embedding},
      {"cross_entropy", cross_entropy},
      {"adamw", [](const CaseSizes& s) { return update(s, Kind::embedding, 1); }},
      // Enough matrices that each thread has its own, as in a model.
      {"muon", [](const CaseSizes& s) { return update(s, Kind::matrix, 2 * at::get_num_threads()); }},
  };
  return all;
}

}  // namespace ingot::bench
