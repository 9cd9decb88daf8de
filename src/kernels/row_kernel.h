// Runs a row-wise kernel where its tensors lie: the CPU's of cpu/rows_*.h on the host, that of gpu/ on a GPU (libingot_cuda.so has it), the
// CPU's at an emulated device's own pace, none on a counting device, which writes it down.
#pragma once

#include <fmt/format.h>

#include "base/error.h"
#include "device/device.h"
#include "device/gpu_library.h"
#include "device/stream.h"
#include "device/virtual_device.h"
#include "kernels/cpu/rows_parallel.h"
#include "kernels/differentiable.h"

namespace ingot::kernels {

/// Of a call, in the order that its `bind` expects; some may be undefined.
struct RowTensors {
  TensorList in, out;  // as a trace has them
  TensorList more;     // small ones that are not worth a word there
};

template <class Problem>
struct RowCall {
  const char* name;    // as traced; lives as long as the program
  const char* symbol;  // of the kernel in libingot_cuda.so (gpu/rows.cpp)
  RowTensors tensors;
  Problem problem;                                    // without addresses
  void (*bind)(Problem& problem, const RowTensors&);  // fills them in
  int64_t grain = 16;                                 // rows that are worth a thread
  int64_t gpu_run = 8;                                // rows, at least, whose sums a GPU's block or thread keeps to itself
};

/// Whether row-wise kernels of that size run there: on a CPU, or on a GPU that has `symbol`.
inline bool runs_rows(at::Device device, int64_t elements, const char* symbol) {
  constexpr int64_t kMostElements = int64_t{1} << 32;  // of what a GPU's kernels count
  if (device::is_cpu(device)) return true;
  return device::is_gpu(device) && elements < kMostElements && (device::is_virtual(device) || device::find_gpu_function(symbol) != nullptr);
}

/// Whether the row-wise kernels take a tensor of this kind: fp32 or bf16, where they run.
inline bool takes_rows(const at::Tensor& x, const char* symbol) {
  return (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && runs_rows(x.device(), x.numel(), symbol);
}

inline void* address(const at::Tensor& x) { return x.defined() ? const_cast<void*>(x.const_data_ptr()) : nullptr; }
inline float* numbers(const at::Tensor& x) { return x.defined() ? const_cast<float*>(x.const_data_ptr<float>()) : nullptr; }

namespace detail {

template <class Problem>
void launch_on_gpu(const RowCall<Problem>& call, const Problem& problem, at::Device device) {
  auto* const launch = device::gpu_function<int(const Problem*, int)>(call.symbol);
  const int error = launch ? launch(&problem, device.index()) : -1;
  if (error != 0) throw base::Error(fmt::format("{} did not start on {}: error {} of the driver", call.name, device.str(), error));
}

/// Queues kernel(problem bound to host views, the views of `also`) on an emulated device.
template <class Problem, class Kernel>
void launch_on_emulated(const RowCall<Problem>& call, const TensorList& also, const Kernel& kernel) {
  const auto& t = call.tensors;
  TensorList all = t.in;
  for (const auto* more : {&t.out, &t.more, &also}) all.insert(all.end(), more->begin(), more->end());
  device::launch(all, [=, problem = call.problem, bind = call.bind, in = t.in.size(), out = t.out.size(),
                       more = t.more.size()](const TensorList& host) mutable {
    const auto end_of_in = host.begin() + static_cast<int64_t>(in), end_of_out = end_of_in + static_cast<int64_t>(out),
               end_of_more = end_of_out + static_cast<int64_t>(more);
    bind(problem, {{host.begin(), end_of_in}, {end_of_in, end_of_out}, {end_of_out, end_of_more}});
    kernel(problem, TensorList(end_of_more, host.end()));
  });
}

}  // namespace detail

/// `kernel`: the CPU's, (problem, begin, end).
template <class Problem, class Kernel>
void run_rows(const RowCall<Problem>& call, const Kernel& kernel) {
  const auto device = call.tensors.in.front().device();
  const auto on_host = [kernel, grain = call.grain](const Problem& p, const TensorList&) {
    cpu::parallel_rows(p.rows, grain, [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
  };
  device::note(call.name, call.tensors.in, call.tensors.out, 0);
  if (device::is_counting(device)) return;
  if (device::is_virtual(device)) return detail::launch_on_emulated(call, {}, on_host);
  auto problem = call.problem;
  call.bind(problem, call.tensors);
  device.is_cpu() ? on_host(problem, {}) : detail::launch_on_gpu(call, problem, device);
}

/// Into how many runs of `least` rows or more a GPU cuts those that it sums over; the runs' sums are added up afterwards, in their order.
inline int64_t gpu_row_runs(int64_t rows, int64_t least) { return std::clamp<int64_t>(rows / least, 1, 512); }

/// A kernel that also leaves `vectors` sums over rows of `width` each: (problem, begin, end, sums) on a CPU; a GPU's writes the first
/// `used` for each of problem.runs runs to problem.sums. fp32 [vectors or used, width].
template <class Problem, class Kernel>
at::Tensor run_and_sum_rows(const RowCall<Problem>& call, const Kernel& kernel, int64_t vectors, int64_t used, int64_t width) {
  const auto& like = call.tensors.in.front();
  device::note(call.name, call.tensors.in, call.tensors.out, 0);
  if (device::is_cpu(like)) {
    auto problem = call.problem;
    if (!device::is_counting(like)) call.bind(problem, call.tensors);
    return cpu::sum_over_rows(like, problem.rows, vectors * width,
                              [&](int64_t begin, int64_t end, float* sums) { kernel(problem, begin, end, sums); })
        .view({vectors, width});
  }
  auto problem = call.problem;
  problem.runs = gpu_row_runs(problem.rows, call.gpu_run);
  auto sums = used > 0 ? at::empty({problem.runs, vectors, width}, like.options().dtype(at::kFloat)) : at::Tensor();
  if (device::is_counting(like)) {
  } else if (device::is_virtual(like.device())) {
    detail::launch_on_emulated(call, {sums}, [=](const Problem& p, const TensorList& host) {
      const auto of_runs = used > 0 ? host[0].zero_() : at::zeros({1, vectors, width});
      const int64_t runs = of_runs.size(0);
      for (int64_t run = 0; run < runs; ++run)
        kernel(p, p.rows * run / runs, p.rows * (run + 1) / runs, of_runs[run].template data_ptr<float>());
    });
  } else {
    call.bind(problem, call.tensors);
    problem.sums = numbers(sums);
    detail::launch_on_gpu(call, problem, like.device());
  }
  return used > 0 ? sums.narrow(1, 0, used).sum(0) : at::Tensor();
}

}  // namespace ingot::kernels
