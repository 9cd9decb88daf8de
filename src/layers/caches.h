// What a pass remembers of earlier tokens in one layer, and how layers that mix tokens work on sequences side by side.
#pragma once

#include <vector>

#include "layers/sequences.h"

namespace ingot::layers {

/// One for a whole batch; of each part its own where a row has several sequences (Sequences::side_by_side); none outside of inference.
template <class Cache>
class Caches {
 public:
  Caches() = default;
  Caches(Cache& of_all) : each_{&of_all} {}
  explicit Caches(std::vector<Cache*> of_parts) : each_(std::move(of_parts)) {}
  template <class Derived>
  Caches(const Caches<Derived>& derived) : each_(derived.each().begin(), derived.each().end()) {}

  explicit operator bool() const { return !each_.empty(); }
  Cache& of_all() const { return *each_.at(0); }
  Cache* of(size_t part) const { return each_.empty() ? nullptr : each_.at(part); }
  const std::vector<Cache*>& each() const { return each_; }

  template <class Member>
  Caches<Member> members(Member Cache::*member) const {
    std::vector<Member*> of_parts;
    for (auto* cache : each_) of_parts.push_back(&(cache->*member));
    return Caches<Member>(std::move(of_parts));
  }

 private:
  std::vector<Cache*> each_;
};

/// mix(sequences, cache or null, tensors) of a pass; where it has parts, of each with its tokens of `in`, put side by side again. `in`:
/// [batch, seq, …] each, as mix returns; those of one dimension are of all tokens, and some may be undefined.
template <class Cache, class Mix>
at::Tensor by_part(Sequences& sequences, const Caches<Cache>& caches, const std::vector<at::Tensor>& in, const Mix& mix) {
  const auto& parts = sequences.parts();
  if (parts.empty()) return mix(sequences, caches.of(0), in);
  std::vector<at::Tensor> mixed;
  int64_t first = 0;
  for (size_t part = 0; part < parts.size(); first += parts[part++]->seq()) {
    auto own = in;
    for (auto& x : own)
      if (x.defined() && x.dim() > 1) x = x.narrow(1, first, parts[part]->seq());
    mixed.push_back(mix(*parts[part], caches.of(part), own));
  }
  return device::cat(mixed, 1);
}

}  // namespace ingot::layers
