#include "serve/engine/cached_text.h"

#include <algorithm>

namespace ingot::serve {
namespace {

at::Tensor copy_of(const at::Tensor& x) { return x.defined() ? x.clone() : x; }
int64_t bytes_of(const at::Tensor& x) { return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0; }

}  // namespace

States::States(const std::vector<models::LayerCache>& caches) {
  for (const auto& cache : caches) {
    layers_.push_back({.tail = {copy_of(cache.tail.latent), copy_of(cache.tail.delayed_value)},
                       .linear = {copy_of(cache.linear.state), copy_of(cache.linear.tail)}});
    const auto& copied = layers_.back();
    bytes_ +=
        bytes_of(copied.tail.latent) + bytes_of(copied.tail.delayed_value) + bytes_of(copied.linear.state) + bytes_of(copied.linear.tail);
  }
}

void States::put_into(std::vector<models::LayerCache>& caches) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    caches[i].tail = {copy_of(layers_[i].tail.latent), copy_of(layers_[i].tail.delayed_value)};
    caches[i].linear = {copy_of(layers_[i].linear.state), copy_of(layers_[i].linear.tail)};
  }
}

bool CachedText::has_states() const {
  return std::ranges::any_of(
      caches, [](const auto& cache) { return cache.tail.latent.defined() || cache.linear.state.defined() || cache.linear.tail.defined(); });
}

bool CachedText::has_whole_states() const {
  return std::ranges::any_of(caches, [](const auto& cache) { return cache.linear.state.defined() || cache.linear.tail.defined(); });
}

void CachedText::remember_states() {
  before_ = States(caches);
  fed_before_ = fed;
}

void CachedText::forget_behind(int64_t length) {
  if (length >= fed) return;
  if (!before_.empty()) {
    before_.put_into(caches);
    length = fed_before_;
  } else {
    for (auto& cache : caches) {
      if (cache.tail.latent.defined()) cache.tail = cache.tail_without(fed - length);
      cache.tail_without = nullptr;  // it knows the tokens that were fed last, whole
    }
  }
  fed = length;
  for (auto& cache : caches) cache.key_values.shorten(fed);
}

}  // namespace ingot::serve
