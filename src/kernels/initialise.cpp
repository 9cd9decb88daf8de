#include "kernels/initialise.h"

#include "base/random.h"
#include "device/stream.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

using gpu::InitialiseProblem;

constexpr const char *kName = "fill_normal", *kSymbol = "ingot_fill_normal";

void fill_from_host(const at::Tensor& out, uint64_t seed, const tensor::LogicalTensor& tensor, const tensor::Box& box,
                    const tensor::Initial& initial) {
  const auto host = at::empty(box.extent, at::kFloat);
  tensor::initialise({host.data_ptr<float>(), static_cast<size_t>(host.numel())}, seed, tensor, box, initial);
  out.copy_(host);
}

bool is_fused(const at::Tensor& out) {
  const auto dtype = out.scalar_type();
  return device::is_gpu(out) && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble) &&
         (device::is_virtual(out.device()) || device::find_gpu_function(kSymbol) != nullptr);
}

// From one index to the next, in elements of the whole tensor and of memory.
struct Dim {
  int64_t extent, stride, out_stride;
};

// Of the box, where neighbours that are one run of elements count as one. The last has elements side by side, maybe a single one.
std::vector<Dim> merged_dims(const at::Tensor& out, const tensor::Shape& shape, const tensor::Box& box) {
  std::vector<Dim> dims{{1, 1, 1}};
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    const Dim dim{box.extent[d], stride, out.stride(static_cast<int64_t>(d))};
    if (dim.extent == 1) continue;
    auto& inner = dims.back();
    if (dim.stride == inner.extent * inner.stride && dim.out_stride == inner.extent * inner.out_stride) inner.extent *= dim.extent;
    else dims.push_back(dim);
  }
  return {dims.rbegin(), dims.rend()};
}

// A problem for each index of the dims before the last two.
void append_problems(std::span<const Dim> dims, InitialiseProblem p, std::vector<InitialiseProblem>& all) {
  if (dims.size() <= 2) {
    const Dim row = dims.size() == 2 ? dims.front() : Dim{1, 0, 0};
    p.rows = row.extent, p.stride = row.stride, p.out_stride = row.out_stride;
    p.width = dims.back().extent;
    all.push_back(p);
    return;
  }
  for (int64_t i = 0; i < dims.front().extent; ++i) {
    append_problems(dims.subspan(1), p, all);
    p.first += static_cast<uint64_t>(dims.front().stride);
    p.out = static_cast<char*>(p.out) + dims.front().out_stride * p.element_bytes;
  }
}

}  // namespace

std::vector<InitialiseProblem> fill_normal_problems(const at::Tensor& out, uint64_t seed, const tensor::LogicalTensor& tensor,
                                                    const tensor::Box& box, const tensor::Initial& initial) {
  InitialiseProblem p{};
  p.key = base::stream_key(seed, tensor.name);
  int64_t stride = 1;
  for (size_t d = tensor.shape.size(); d-- > 0; stride *= tensor.shape[d]) p.first += static_cast<uint64_t>(box.offset[d] * stride);
  p.mean = initial.mean, p.deviation = initial.deviation;
  p.element_bytes = static_cast<int64_t>(out.element_size());
  p.out = address(out);
  std::vector<InitialiseProblem> all;
  if (out.numel() > 0) append_problems(merged_dims(out, tensor.shape, box), p, all);
  return all;
}

void initialise(at::Tensor out, uint64_t seed, const tensor::LogicalTensor& tensor, const tensor::Box& box,
                const tensor::Initial& initial) {
  if (initial.kind == tensor::Initial::Kind::constant && device::is_gpu(out)) {
    out.fill_(static_cast<float>(initial.mean));
    return;
  }
  if (!is_fused(out)) return fill_from_host(out, seed, tensor, box, initial);
  device::note(kName, {}, {out}, 0);
  if (device::is_counting(out)) return;
  if (device::is_virtual(out.device()))
    return device::launch({out}, [=](const auto& host) { fill_from_host(host[0], seed, tensor, box, initial); });
  for (const auto& p : fill_normal_problems(out, seed, tensor, box, initial))
    detail::launch_on_gpu<InitialiseProblem>({.name = kName, .symbol = kSymbol}, p, out.device());
}

}  // namespace ingot::kernels
