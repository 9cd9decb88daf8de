// Keys and values of earlier tokens in one layer, for generation: in pages, which texts with an equal beginning share, and which ranks may
// share out among themselves.
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/attention.h"

namespace ingot::layers {

/// Which of a text's pages lie on a rank: every `ranks`-th, from that of its own number on.
struct PageShare {
  int rank = 0, ranks = 1;

  bool has(int64_t page) const { return page % ranks == rank; }
  /// Of the text's first `pages` pages, as many are here.
  int64_t pages(int64_t pages) const { return (pages + ranks - 1 - rank) / ranks; }
  /// Of its first `tokens` tokens, as many.
  int64_t tokens(int64_t tokens) const;
};

/// A copy shares the pages; whichever of the two grows first within a page gets one of its own.
class KeyValueCache {
 public:
  KeyValueCache() = default;
  explicit KeyValueCache(PageShare share) : share_(share) {}

  /// Of the text, wherever its pages lie.
  int64_t length() const { return length_; }
  const PageShare& share() const { return share_; }

  /// Room for `tokens` in all, kept as `like_keys` and `like_values` [batch, …, kv_heads, head_dim] are; what is new is to be written.
  void grow(int64_t tokens, const at::Tensor& like_keys, const at::Tensor& like_values);
  /// Tokens [batch, tokens, kv_heads, head_dim] that follow; those of other ranks' pages are left out.
  void append(const at::Tensor& keys, const at::Tensor& values);
  /// Forgets the tokens from `length` on.
  void shorten(int64_t length);

  /// [batch, kv_heads, kPageTokens, head_dim or value_dim]; undefined where it lies on another rank.
  struct Page {
    at::Tensor keys, values;
    int64_t bytes() const { return keys.defined() ? static_cast<int64_t>(keys.nbytes() + values.nbytes()) : 0; }
  };
  /// The text's tokens [kPageTokens * index, …), all of which were fed.
  Page page(int64_t index) const;
  /// One more, whole, behind pages that are whole.
  void append_page(const Page& page);
  /// Of a batch's rows, int64 on the cache's device, in pages of its own.
  KeyValueCache of_rows(const at::Tensor& rows) const;

  /// Those that are here.
  kernels::Pages pages() const { return {keys_, values_, share_.tokens(length_)}; }
  /// Where the pages lie, for kernels; good until the cache changes.
  void* const* key_pages() const { return key_data_.data(); }
  void* const* value_pages() const { return value_data_.data(); }

 private:
  void add(at::Tensor keys, at::Tensor values);
  void own(size_t page);

  PageShare share_;
  std::vector<at::Tensor> keys_, values_;  // by page that is here; never of different sizes
  std::vector<void*> key_data_, value_data_;
  int64_t length_ = 0;
};

}  // namespace ingot::layers
