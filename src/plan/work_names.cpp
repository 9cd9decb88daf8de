#include "plan/work_names.h"

#include <set>

namespace ingot::plan {
namespace {

const std::set<std::string_view>& gemms() {
  static const std::set<std::string_view> all = {"aten::mm",
                                                 "aten::addmm",
                                                 "aten::bmm",
                                                 "aten::baddbmm",
                                                 "aten::addmv",
                                                 "aten::mv",
                                                 "aten::matmul",
                                                 "aten::linear",
                                                 "grouped_gemm",
                                                 "grouped_gemm.gradient",
                                                 "scaled_gemm",
                                                 "scaled_grouped_gemm",
                                                 "scaled_grouped_gemm.gradient"};
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

bool is_gemm(std::string_view operator_name) { return gemms().contains(operator_name); }

std::optional<WorkKind> kind_of_operator(std::string_view name) {
  if (is_gemm(name)) return WorkKind::matmul;
  // Leaves' gradients are added up where they arrive.
  if (elementwise().contains(name) || name == "torch::autograd::AccumulateGrad") return WorkKind::elementwise;
  return std::nullopt;
}

}  // namespace ingot::plan
