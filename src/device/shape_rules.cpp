#include "device/shape_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <map>

#include "device/aten.h"
#include "device/virtual_device.h"

namespace ingot::device {
namespace {

using Stack = torch::jit::Stack;

at::Tensor made(at::IntArrayRef sizes, const at::Tensor& like) { return at::empty(sizes, like.options()); }
at::Tensor made(at::IntArrayRef sizes, const at::Tensor& like, at::ScalarType dtype) {
  return at::empty(sizes, like.options().dtype(dtype));
}

template <class... Results>
void leave(Stack& stack, Results&&... results) {
  stack.clear();
  (stack.emplace_back(std::forward<Results>(results)), ...);
}

// Pointwise: strides, too, unless they leave gaps.
void like_first(Stack& s) { leave(s, at::empty_like(s[0].toTensor())); }

void boolean_like_first(Stack& s) {
  const auto x = s[0].toTensor();
  leave(s, at::empty_like(x, x.options().dtype(at::kBool)));
}

void contiguous_like_first(Stack& s) {
  const auto x = s[0].toTensor();
  leave(s, made(x.sizes(), x));
}

void like_first_broadcast_with_second(Stack& s) {
  const auto x = s[0].toTensor();
  leave(s, made(at::infer_size(x.sizes(), s[1].toTensor().sizes()), x));
}

// A pointwise operation's out variant, which gives `out` its shape.
void pointwise_out(Stack& s) {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i + 1 < s.size(); ++i)
    if (s[i].isTensor()) sizes = at::infer_size(sizes, s[i].toTensor().sizes());
  const auto out = s.back().toTensor();
  out.resize_(sizes);
  leave(s, out);
}

void index_select(Stack& s) {
  const auto x = s[0].toTensor();
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(s[1].toInt(), x.dim()))] = s[2].toTensor().numel();
  leave(s, made(sizes, x));
}

// Spread evenly over the classes: what a planner assumes of a router.
void bincount(Stack& s) {
  const auto x = s[0].toTensor();
  const int64_t classes = std::max<int64_t>(1, s[2].toInt());
  const auto counts = made({classes}, x, at::kLong);
  auto even = at::full({classes}, x.numel() / classes, at::kLong);
  even.narrow(0, 0, x.numel() % classes).add_(1);
  declare_contents(counts, even);
  leave(s, counts);
}

void native_layer_norm(Stack& s) {
  const auto x = s[0].toTensor();
  auto rows = x.sizes().vec();
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(s[1].toIntVector().size()), rows.end(), 1);
  leave(s, made(x.sizes(), x), made(rows, x), made(rows, x));
}

void native_layer_norm_backward(Stack& s) {
  const auto x = s[1].toTensor();
  const auto width = s[2].toIntVector();
  const auto wanted = s[7].toBoolList();
  const auto gradient = [&](size_t i, at::IntArrayRef sizes) { return wanted[i] ? made(sizes, x) : at::Tensor(); };
  leave(s, gradient(0, x.sizes()), gradient(1, width), gradient(2, width));
}

void embedding_dense_backward(Stack& s) {
  const auto grad = s[0].toTensor();
  leave(s, made({s[2].toInt(), grad.size(-1)}, grad));
}

void where(Stack& s) {
  const auto condition = s[0].toTensor(), a = s[1].toTensor(), b = s[2].toTensor();
  // The order of strides is that of any pointwise operation of three operands; one that has a Meta kernel says which.
  const auto alike = [](const at::Tensor& x) {
    return at::empty_strided(x.sizes(), x.strides(), at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
  };
  const auto shape = at::addcmul(alike(condition), alike(a), alike(b));
  leave(s, at::empty_strided(shape.sizes(), shape.strides(), condition.options().dtype(at::result_type(a, b))));
}

void solve_triangular(Stack& s) {
  const auto a = s[0].toTensor(), b = s[1].toTensor();
  auto sizes = at::infer_size(a.sizes().slice(0, static_cast<size_t>(a.dim()) - 2), b.sizes().slice(0, static_cast<size_t>(b.dim()) - 2));
  sizes.insert(sizes.end(), {b.size(-1), b.size(-2)});
  leave(s, made(sizes, b).transpose(-2, -1));  // column by column
}

// With the buffer of the CPU's kernel; CUDA's leaves it empty.
void log_sigmoid_forward(Stack& s) {
  const auto x = s[0].toTensor();
  leave(s, at::empty_like(x), made(x.sizes(), x));
}

void dot(Stack& s) {
  const auto x = s[0].toTensor();
  leave(s, made({}, x));
}

// matmul of bf16 into fp32 (CUDA has it).
void mm_to_dtype(Stack& s) {
  const auto a = s[0].toTensor(), b = s[1].toTensor();
  leave(s, made({a.size(0), b.size(1)}, a, s[2].toScalarType()));
}

// What a comparison of tensors says of data that is not there.
void equal(Stack& s) { leave(s, true); }

}  // namespace

ShapeRule shape_rule(const std::string& name) {
  static const std::map<std::string, ShapeRule> rules = {
      {"aten::index_select", &index_select},
      {"aten::bincount", &bincount},
      {"aten::native_layer_norm", &native_layer_norm},
      {"aten::native_layer_norm_backward", &native_layer_norm_backward},
      {"aten::embedding_dense_backward", &embedding_dense_backward},
      {"aten::where.self", &where},
      {"aten::linalg_solve_triangular", &solve_triangular},
      {"aten::dot", &dot},
      {"aten::mm.dtype", &mm_to_dtype},
      {"aten::equal", &equal},
      {"aten::flip", &like_first},
      {"aten::roll", &contiguous_like_first},
      {"aten::relu", &like_first},
      {"aten::log_sigmoid_backward", &like_first},
      {"aten::abs", &like_first},
      {"aten::log_sigmoid_forward", &log_sigmoid_forward},
      {"aten::isnan", &boolean_like_first},
      {"aten::masked_fill.Scalar", &like_first_broadcast_with_second},
      {"aten::logical_or.out", &pointwise_out},
      {"aten::logical_and.out", &pointwise_out},
      {"aten::logical_xor.out", &pointwise_out},
      {"aten::logical_not.out", &pointwise_out},
      {"aten::abs.out", &pointwise_out},
  };
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace ingot::device
