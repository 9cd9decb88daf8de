// The ATen side of the row-wise CPU kernels: spreading rows over threads, and sums over rows in an order that does not depend on
// the number of threads.
#pragma once

#include "device/aten.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu/parallel.h"

namespace ingot::kernels::cpu {

/// Whether the fused kernels take a tensor of this kind.
inline bool takes(const at::Tensor& x) { return device::is_cpu(x) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16); }

/// body(begin, end) over [0, rows) in runs of at least `grain` rows.
template <class Body>
void parallel_rows(int64_t rows, int64_t grain, const Body& body) {
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
}

/// Into how many runs sum_over_rows cuts them.
inline int64_t row_runs(int64_t rows) { return std::clamp<int64_t>(rows / 32, 1, 16); }

/// body(begin, end, sums) over fixed runs of rows, each with its own zeroed `width` sums, which are then added up in order:
/// fp32 [width], on the device of `like`; only allocated where that one counts.
template <class Body>
at::Tensor sum_over_rows(const at::Tensor& like, int64_t rows, int64_t width, const Body& body) {
  const int64_t runs = row_runs(rows);
  auto partial = at::zeros({runs, width}, like.options().dtype(at::kFloat));
  if (device::is_counting(like)) return runs == 1 ? partial[0] : partial.sum(0);
  auto* data = partial.data_ptr<float>();
  parallel_tasks(runs, [&](int64_t run, int64_t) { body(rows * run / runs, rows * (run + 1) / runs, data + run * width); });
  return runs == 1 ? partial[0] : partial.sum(0);
}

inline const float* floats(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

}  // namespace ingot::kernels::cpu
