#include "serve/engine/prefix_cache.h"

#include <algorithm>
#include <optional>

namespace ingot::serve {

using kernels::kPageTokens;

struct PrefixCache::Page {
  Page* before = nullptr;
  std::vector<int64_t> tokens;
  std::vector<std::optional<layers::KeyValueCache::Page>> layers;  // of those that have keys and values
  States states;                                                   // behind it; empty: not kept
  int64_t bytes = 0;
  std::map<std::vector<int64_t>, std::unique_ptr<Page>> next;  // by their tokens
  std::list<Page*>::iterator place;
};

namespace {

std::vector<int64_t> tokens_of(std::span<const int64_t> ids, size_t page) {
  const auto own = ids.subspan(page * kPageTokens, kPageTokens);
  return {own.begin(), own.end()};
}

size_t whole_pages(std::span<const int64_t> ids) { return ids.size() / kPageTokens; }

}  // namespace

PrefixCache::PrefixCache(int64_t most_bytes) : most_bytes_(most_bytes), root_(std::make_unique<Page>()) {}
PrefixCache::~PrefixCache() {
  drop(static_cast<int64_t>(by_use_.size()));  // page by page: a tree of a long text is deep
}

std::vector<PrefixCache::Page*> PrefixCache::path(std::span<const int64_t> ids) const {
  std::vector<Page*> pages;
  const auto* at = root_.get();
  for (size_t i = 0; i < whole_pages(ids); ++i) {
    const auto found = at->next.find(tokens_of(ids, i));
    if (found == at->next.end()) break;
    pages.push_back(found->second.get());
    at = pages.back();
  }
  return pages;
}

int64_t PrefixCache::shared(std::span<const int64_t> ids) const { return static_cast<int64_t>(path(ids).size()) * kPageTokens; }

int64_t PrefixCache::usable(std::span<const int64_t> ids) const {
  auto pages = path(ids);
  while (has_states_ && !pages.empty() && pages.back()->states.empty()) pages.pop_back();
  return static_cast<int64_t>(pages.size()) * kPageTokens;
}

void PrefixCache::begin(std::span<const int64_t> ids, CachedText& text) {
  const auto tokens = usable(ids);
  const auto pages = path(ids.first(static_cast<size_t>(tokens)));
  for (const auto* page : pages)
    for (size_t layer = 0; layer < page->layers.size(); ++layer)
      if (page->layers[layer]) text.caches[layer].key_values.append_page(*page->layers[layer]);
  if (!pages.empty()) pages.back()->states.put_into(text.caches);
  text.fed = tokens;
  use(pages);
}

void PrefixCache::keep(std::span<const int64_t> ids, const std::vector<models::LayerCache>& caches, const States& states) {
  has_states_ = has_states_ || !states.empty();
  std::vector<Page*> pages;
  auto* at = root_.get();
  for (size_t i = 0; i < whole_pages(ids); ++i) {
    auto tokens = tokens_of(ids, i);
    auto& next = at->next[tokens];
    if (!next) {
      next = std::make_unique<Page>();
      next->before = at;
      next->tokens = std::move(tokens);
      next->layers.resize(caches.size());
      for (size_t layer = 0; layer < caches.size(); ++layer) {
        const auto& from = caches[layer].key_values;
        if (from.length() == 0) continue;
        next->layers[layer] = from.page(static_cast<int64_t>(i));
        next->bytes += next->layers[layer]->bytes();
      }
      next->place = by_use_.insert(by_use_.begin(), next.get());
      bytes_ += next->bytes;
    }
    at = next.get();
    pages.push_back(at);
  }
  if (!pages.empty() && pages.back()->states.empty() && !states.empty()) {
    pages.back()->states = states;
    pages.back()->bytes += states.bytes();
    bytes_ += states.bytes();
  }
  use(pages);
}

int64_t PrefixCache::surplus() const {
  int64_t pages = 0, left = bytes_;
  for (auto page = by_use_.rbegin(); page != by_use_.rend() && left > most_bytes_; ++page, ++pages) left -= (*page)->bytes;
  return pages;
}

void PrefixCache::drop(int64_t pages) {
  for (; pages > 0; --pages) drop_oldest();
}

void PrefixCache::use(const std::vector<Page*>& path) {
  for (auto page = path.rbegin(); page != path.rend(); ++page) by_use_.splice(by_use_.begin(), by_use_, (*page)->place);
}

void PrefixCache::drop_oldest() {
  auto* page = by_use_.back();
  by_use_.pop_back();
  bytes_ -= page->bytes;
  const auto tokens = page->tokens;
  page->before->next.erase(tokens);
}

}  // namespace ingot::serve
