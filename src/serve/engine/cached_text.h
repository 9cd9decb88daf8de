// What a model remembers of one text: keys and values in pages, which can be cut anywhere, and states of layers that keep no history (CCA's
// tail, linear attention), which cannot: those are copied beforehand.
#pragma once

#include <optional>
#include <vector>

#include "models/forward_context.h"

namespace ingot::serve {

/// What layers keep beside keys and values; in storage of its own.
class States {
 public:
  States() = default;
  explicit States(const std::vector<models::LayerCache>& caches);
  void put_into(std::vector<models::LayerCache>& caches) const;
  bool empty() const { return bytes_ == 0; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Layer {
    kernels::CcaTail tail;
    layers::LinearAttentionCache linear;
  };
  std::vector<Layer> layers_;
  int64_t bytes_ = 0;
};

struct CachedText {
  std::vector<models::LayerCache> caches;  // by layer
  int64_t fed = 0;                         // tokens that they have

  explicit CachedText(int64_t layers) : caches(static_cast<size_t>(layers)) {}
  /// Whether some layer keeps states; known when tokens were fed.
  bool has_states() const;
  /// Before tokens are fed that may be wrong.
  void remember_states();
  /// Forgets the tokens from `length` on; where states are in the way, all since remember_states().
  void forget_behind(int64_t length);

 private:
  States before_;
  int64_t fed_before_ = 0;
};

}  // namespace ingot::serve
