// Keys and values of earlier tokens in one layer, for generation: in pages, which texts with an equal beginning share.
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/attention.h"

namespace ingot::layers {

/// A copy shares the pages; whichever of the two grows first within a page gets one of its own.
class KeyValueCache {
 public:
  int64_t length() const { return length_; }
  /// In their row, ascending, where other ranks keep the other tokens (parallel/tensor_sequence/decoding.h).
  std::vector<int64_t> positions;

  /// Room for `tokens` in all, kept as `like_keys` and `like_values` [batch, …, kv_heads, head_dim] are; what is new is to be written.
  void grow(int64_t tokens, const at::Tensor& like_keys, const at::Tensor& like_values);
  /// Tokens from `first` on and heads from `head` on, which were grown; [batch, tokens, heads, head_dim].
  void write(int64_t first, int64_t head, const at::Tensor& keys, const at::Tensor& values);
  void append(const at::Tensor& keys, const at::Tensor& values);
  /// Forgets the tokens from `length` on.
  void shorten(int64_t length);
  /// The page that has tokens [kPageTokens * index, …), and one more to the end of those that are whole.
  void append_page(const KeyValueCache& from, size_t index);
  /// Of a batch's rows, int64 on the cache's device, in pages of its own.
  KeyValueCache of_rows(const at::Tensor& rows) const;

  kernels::Pages pages() const { return {keys_, values_, length_}; }
  /// Where the pages lie, for kernels; good until the cache changes.
  void* const* key_pages() const { return key_data_.data(); }
  void* const* value_pages() const { return value_data_.data(); }
  int64_t bytes_of_page() const { return keys_.empty() ? 0 : static_cast<int64_t>(keys_[0].nbytes() + values_[0].nbytes()); }

 private:
  void add(at::Tensor keys, at::Tensor values);
  void own(size_t page);

  std::vector<at::Tensor> keys_, values_;  // by page; never of different sizes
  std::vector<void*> key_data_, value_data_;
  int64_t length_ = 0;
};

}  // namespace ingot::layers
