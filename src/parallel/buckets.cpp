#include "parallel/gradient_buckets.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"

namespace ingot::parallel {

using layers::Parameter;

GradientBuckets::GradientBuckets(layers::ParameterList& parameters, comm::Group& group, int64_t bucket_bytes) : group_(group) {
  std::map<int64_t, std::vector<Parameter*>, std::greater<>> by_layer;  // backward goes from the last to the first
  for (const auto& p : parameters.all())
    if (p->is_trained()) by_layer[p->layer].push_back(p.get());
  Bucket open;
  int64_t bytes = 0;
  for (auto& [layer, list] : by_layer) {
    for (auto* p : list) {
      open.parameters.push_back(p);
      bytes += p->elements() * (p->value.scalar_type() == at::kDouble ? 8 : 4);
    }
    open.first_layer = layer;
    if (bytes < bucket_bytes) continue;
    close(std::move(open));
    open = {}, bytes = 0;
  }
  if (!open.parameters.empty()) close(std::move(open));
}

GradientBuckets::~GradientBuckets() = default;

void GradientBuckets::close(Bucket bucket) {
  int64_t elements = 0;
  for (const auto* p : bucket.parameters) elements += p->elements();
  const auto& value = bucket.parameters.front()->value;
  const auto dtype = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  bucket.flat = at::zeros({elements}, value.options().dtype(dtype).requires_grad(false));
  int64_t offset = 0;
  for (auto* p : bucket.parameters) {
    p->grad = bucket.flat.narrow(0, offset, p->elements()).view(p->value.sizes());
    offset += p->elements();
  }
  buckets_.push_back(std::move(bucket));
}

void GradientBuckets::start(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (auto* p : bucket.parameters) {
    p->collect_gradient();
    // Nothing here touched it (an expert without tokens); another rank's gradient still counts.
    bool overwrite = false;
    auto& gradient = p->gradient_buffer(overwrite);
    if (overwrite) gradient.zero_();
  }
  bucket.work = group_.start_all_reduce(bucket.flat);
  bucket.is_started = true;
}

void GradientBuckets::layer_done(int64_t layer) {
  for (auto& bucket : buckets_)
    if (!bucket.is_started && bucket.first_layer >= layer) start(bucket);
}

void GradientBuckets::finish() {
  for (auto& bucket : buckets_)
    if (!bucket.is_started) start(bucket);
  for (auto& bucket : buckets_) {
    bucket.work.wait();
    bucket.is_started = false;
    for (const auto* p : bucket.parameters)
      if (p->value.grad().defined())
        throw base::NumericError("the gradient of {} came after it was sent; this is an error in ingot", p->name);
  }
}

int64_t measure_bandwidth_knee(comm::Group& group, at::Device device) {
  if (group.size() == 1) return 0;
  constexpr int64_t kSmallest = 256 << 10, kLargest = 32 << 20;
  constexpr double kNear = 0.8;
  const auto buffer = at::zeros({kLargest / 4}, at::TensorOptions().dtype(at::kFloat).device(device));
  std::vector<std::pair<int64_t, double>> curve;  // bytes, bytes per second
  for (int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    const auto part = buffer.narrow(0, 0, bytes / 4);
    group.all_reduce(part);
    double best = 1e30;
    for (int repeat = 0; repeat < 3; ++repeat) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      group.all_reduce(part);
      if (device.is_cuda()) (void)part[0].item<float>();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    auto slowest = at::full({1}, best, at::TensorOptions().dtype(at::kDouble).device(device));
    group.all_reduce(slowest, comm::Reduction::max);  // all ranks must decide alike
    curve.emplace_back(bytes, static_cast<double>(bytes) / slowest.item<double>());
  }
  double peak = 0;
  for (const auto& [bytes, rate] : curve) peak = std::max(peak, rate);
  for (const auto& [bytes, rate] : curve)
    if (rate >= kNear * peak) return bytes;
  return kLargest;
}

}  // namespace ingot::parallel
