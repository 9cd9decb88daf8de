#include "bench/parallel/layers.h"

#include "base/error.h"

namespace ingot::bench {
namespace {

using schedule::Layer;
using schedule::Method;

bool is_linear(Method method) { return method == Method::lasp1 || method == Method::lasp2 || method == Method::zeco; }

}  // namespace

std::vector<schedule::Sweep> by_layer(const schedule::Sweep& sweep, const std::vector<std::string>& layers) {
  std::vector<schedule::Sweep> all;
  const auto names = layers.empty() ? std::vector<std::string>{"attention", "mlp", "linear_attention", "block"} : layers;
  for (const auto& name : names) {
    const auto layer = schedule::layer_from_name(name);
    auto own = sweep;
    own.base.layer = layer;
    std::erase_if(own.methods, [&](Method method) {
      if (layer == Layer::block) return false;
      if (layer == Layer::linear_attention) return !is_linear(method);
      // They differ in attention alone.
      return is_linear(method) || (layer == Layer::mlp && (method == Method::ring || method == Method::ulysses));
    });
    if (!own.methods.empty()) all.push_back(std::move(own));
  }
  if (all.empty()) throw base::UsageError("none of these methods has a schedule for these layers");
  return all;
}

void append(schedule::SweepResult& all, schedule::SweepResult more) {
  all.results.insert(all.results.end(), more.results.begin(), more.results.end());
  all.refusals.insert(all.refusals.end(), more.refusals.begin(), more.refusals.end());
  all.crossovers.insert(all.crossovers.end(), more.crossovers.begin(), more.crossovers.end());
}

}  // namespace ingot::bench
