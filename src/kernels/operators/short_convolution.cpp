// Four taps a channel. rows: tokens; width: channels.
#include "kernels/short_convolution.h"

#include "kernels/operators/helpers.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kTaps = 4;

OperatorCall make(const OperatorSizes& s) {
  OperatorCall call;
  call.inputs = {s.leaf({1, s.rows, s.width}), s.leaf({s.width, 1, kTaps}, s.wide())};
  call.forward = [](const TensorList& in) -> TensorList { return {short_convolution(in[0], in[1])}; };
  call.reference = [](const TensorList& in) -> TensorList {
    const int64_t channels = in[0].size(2);
    const auto padded = at::constant_pad_nd(in[0].transpose(1, 2), {kTaps - 1, 0});
    return {at::silu(at::conv1d(padded, in[1], {}, at::IntArrayRef{1}, at::IntArrayRef{0}, at::IntArrayRef{1}, channels)).transpose(1, 2)};
  };
  return call;
}

OperatorCost cost(const OperatorSizes& s) {
  const int64_t x = s.rows * s.width * bytes_of(s.dtype), weight = s.width * kTaps * 4;
  return {
      .forward = {.read_bytes = x + weight, .written_bytes = x, .scratch_bytes = weight},
      .backward = {.read_bytes = 2 * x + weight, .written_bytes = x, .scratch_bytes = weight + row_sums_scratch(s.rows, kTaps * s.width)},
      .saved_bytes = x + weight};
}

}  // namespace

std::vector<Operator> short_convolution_operators() {
  return {token_operator({.name = "short_convolution",
                          .backward_name = "short_convolution.backward",
                          .kind = WorkKind::linear_attention,
                          .forward_size = size_of_input<0>,
                          .backward_size = size_of_input<0>,
                          .make = make,
                          .cost = cost,
                          .checked = {{3, 5}, {70, 24}, {37, 45}},
                          .fused_on = {device::Target::cpu, device::Target::gpu}})};
}

}  // namespace ingot::kernels
