// What a model remembers of one text: keys and values in pages, which can be cut anywhere, and states of layers that keep no history (CCA's
// tail, linear attention). CCA's tail can be cut like pages within the tokens that were fed last; states of linear attention cannot, and
// are copied beforehand.
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

  /// Of a model's new_caches().
  explicit CachedText(std::vector<models::LayerCache> empty) : caches(std::move(empty)) {}
  /// Whether some layer keeps states; known when tokens were fed.
  bool has_states() const;
  /// Whether some layer's states cannot be cut: linear attention's.
  bool has_whole_states() const;
  /// Before tokens are fed that may be wrong, where states cannot be cut or the tokens come in several passes.
  void remember_states();
  /// Forgets the tokens from `length` on, of the last pass; where states were remembered, all since then.
  void forget_behind(int64_t length);

 private:
  States before_;
  int64_t fed_before_ = 0;
};

}  // namespace ingot::serve
