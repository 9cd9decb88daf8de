#include "bench/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "bench/cases.h"
#include "kernels/differentiable.h"

namespace ingot::bench {
namespace {

// Larger than the last cache of most machines.
constexpr int64_t kWorkingSetBytes = int64_t{48} << 20;
constexpr int64_t kMostInstances = 32;

struct Times {
  Samples forward, backward;  // of all instances
  bool has_backward = false;
};

// One round over all instances.
void run_once(std::vector<Case>& instances, at::Device device, Times& times) {
  std::vector<std::vector<at::Tensor>> outputs, gradients;
  times.forward.add(
      [&] {
        for (auto& instance : instances) outputs.push_back(instance.forward());
      },
      device);
  times.has_backward = !outputs[0].empty();
  if (!times.has_backward) return;
  for (const auto& of_one : outputs) {
    gradients.emplace_back();
    for (const auto& output : of_one) gradients.back().push_back(at::full_like(output, 1e-3));
  }
  times.backward.add(
      [&] {
        for (size_t i = instances.size(); i-- > 0;) kernels::backward(outputs[i], gradients[i]);
      },
      device);
  for (auto& instance : instances)
    for (auto& leaf : instance.leaves) leaf.mutable_grad().reset();
}

}  // namespace

std::vector<KernelSizes> kernel_sizes(bool quick) {
  const std::vector<int64_t> rows = quick ? std::vector<int64_t>{128, 2048} : std::vector<int64_t>{32, 256, 1024, 4096, 16384};
  const auto widths = [&](int64_t low, int64_t high) {
    std::vector<int64_t> all = {low};
    while (all.back() < high) all.push_back(quick ? high : 2 * all.back());
    return all;
  };
  std::vector<KernelSizes> sizes;
  for (const char* name : {"rms_norm", "join_norm", "scaled_join_norm", "join", "scaled_join", "swiglu", "split_and_rotate", "embedding",
                           "expert_dispatch", "short_convolution", "feature_map", "gates", "output_gate"})
    sizes.push_back({name, rows, widths(256, quick ? 1024 : 2048)});
  std::vector<int64_t> head_rows = rows;
  for (auto& r : head_rows) r *= 5;
  sizes.push_back({"cca_mix", head_rows, widths(32, 128)});
  std::vector<int64_t> linear_rows = rows;
  for (auto& r : linear_rows) r *= 4;
  for (const char* name : {"linear_attention", "linear_attention_channels", "linear_attention_delta"})
    sizes.push_back({name, linear_rows, widths(32, 128)});
  sizes.push_back({"router", rows, widths(64, 256)});
  sizes.push_back(
      {"cross_entropy", quick ? std::vector<int64_t>{256} : std::vector<int64_t>{64, 256, 1024}, widths(4096, quick ? 16384 : 65536)});
  sizes.push_back(
      {"adamw", quick ? std::vector<int64_t>{256, 65536, 4 << 20} : std::vector<int64_t>{256, 4096, 65536, 1 << 20, 16 << 20}, {1}});
  for (const int64_t side : quick ? std::vector<int64_t>{32, 128, 384} : std::vector<int64_t>{16, 32, 64, 128, 256, 512, 1024})
    sizes.push_back({"muon", {side}, {side, 3 * side}});
  return sizes;
}

plan::KernelTime measure_kernel(const std::string& name, const std::string& dtype, int64_t rows, int64_t width, const Repeats& repeats,
                                at::Device device) {
  const auto& known = case_makers();
  const auto found = known.find(name);
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const auto& [other, maker] : known) names.push_back(other);
    throw base::UsageError("unknown kernel '{}'{}", name, base::did_you_mean(name, names));
  }
  plan::KernelTime result{.name = name, .dtype = dtype, .rows = rows, .width = width};
  const CaseSizes sizes{rows, width, dtype, device};
  std::vector<Case> instances;
  instances.push_back(found->second(sizes));
  result.count = instances[0].count;
  const int64_t copies = instances[0].alone ? 1 : std::clamp<int64_t>(kWorkingSetBytes / (rows * width * 4 * 3), 1, kMostInstances);
  while (static_cast<int64_t>(instances.size()) < copies) instances.push_back(found->second(sizes));

  Times warm, times;
  for (int i = 0; i < repeats.warmup; ++i) run_once(instances, device, warm);
  do run_once(instances, device, times);
  while (!times.forward.enough(repeats) || (times.has_backward && !times.backward.enough(repeats)));
  const auto all = static_cast<double>(instances.size());
  result.forward_s = times.forward.result() / all;
  result.backward_s = times.has_backward ? times.backward.result() / all : 0;
  return result;
}

}  // namespace ingot::bench
