#include "train/graphed_passes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/device.h"

namespace ingot::train {
namespace {

constexpr int64_t kWarmUps = 2;        // passes of a shape, and steps in a row of the same scale, before it is captured
constexpr size_t kMostShapes = 32;     // each holds what its passes leave behind
constexpr int64_t kLeastOffsets = 16;  // documents of the smallest shape that has some

// The first token of each document and the end of all, with empty documents behind up to a power of two; undefined without documents.
at::Tensor filled_offsets(const Microbatch& microbatch) {
  if (!microbatch.document_start.defined()) return {};
  const auto offsets = layers::document_offsets(microbatch.document_start);
  const auto documents = static_cast<uint64_t>(std::max(kLeastOffsets, offsets.numel() - 1));
  const int64_t missing = static_cast<int64_t>(std::bit_ceil(documents)) + 1 - offsets.numel();
  return device::cat({offsets, at::full({missing}, microbatch.document_start.numel(), offsets.options())});
}

}  // namespace

struct GraphedPasses::Captured {
  Captured(at::Device device, const Captured* beside) : graph(device, beside ? &beside->graph : nullptr) {}

  Microbatch in;  // document_start on the device
  at::Tensor offsets;
  at::Tensor loss;
  double scale = 1;
  std::vector<layers::Parameter*> learned;  // parameters that then have a gradient
  std::vector<at::Tensor> counts;
  device::Graph graph;
};

struct GraphedPasses::Shape {
  int64_t passes = 0, last_step = 0, steps_of_scale = 0;
  double last_scale = 0;
  std::unique_ptr<Captured> captured;
};

// Shapes, and what the host remembers.
std::vector<int64_t> GraphedPasses::key_of(const Microbatch& microbatch, const at::Tensor& offsets) const {
  std::vector<int64_t> key{microbatch.ids.size(0), microbatch.ids.size(1), offsets.defined() ? offsets.numel() : 0};
  int64_t bits = 1;
  const auto add = [&](bool bit) {
    bits = 2 * bits + bit;
    if (bits >= int64_t{1} << 60) key.push_back(std::exchange(bits, 1));
  };
  for (const auto& p : model_.parameters().all()) add(p->has_gradient);
  for (const auto& count : counter_.counts()) add(count.defined());
  key.push_back(bits);
  return key;
}

at::Tensor GraphedPasses::run(const Microbatch& microbatch, double scale, const Pass& pass) {
  const auto offsets = filled_offsets(microbatch);
  const auto as_it_is = [&] {
    return pass(microbatch, std::make_shared<layers::Sequences>(microbatch.ids.size(0), microbatch.ids.size(1), microbatch.document_start,
                                                                0, model_.device()));
  };
  const auto key = key_of(microbatch, offsets);
  if (!shapes_.contains(key) && shapes_.size() == kMostShapes) return as_it_is();
  auto& shape = shapes_[key];
  if (!shape) shape = std::make_shared<Shape>();
  if (scale != shape->last_scale) shape->steps_of_scale = 0;
  if (step_ != shape->last_step || shape->steps_of_scale == 0) ++shape->steps_of_scale;
  shape->last_scale = scale, shape->last_step = step_;
  const bool fits = shape->captured && shape->captured->scale == scale;
  if (!fits && (shape->passes++ < kWarmUps || shape->steps_of_scale < kWarmUps)) return as_it_is();
  if (!fits) {
    shape->captured.reset();  // of another scale
    shape->captured = capture(microbatch, offsets, scale, pass);
  }
  replay(*shape->captured, microbatch, offsets);
  return shape->captured->loss;
}

std::unique_ptr<GraphedPasses::Captured> GraphedPasses::capture(const Microbatch& microbatch, const at::Tensor& offsets, double scale,
                                                                const Pass& pass) {
  // They run one after another, and each leaves only its loss behind.
  const Captured* beside = nullptr;
  for (const auto& [key, shape] : shapes_)
    if (shape && shape->captured) beside = shape->captured.get();
  const auto device = model_.device();
  auto captured = std::make_unique<Captured>(device, beside);
  captured->scale = scale;
  captured->in = {.ids = microbatch.ids.clone(), .targets = microbatch.targets.clone(), .document_start = {}};
  if (microbatch.losses.defined()) captured->in.losses = at::empty_like(microbatch.losses);
  for (const auto& ids : microbatch.further_ids) captured->in.further_ids.push_back(ids.clone());
  for (const auto& targets : microbatch.further_targets) captured->in.further_targets.push_back(targets.clone());
  if (offsets.defined()) {
    captured->in.document_start = device::to_device(microbatch.document_start, device);
    captured->offsets = device::to_device(offsets, device);
  }
  try {
    captured->graph.capture([&] {
      const auto& in = captured->in;
      const auto sequences =
          std::make_shared<layers::Sequences>(in.ids.size(0), in.ids.size(1), in.document_start, 0, device, nullptr, captured->offsets);
      captured->loss = pass(in, sequences).detach();
    });
  } catch (const c10::Error& error) {
    if (device::is_out_of_memory(error)) throw;
    throw base::ConfigError("train.gpu_graphs = true: a pass of this model cannot become a graph ({}); leave it out",
                            error.what_without_backtrace());
  }
  for (const auto& p : model_.parameters().all())
    if (p->has_gradient) captured->learned.push_back(p.get());
  captured->counts = counter_.counts();
  return captured;
}

void GraphedPasses::replay(Captured& captured, const Microbatch& microbatch, const at::Tensor& offsets) {
  captured.in.ids.copy_(microbatch.ids);
  captured.in.targets.copy_(microbatch.targets);
  for (size_t i = 0; i < microbatch.further_ids.size(); ++i) {
    captured.in.further_ids[i].copy_(microbatch.further_ids[i]);
    captured.in.further_targets[i].copy_(microbatch.further_targets[i]);
  }
  if (offsets.defined()) {
    captured.in.document_start.copy_(device::to_device(microbatch.document_start, model_.device()));
    captured.offsets.copy_(device::to_device(offsets, model_.device()));
  }
  captured.graph.replay();
  if (microbatch.losses.defined()) microbatch.losses.copy_(captured.in.losses);
  for (auto* p : captured.learned) p->has_gradient = true;
  for (size_t layer = 0; layer < captured.counts.size(); ++layer) counter_.set(static_cast<int64_t>(layer), captured.counts[layer]);
  ++replays_;
}

}  // namespace ingot::train
