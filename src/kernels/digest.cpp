#include "kernels/digest.h"

#include <algorithm>

#include "kernels/cpu/rows_digest.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

using Problem = cpu::DigestProblem;

constexpr const char* kSymbol = "ingot_digest";

bool is_fused(at::Device device) {
  return device::is_cpu(device) || device::is_virtual(device) || device::find_gpu_function(kSymbol) != nullptr;
}

Problem problem_of(const TensorList& tensors) {
  Problem p{};
  for (const auto& x : tensors) {
    const auto bytes = static_cast<int64_t>(x.nbytes());
    p.of[p.tensors++] = {nullptr, bytes, p.rows};
    p.rows += std::max<int64_t>(1, (bytes + Problem::kChunkBytes - 1) / Problem::kChunkBytes);
  }
  return p;
}

void bind(Problem& p, const RowTensors& t) {
  for (int64_t i = 0; i < p.tensors; ++i) p.of[i].data = address(t.in[static_cast<size_t>(i)]);
  p.sums = static_cast<uint64_t*>(address(t.out[0]));
}

}  // namespace

at::Tensor digest(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return at::empty({0, 2}, at::kLong);
  const auto device = tensors.front().device();
  const auto count = static_cast<int64_t>(tensors.size());
  auto sums = at::zeros({count, 2}, at::TensorOptions(at::kLong).device(device));
  if (!is_fused(device)) {
    for (int64_t i = 0; i < count; ++i) sums[i].copy_(reference::digest(tensors[static_cast<size_t>(i)]));
    return sums;
  }
  for (int64_t from = 0; from < count; from += Problem::kMost) {
    const int64_t end = std::min<int64_t>(from + Problem::kMost, count);
    const RowTensors some{{tensors.begin() + from, tensors.begin() + end}, {sums.narrow(0, from, end - from)}, {}};
    run_rows(RowCall<Problem>{"digest", kSymbol, some, problem_of(some.in), bind}, cpu::digest);
  }
  return sums;
}

}  // namespace ingot::kernels
