#include "kernels/routing.h"

#include "kernels/cpu/rows_routing.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char *kSort = "ingot_sort_slots", *kGather = "ingot_gather_rows", *kSum = "ingot_sum_slots";

bool takes_sort(const at::Tensor& choice, int64_t experts) {
  return experts < cpu::kMostClassesOfSlots && choice.numel() <= cpu::kMostSlots && runs_rows(choice.device(), choice.numel(), kSort);
}

// Into how many runs a GPU cuts slots: a block each, which another one places.
int64_t runs_of(const at::Tensor& choice) {
  constexpr int64_t kSlots = 512, kMost = 256;
  return device::is_gpu(choice) ? std::clamp<int64_t>(choice.numel() / kSlots, 1, kMost) : 1;
}

/// Rows of slots to or from those of tokens.
bool takes_slots(const at::Tensor& x, const at::Tensor& slots, at::ScalarType out, const char* symbol) {
  const auto is_taken = [](at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; };
  return is_taken(x.scalar_type()) && is_taken(out) && runs_rows(x.device(), slots.numel() * x.size(1), symbol);
}

}  // namespace

at::Tensor class_counts(const at::Tensor& choice, int64_t classes) {
  if (!device::is_gpu(choice)) return choice.bincount({}, classes);
  return at::zeros({classes}, choice.options()).scatter_add_(0, choice, at::ones_like(choice));
}

SortedSlots sort_slots(const at::Tensor& choice_in, int64_t experts) {
  if (!takes_sort(choice_in, experts)) return reference::sort_slots(choice_in, experts);
  const auto choice = choice_in.contiguous();
  const int64_t slots = choice.numel(), runs = runs_of(choice);
  const auto ints = choice.options().dtype(at::kInt);
  const SortedSlots sorted{.order = at::empty_like(choice),
                           .ends = at::empty({experts}, ints),
                           .inverse = at::empty_like(choice),
                           .is_routed = at::empty({slots}, choice.options().dtype(at::kFloat))};
  const auto counts = at::empty({runs, experts + 1}, ints);
  cpu::SortSlotsProblem p{};
  p.rows = 1, p.slots = slots, p.experts = experts, p.runs = runs;
  const auto bind = [](cpu::SortSlotsProblem& p, const RowTensors& t) {
    p.choice = static_cast<const int64_t*>(address(t.in[0]));
    p.order = static_cast<int64_t*>(address(t.out[0]));
    p.ends = static_cast<int32_t*>(address(t.out[1]));
    p.inverse = static_cast<int64_t*>(address(t.out[2]));
    p.is_routed = numbers(t.out[3]);
    p.counts = static_cast<int32_t*>(address(t.more[0]));
  };
  const RowTensors tensors{{choice}, {sorted.order, sorted.ends, sorted.inverse, sorted.is_routed}, {counts}};
  run_rows(RowCall<cpu::SortSlotsProblem>{"sort_slots", kSort, tensors, p, bind}, cpu::sort_slots);
  return sorted;
}

at::Tensor gather_rows(const at::Tensor& x_in, const at::Tensor& order_in, int64_t top_k, at::ScalarType out_dtype) {
  if (!takes_slots(x_in, order_in, out_dtype, kGather)) return reference::gather_rows(x_in, order_in, top_k, out_dtype);
  const auto x = x_in.contiguous(), order = order_in.contiguous();
  cpu::GatherRowsProblem p{};
  p.rows = order.numel(), p.width = x.size(1), p.top_k = top_k;
  p.is_bf16 = x.scalar_type() == at::kBFloat16, p.out_is_bf16 = out_dtype == at::kBFloat16;
  const auto out = at::empty({p.rows, p.width}, x.options().dtype(out_dtype));
  const auto bind = [](cpu::GatherRowsProblem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.order = static_cast<const int64_t*>(address(t.in[1]));
    p.out = address(t.out[0]);
  };
  run_rows(RowCall<cpu::GatherRowsProblem>{"gather_rows", kGather, {{x, order}, {out}, {}}, p, bind}, cpu::gather_rows);
  return out;
}

at::Tensor sum_slots(const at::Tensor& x_in, const at::Tensor& inverse_in, int64_t top_k, at::ScalarType out_dtype) {
  if (top_k == 1) return gather_rows(x_in, inverse_in, 1, out_dtype);
  if (!takes_slots(x_in, inverse_in, out_dtype, kSum)) return reference::sum_slots(x_in, inverse_in, top_k, out_dtype);
  const auto x = x_in.contiguous(), inverse = inverse_in.contiguous();
  cpu::SumSlotsProblem p{};
  p.rows = inverse.numel() / top_k, p.width = x.size(1), p.top_k = top_k;
  p.is_bf16 = x.scalar_type() == at::kBFloat16, p.out_is_bf16 = out_dtype == at::kBFloat16;
  const auto out = at::empty({p.rows, p.width}, x.options().dtype(out_dtype));
  const auto bind = [](cpu::SumSlotsProblem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.inverse = static_cast<const int64_t*>(address(t.in[1]));
    p.out = address(t.out[0]);
  };
  run_rows(RowCall<cpu::SumSlotsProblem>{"sum_slots", kSum, {{x, inverse}, {out}, {}}, p, bind}, cpu::sum_slots);
  return out;
}

}  // namespace ingot::kernels
