// What texts leave behind for others that begin alike: pages of keys and values in a tree by the tokens that lead to them, and states at
// borders of pages. What was used longest ago goes first.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "serve/engine/cached_text.h"

namespace ingot::serve {

class PrefixCache {
 public:
  explicit PrefixCache(int64_t most_bytes);
  ~PrefixCache();

  /// Whole pages, in tokens, in which a text that begins with `ids` is like one that was here.
  int64_t shared(std::span<const int64_t> ids) const;
  /// Of these, those behind which a text can go on: all, or up to the last border that has states.
  int64_t usable(std::span<const int64_t> ids) const;
  /// Begins a text with as much.
  void begin(std::span<const int64_t> ids, CachedText& text);
  /// Keeps whole pages of the text, which begins with `ids`, and `states` behind all of these: empty for models without. It may then have
  /// more than it is to keep.
  void keep(std::span<const int64_t> ids, const std::vector<models::LayerCache>& caches, const States& states);
  int64_t bytes() const { return bytes_; }
  /// Pages that have to go for that, and their way: those that were used longest ago.
  int64_t surplus() const;
  void drop(int64_t pages);

 private:
  struct Page;
  std::vector<Page*> path(std::span<const int64_t> ids) const;
  void use(const std::vector<Page*>& path);
  void drop_oldest();

  const int64_t most_bytes_;
  int64_t bytes_ = 0;
  bool has_states_ = false;  // of this model's texts
  std::unique_ptr<Page> root_;
  std::list<Page*> by_use_;  // the last used first; never a page before the one that leads to it
};

}  // namespace ingot::serve
