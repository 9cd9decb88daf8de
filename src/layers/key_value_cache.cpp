#include "layers/key_value_cache.h"

#include <algorithm>

namespace ingot::layers {

using kernels::kPageTokens;

void KeyValueCache::add(at::Tensor keys, at::Tensor values) {
  key_data_.push_back(keys.data_ptr());
  value_data_.push_back(values.data_ptr());
  keys_.push_back(std::move(keys));
  values_.push_back(std::move(values));
}

void KeyValueCache::own(size_t page) {
  const auto alone = [&](std::vector<at::Tensor>& tensors, std::vector<void*>& data) {
    if (tensors[page].use_count() == 1) return;
    tensors[page] = tensors[page].clone();
    data[page] = tensors[page].data_ptr();
  };
  alone(keys_, key_data_);
  alone(values_, value_data_);
}

void KeyValueCache::grow(int64_t tokens, const at::Tensor& like_keys, const at::Tensor& like_values) {
  for (auto page = static_cast<size_t>(length_ / kPageTokens); page < keys_.size(); ++page) own(page);
  const auto empty = [](const at::Tensor& like) {
    return at::empty({like.size(0), like.size(2), kPageTokens, like.size(3)}, like.options().requires_grad(false));
  };
  while (static_cast<int64_t>(keys_.size()) * kPageTokens < tokens) add(empty(like_keys), empty(like_values));
  length_ = std::max(length_, tokens);
}

void KeyValueCache::write(int64_t first, int64_t head, const at::Tensor& keys, const at::Tensor& values) {
  for (int64_t done = 0, count = 0; done < keys.size(1); done += count) {
    const int64_t page = (first + done) / kPageTokens, at = (first + done) % kPageTokens;
    count = std::min(kPageTokens - at, keys.size(1) - done);
    const auto put = [&](const at::Tensor& to, const at::Tensor& from) {
      to.narrow(1, head, from.size(2)).narrow(2, at, count).copy_(from.narrow(1, done, count).transpose(1, 2));
    };
    put(keys_[static_cast<size_t>(page)], keys);
    put(values_[static_cast<size_t>(page)], values);
  }
}

void KeyValueCache::append(const at::Tensor& keys, const at::Tensor& values) {
  const int64_t first = length_;
  grow(first + keys.size(1), keys, values);
  write(first, 0, keys, values);
}

void KeyValueCache::shorten(int64_t length) {
  if (length >= length_) return;
  length_ = length;
  const auto pages = static_cast<size_t>((length + kPageTokens - 1) / kPageTokens);
  keys_.resize(pages), values_.resize(pages), key_data_.resize(pages), value_data_.resize(pages);
}

void KeyValueCache::append_page(const KeyValueCache& from, size_t index) {
  add(from.keys_.at(index), from.values_.at(index));
  length_ = static_cast<int64_t>(keys_.size()) * kPageTokens;
}

KeyValueCache KeyValueCache::of_rows(const at::Tensor& rows) const {
  KeyValueCache chosen;
  for (size_t page = 0; page < keys_.size(); ++page) chosen.add(keys_[page].index_select(0, rows), values_[page].index_select(0, rows));
  chosen.length_ = length_;
  return chosen;
}

}  // namespace ingot::layers
