#include "kernels/grouped_operand.h"

#include "base/work_scope.h"
#include "device/device.h"
#include "device/gpu_library.h"
#include "device/virtual_device.h"
#include "kernels/cpu/rows_fp8.h"
#include "kernels/cpu/rows_routing.h"
#include "kernels/largest_of_rows.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char *kGroups = "ingot_fp8_groups", *kCodes = "ingot_fp8_codes";
constexpr int64_t kStep = cpu::kPlacesOfGroups;

bool has_grouped_fp8_gemms(at::Device device) {
  if (device::is_virtual(device)) return true;
  auto* const has = device::gpu_function<int(int)>("ingot_has_grouped_fp8_gemms");
  return has && has(device.index()) == 1;
}

// Places that hold every group's rows, whichever has how many.
int64_t places_of(int64_t rows, int64_t groups) { return (rows + groups * kStep + kStep - 1) / kStep * kStep; }

struct Scales {
  at::Tensor of_rows, of_groups;  // fp32 [rows], [groups]
};

// x [rows, width]; counts: fp32 [rows] or undefined.
Scales scales_of(const at::Tensor& x, const at::Tensor& ends, const at::Tensor& counts) {
  const auto largest = largest_of_rows(x);
  const Scales scales{at::empty_like(largest), at::empty({ends.numel()}, largest.options())};
  cpu::Fp8GroupsProblem p{};
  p.rows = ends.numel(), p.all_rows = x.size(0);
  const auto bind = [](cpu::Fp8GroupsProblem& p, const RowTensors& t) {
    p.largest = numbers(t.in[0]);
    p.ends = t.in[1].const_data_ptr<int32_t>();
    p.counts = numbers(t.more[0]);
    p.row_scale = numbers(t.out[0]);
    p.group_scale = numbers(t.out[1]);
  };
  const RowTensors tensors{{largest, ends}, {scales.of_rows, scales.of_groups}, {counts}};
  run_rows(RowCall<cpu::Fp8GroupsProblem>{"fp8_groups", kGroups, tensors, p, bind}, cpu::fp8_groups);
  return scales;
}

struct Places {
  at::Tensor rows, ends;  // int32: the row at each place or -1, the first place behind each group's
};

Places places_of(const at::Tensor& ends, const at::Tensor& counts) {
  const int64_t places = places_of(counts.numel(), ends.numel());
  const Places out{at::empty({places}, ends.options()), at::empty_like(ends)};
  cpu::Fp8GroupsProblem p{};
  p.rows = ends.numel(), p.all_rows = counts.numel(), p.places = places;
  const auto bind = [](cpu::Fp8GroupsProblem& p, const RowTensors& t) {
    p.ends = t.in[0].const_data_ptr<int32_t>();
    p.counts = numbers(t.in[1]);
    p.row_of_place = static_cast<int32_t*>(address(t.out[0]));
    p.place_ends = static_cast<int32_t*>(address(t.out[1]));
  };
  const RowTensors tensors{{ends, counts}, {out.rows, out.ends}, {}};
  run_rows(RowCall<cpu::Fp8GroupsProblem>{"fp8_groups", kGroups, tensors, p, bind}, cpu::fp8_groups);
  return out;
}

// x [rows, width] -> e4m3 [rows, width] or, transposed, [width, rows or places].
at::Tensor codes_of(const at::Tensor& x, const at::Tensor& row_scale, bool is_transposed, const at::Tensor& row_of_place = {}) {
  const int64_t rows = row_of_place.defined() ? row_of_place.numel() : x.size(0), width = x.size(1);
  const auto codes =
      at::empty(is_transposed ? at::IntArrayRef{width, rows} : at::IntArrayRef{rows, width}, x.options().dtype(at::kFloat8_e4m3fn));
  cpu::Fp8CodesProblem p{};
  p.rows = rows, p.width = width;
  p.is_bf16 = x.scalar_type() == at::kBFloat16, p.is_transposed = is_transposed;
  const auto bind = [](cpu::Fp8CodesProblem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.codes = static_cast<uint8_t*>(address(t.out[0]));
    p.row_scale = numbers(t.more[0]);
    p.row_of_place = static_cast<const int32_t*>(address(t.more[1]));
  };
  run_rows(RowCall<cpu::Fp8CodesProblem>{"fp8_codes", kCodes, {{x}, {codes}, {row_scale, row_of_place}}, p, bind}, cpu::fp8_codes);
  return codes;
}

// A group's scale for each of `count` rows of its left operand or columns of its right one.
at::Tensor for_each(const at::Tensor& group_scale, int64_t count) {
  return group_scale.unsqueeze(1).expand({group_scale.numel(), count}).contiguous();
}

// As the right operand of a GEMM that sums over the weights' dimension 1 or 2: [groups, summed, others], columns lying together.
GroupedCodes weights_in_codes(const at::Tensor& weights_in, int64_t summed) {
  const base::WorkScope scope("quantize", base::WorkKind::elementwise);
  const auto weights = weights_in.contiguous();
  const int64_t groups = weights.size(0), n = weights.size(1), k = weights.size(2);
  const auto rows = weights.view({groups * n, k});
  const auto ends = at::arange(1, groups + 1, rows.options().dtype(at::kInt)).mul_(n);
  const auto scales = scales_of(rows, ends, {});
  const auto codes = codes_of(rows, scales.of_rows, /*is_transposed=*/summed == 1);
  if (summed == 2) return {codes.view({groups, n, k}).transpose(1, 2), scales.of_rows.view({groups, n})};
  return {codes.view({k, groups, n}).permute({1, 2, 0}), for_each(scales.of_groups, k)};
}

GroupedCodes rows_in_codes(const at::Tensor& x_in, const at::Tensor& ends, const at::Tensor& counts) {
  const base::WorkScope scope("quantize", base::WorkKind::elementwise);
  const auto x = x_in.contiguous();
  const auto scales = scales_of(x, ends, counts);
  return {codes_of(x, scales.of_rows, /*is_transposed=*/false), scales.of_rows};
}

// [width, places]
GroupedCodes columns_in_codes(const at::Tensor& x_in, const at::Tensor& ends, const at::Tensor& counts, const Places& places) {
  const base::WorkScope scope("quantize", base::WorkKind::elementwise);
  const auto x = x_in.contiguous();
  const auto scales = scales_of(x, ends, counts);
  return {codes_of(x, scales.of_rows, /*is_transposed=*/true, places.rows), for_each(scales.of_groups, x.size(1)).view({-1})};
}

}  // namespace

bool GroupedGemms::take(const at::Tensor& weights, int64_t rows, std::optional<Quantization> quantization) {
  if (!takes_grouped_matmul(weights, weights)) return false;
  if (!quantization) return true;
  const int64_t groups = weights.size(0), n = weights.size(1), k = weights.size(2);
  const int64_t most = std::max(groups * n * k, places_of(rows, groups) * std::max(n, k));
  return quantization == Quantization::fp8 && n % kStep == 0 && k % kStep == 0 && rows <= cpu::kMostSlots &&
         groups * n <= cpu::kMostSlots && runs_rows(weights.device(), most, kGroups) && runs_rows(weights.device(), most, kCodes) &&
         has_grouped_fp8_gemms(weights.device());
}

at::Tensor GroupedGemms::forward(const at::Tensor& x, const at::Tensor& weights) const {
  if (!quantization_) return grouped_matmul(x, weights.transpose(1, 2), ends_);
  return grouped_matmul(rows_in_codes(x, ends_, is_routed_), weights_in_codes(weights, 2), ends_);
}

at::Tensor GroupedGemms::grad_input(const at::Tensor& grad, const at::Tensor& weights) const {
  if (!quantization_) return grouped_matmul(grad, weights, ends_);
  return grouped_matmul(rows_in_codes(grad, ends_, is_routed_), weights_in_codes(weights, 1), ends_);
}

void GroupedGemms::grad_weight_into(at::Tensor out, const at::Tensor& grad, const at::Tensor& x, bool overwrite) const {
  if (!quantization_) return grouped_gradient_into(std::move(out), grad, x, ends_, overwrite);
  const auto places = places_of(ends_, is_routed_);
  grouped_gradient_into(std::move(out), columns_in_codes(grad, ends_, is_routed_, places), columns_in_codes(x, ends_, is_routed_, places),
                        places.ends, grad.size(0), overwrite);
}

}  // namespace ingot::kernels
