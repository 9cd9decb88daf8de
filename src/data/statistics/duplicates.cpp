#include "data/statistics/duplicates.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "base/progress.h"
#include "data/statistics/statistics.h"

namespace ingot::data {
namespace {

constexpr int64_t kKeyTokens = 16, kBlock = int64_t{1} << 16, kReleaseEvery = int64_t{1} << 24;

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

using State = std::unique_ptr<XXH3_state_t, FreeState>;

XXH128_hash_t digest_of(const IndexedDataset& dataset, int64_t document, const State& state, std::vector<int32_t>& ids) {
  const int64_t end = dataset.document_begin(document + 1);
  XXH3_128bits_reset(state.get());
  for (int64_t at = dataset.document_begin(document); at < end; at += kBlock) {
    ids.resize(static_cast<size_t>(std::min(kBlock, end - at)));
    dataset.read(at, ids);
    XXH3_128bits_update(state.get(), ids.data(), ids.size() * sizeof(int32_t));
  }
  return XXH3_128bits_digest(state.get());
}

}  // namespace

Duplicates::Duplicates(const std::vector<const IndexedDataset*>& datasets, const Options& options) : datasets_(datasets) {
  int64_t tokens = 0, documents = 0;
  for (const auto* dataset : datasets) tokens += dataset->tokens(), documents += dataset->documents();
  const auto share = [](int64_t most, int64_t all) { return all <= most ? 1 : static_cast<double>(most) / static_cast<double>(all); };
  share_ = std::min(share(options.most_tokens, tokens), share(options.most_documents, documents));
}

bool Duplicates::is_chosen(const IndexedDataset& dataset, int64_t document) const {
  if (share_ >= 1) return true;
  const int64_t tokens = dataset.document_tokens(document);
  int32_t key[kKeyTokens + 2] = {static_cast<int32_t>(tokens), static_cast<int32_t>(tokens >> 32)};
  const auto count = std::min(kKeyTokens, tokens);
  dataset.read(dataset.document_begin(document) + (tokens - count) / 2, std::span(key).subspan(2, static_cast<size_t>(count)));
  return static_cast<double>(XXH3_64bits(key, sizeof(key))) < share_ * 0x1p64;
}

Duplicates::Counts Duplicates::look_at(size_t number) {
  const auto& dataset = *datasets_[number];
  base::ProgressBar bar("comparing documents", dataset.documents(), base::ProgressUnit::count);
  Counts counts;
  const State state(XXH3_createState());
  std::vector<int32_t> ids;
  for (int64_t document = 0, released = 0; document < dataset.documents(); ++document) {
    const int64_t tokens = dataset.document_tokens(document), at = dataset.document_begin(document);
    if (at - released >= kReleaseEvery) released = at, dataset.release_pages();
    if (document % 4096 == 0) bar.update(document);
    if (tokens == 0 || !is_chosen(dataset, document)) continue;
    ++counts.documents;
    counts.tokens += tokens;
    auto& first =
        seen_.try_emplace(digest_of(dataset, document, state, ids), First{document, static_cast<int32_t>(number), 0}).first->second;
    if (++first.copies == 1) continue;
    ++counts.repeated_documents;
    counts.repeated_tokens += tokens;
  }
  bar.update(dataset.documents());
  bar.finish();
  dataset.release_pages();
  return counts;
}

std::vector<RepeatedDocument> Duplicates::most_repeated(int64_t most) const {
  std::vector<RepeatedDocument> repeated;
  const auto before = [](const RepeatedDocument& a, const RepeatedDocument& b) {
    return std::tuple(-a.copies, a.dataset, a.document) < std::tuple(-b.copies, b.dataset, b.document);
  };
  for (const auto& [digest, first] : seen_) {
    if (first.copies < 2) continue;
    const auto dataset = static_cast<size_t>(first.dataset);
    const RepeatedDocument one{dataset, first.document, datasets_[dataset]->document_tokens(first.document), first.copies};
    repeated.insert(std::upper_bound(repeated.begin(), repeated.end(), one, before), one);
    if (static_cast<int64_t>(repeated.size()) > most) repeated.pop_back();
  }
  return repeated;
}

}  // namespace ingot::data
