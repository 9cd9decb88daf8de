#include "layers/key_value_cache.h"

#include <algorithm>

namespace ingot::layers {

using kernels::kPageTokens;

namespace {

int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

int64_t PageShare::tokens(int64_t tokens) const {
  const int64_t whole = tokens / kPageTokens;
  return pages(whole) * kPageTokens + (has(whole) ? tokens % kPageTokens : 0);
}

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
  for (auto page = static_cast<size_t>(share_.pages(length_ / kPageTokens)); page < keys_.size(); ++page) own(page);
  const auto empty = [](const at::Tensor& like) {
    return at::empty({like.size(0), like.size(2), kPageTokens, like.size(3)}, like.options().requires_grad(false));
  };
  const int64_t pages = share_.pages(pages_of(tokens));
  while (static_cast<int64_t>(keys_.size()) < pages) add(empty(like_keys), empty(like_values));
  length_ = std::max(length_, tokens);
}

void KeyValueCache::append(const at::Tensor& keys, const at::Tensor& values) {
  const int64_t first = length_;
  grow(first + keys.size(1), keys, values);
  for (int64_t done = 0, count = 0; done < keys.size(1); done += count) {
    const int64_t page = (first + done) / kPageTokens, at = (first + done) % kPageTokens;
    count = std::min(kPageTokens - at, keys.size(1) - done);
    if (!share_.has(page)) continue;
    const auto here = static_cast<size_t>(page / share_.ranks);
    keys_[here].narrow(2, at, count).copy_(keys.narrow(1, done, count).transpose(1, 2));
    values_[here].narrow(2, at, count).copy_(values.narrow(1, done, count).transpose(1, 2));
  }
}

void KeyValueCache::shorten(int64_t length) {
  if (length >= length_) return;
  length_ = length;
  const auto pages = static_cast<size_t>(share_.pages(pages_of(length)));
  keys_.resize(pages), values_.resize(pages), key_data_.resize(pages), value_data_.resize(pages);
}

KeyValueCache::Page KeyValueCache::page(int64_t index) const {
  if (!share_.has(index)) return {};
  const auto here = static_cast<size_t>(index / share_.ranks);
  return {keys_.at(here), values_.at(here)};
}

void KeyValueCache::append_page(const Page& page) {
  if (page.keys.defined()) add(page.keys, page.values);
  length_ += kPageTokens;
}

KeyValueCache KeyValueCache::of_rows(const at::Tensor& rows) const {
  KeyValueCache chosen(share_);
  for (size_t page = 0; page < keys_.size(); ++page) chosen.add(keys_[page].index_select(0, rows), values_[page].index_select(0, rows));
  chosen.length_ = length_;
  return chosen;
}

}  // namespace ingot::layers
