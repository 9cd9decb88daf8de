#include "plan/work_names.h"

#include <set>
#include <unordered_map>

namespace ingot::plan {
namespace {

using Kind = WorkKind;
using Rule = WorkName::Rule;

const std::unordered_map<std::string_view, WorkName>& scopes() {
  static const std::unordered_map<std::string_view, WorkName> all = {
      {"forward", {Rule::forward, {}}},
      {"backward", {Rule::backward, {}}},
      {"recompute", {Rule::again, Kind::recomputation}},
      {"RecomputeFunction", {Rule::passes, {}}},
      {"data", {Rule::is, Kind::data}},
      {"communication", {Rule::owns, Kind::communication}},
      {"gradient_norm", {Rule::is, Kind::gradient_norm}},
      {"optimizer", {Rule::is, Kind::adamw}},
      {"muon", {Rule::is, Kind::muon}},
      {"newton_schulz", {Rule::is, Kind::muon}},
      {"LinearFunction", {Rule::is, Kind::products}},
      {"deferred_gradients", {Rule::is, Kind::products}},
      {"FoldedLayerFunction", {Rule::is, Kind::products}},
      {"attention", {Rule::is, Kind::attention}},
      {"AttentionFunction", {Rule::is, Kind::attention}},
      {"AllGatherFunction", {Rule::is, Kind::attention}},
      {"UlyssesFunction", {Rule::is, Kind::attention}},
      {"RingFunction", {Rule::is, Kind::attention}},
      {"FoldedAttentionFunction", {Rule::shares, Kind::attention}},
      {"rotate", {Rule::is, Kind::attention}},
      {"SplitRotateFunction", {Rule::is, Kind::attention}},
      {"cca_mix", {Rule::is, Kind::attention}},
      {"CcaMixFunction", {Rule::is, Kind::attention}},
      {"HaloFunction", {Rule::passes, {}}},
      {"linear_attention", {Rule::is, Kind::linear_attention}},
      {"LinearAttentionFunction", {Rule::is, Kind::linear_attention}},
      {"ShortConvolutionFunction", {Rule::is, Kind::linear_attention}},
      {"FusedShortConvolutionFunction", {Rule::is, Kind::linear_attention}},
      {"ShardedLinearFunction", {Rule::is, Kind::linear_attention}},
      {"BidirectionalFunction", {Rule::is, Kind::linear_attention}},
      {"norm", {Rule::is, Kind::norms}},
      {"JoinNormFunction", {Rule::is, Kind::norms}},
      {"swiglu", {Rule::is, Kind::activations}},
      {"SwigluFunction", {Rule::is, Kind::activations}},
      {"embedding", {Rule::is, Kind::embedding}},
      {"EmbeddingFunction", {Rule::is, Kind::embedding}},
      {"FoldedEmbeddingFunction", {Rule::is, Kind::embedding}},
      {"head_loss", {Rule::is, Kind::head}},
      {"HeadLossFunction", {Rule::is, Kind::head}},
      {"FoldedHeadLossFunction", {Rule::is, Kind::head}},
      {"route", {Rule::owns, Kind::routing}},
      {"experts", {Rule::shares, Kind::routing}},
      {"ExpertsFunction", {Rule::shares, Kind::routing}},
      {"EnterFunction", {Rule::passes, {}}},
      {"LeaveFunction", {Rule::passes, {}}},
  };
  return all;
}

const std::set<std::string_view>& products() {
  static const std::set<std::string_view> all = {"aten::mm",    "aten::addmm", "aten::bmm",    "aten::baddbmm",
                                                 "aten::addmv", "aten::mv",    "aten::matmul", "aten::linear"};
  return all;
}

// What moves or combines elements wherever it is called.
const std::set<std::string_view>& elementwise() {
  static const std::set<std::string_view> all = {"aten::add",
                                                 "aten::add_",
                                                 "aten::sub",
                                                 "aten::sub_",
                                                 "aten::mul",
                                                 "aten::mul_",
                                                 "aten::div",
                                                 "aten::div_",
                                                 "aten::neg",
                                                 "aten::sum",
                                                 "aten::copy_",
                                                 "aten::to",
                                                 "aten::_to_copy",
                                                 "aten::clone",
                                                 "aten::contiguous",
                                                 "aten::cat",
                                                 "aten::stack",
                                                 "aten::zeros",
                                                 "aten::zeros_like",
                                                 "aten::zero_",
                                                 "aten::ones",
                                                 "aten::ones_like",
                                                 "aten::full",
                                                 "aten::full_like",
                                                 "aten::fill_",
                                                 "aten::empty",
                                                 "aten::empty_like",
                                                 "aten::empty_strided",
                                                 "aten::item",
                                                 "aten::_local_scalar_dense",
                                                 "aten::view",
                                                 "aten::view_as",
                                                 "aten::reshape",
                                                 "aten::flatten",
                                                 "aten::unflatten",
                                                 "aten::narrow",
                                                 "aten::slice",
                                                 "aten::select",
                                                 "aten::t",
                                                 "aten::transpose",
                                                 "aten::permute",
                                                 "aten::expand",
                                                 "aten::as_strided",
                                                 "aten::detach",
                                                 "detach",
                                                 "aten::squeeze",
                                                 "aten::unsqueeze",
                                                 "aten::unbind",
                                                 "aten::split",
                                                 "aten::split_with_sizes",
                                                 "aten::chunk",
                                                 "aten::set_",
                                                 "aten::set_data",
                                                 "aten::resize_",
                                                 "aten::index_select",
                                                 "aten::index_add_",
                                                 "aten::arange",
                                                 "aten::ge",
                                                 "aten::lt",
                                                 "aten::eq",
                                                 "aten::isfinite",
                                                 "aten::all",
                                                 "aten::bincount",
                                                 "aten::is_nonzero",
                                                 "aten::new_zeros",
                                                 "aten::new_empty_strided",
                                                 "aten::_unsafe_view",
                                                 "aten::alias",
                                                 "aten::slice_backward",
                                                 "aten::select_backward",
                                                 "aten::sigmoid",
                                                 "aten::silu",
                                                 "aten::exp",
                                                 "aten::where",
                                                 "aten::masked_fill",
                                                 "aten::masked_fill_",
                                                 "aten::result_type",
                                                 "aten::scalar_tensor"};
  return all;
}

}  // namespace

const WorkName* find_scope(std::string_view name) {
  const auto found = scopes().find(name);
  return found == scopes().end() ? nullptr : &found->second;
}

bool is_product(std::string_view operator_name) { return products().contains(operator_name); }

const WorkName* find_operator(std::string_view name) {
  static const WorkName product{Rule::is, WorkKind::products}, other{Rule::is, WorkKind::elementwise};
  if (is_product(name)) return &product;
  // Leaves' gradients are added up where they arrive.
  if (elementwise().contains(name) || name == "torch::autograd::AccumulateGrad") return &other;
  return nullptr;
}

}  // namespace ingot::plan
