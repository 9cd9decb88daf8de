#include "data/statistics/statistics.h"

#include <algorithm>

#include "base/progress.h"
#include "data/statistics/duplicates.h"

namespace ingot::data {
namespace {

constexpr int64_t kWindow = int64_t{1} << 12;           // tokens of a sample that lie side by side
constexpr int64_t kMostIds = int64_t{1} << 22;          // of a vocabulary that is not known
constexpr int64_t kDecodedDocument = int64_t{1} << 12;  // tokens of one document that are decoded
constexpr int64_t kReleaseEvery = int64_t{1} << 24;     // tokens

void count_lengths(const IndexedDataset& dataset, LengthCounts& lengths) {
  for (int64_t document = 0; document < dataset.documents(); ++document) lengths.add(dataset.document_tokens(document));
}

class IdCounts {
 public:
  explicit IdCounts(VocabularyUse& use) : use_(use) {
    if (use.size > 0) use.counts.resize(static_cast<size_t>(use.size));
  }
  void add(std::span<const int32_t> ids) {
    const auto largest = *std::max_element(ids.begin(), ids.end());
    use_.largest_id = std::max<int64_t>(use_.largest_id, largest);
    if (use_.size == 0 && static_cast<size_t>(largest) >= use_.counts.size())
      use_.counts.resize(static_cast<size_t>(std::min<int64_t>(largest + int64_t{1}, kMostIds)));
    for (const int32_t id : ids) {
      if (static_cast<size_t>(id) < use_.counts.size()) ++use_.counts[static_cast<size_t>(id)];
      else ++use_.outside;
    }
  }

 private:
  VocabularyUse& use_;
};

// All tokens, or windows of them that lie evenly over the whole. `share` of the tokens are read.
void count_ids(const IndexedDataset& dataset, double share, IdCounts& counts, DatasetStatistics& out, base::ProgressBar& bar,
               int64_t& done) {
  const int64_t windows = (dataset.tokens() + kWindow - 1) / kWindow;
  const auto read = share >= 1 ? windows : std::min(windows, static_cast<int64_t>(share * static_cast<double>(windows)) + 1);
  std::vector<int32_t> ids(static_cast<size_t>(kWindow)), targets(dataset.has_mask() ? static_cast<size_t>(kWindow) : 0);
  for (int64_t i = 0, released = 0; i < read; ++i) {
    const auto at = static_cast<int64_t>(static_cast<__int128>(i) * windows / read) * kWindow;
    const auto count = static_cast<size_t>(std::min(kWindow, dataset.tokens() - at));
    const auto part = std::span(ids).first(count);
    dataset.read(at, part);
    counts.add(part);
    if (dataset.has_mask()) {
      dataset.read_targets(at, std::span(targets).first(count));
      out.unlearned_tokens += std::count(targets.begin(), targets.begin() + static_cast<std::ptrdiff_t>(count), kIgnoredTarget);
    }
    out.counted_tokens += static_cast<int64_t>(count);
    if (out.counted_tokens - released >= kReleaseEvery) released = out.counted_tokens, dataset.release_pages();
    bar.update(done += static_cast<int64_t>(count));
  }
  dataset.release_pages();
}

// The beginnings of documents that lie evenly over the whole.
void decode_some(const IndexedDataset& dataset, const Tokenizer& tokenizer, int64_t most_tokens, DatasetStatistics& out) {
  const int64_t mean = std::clamp<int64_t>(dataset.tokens() / std::max<int64_t>(1, dataset.documents()), 1, kDecodedDocument);
  const int64_t documents = std::min(dataset.documents(), most_tokens / mean);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < documents && out.decoded_tokens < most_tokens; ++i) {
    const auto document = static_cast<int64_t>(static_cast<__int128>(i) * dataset.documents() / documents);
    ids.resize(static_cast<size_t>(std::min(kDecodedDocument, dataset.document_tokens(document))));
    dataset.read(dataset.document_begin(document), ids);
    if (std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= tokenizer.vocab_size(); })) continue;
    out.decoded_bytes += static_cast<int64_t>(tokenizer.decode(ids).size());
    out.decoded_tokens += static_cast<int64_t>(ids.size());
  }
}

void compare(const std::vector<const IndexedDataset*>& datasets, const StatisticsOptions& options, Statistics& out) {
  Duplicates duplicates(datasets, {.most_tokens = options.most_tokens, .most_documents = options.most_documents});
  for (size_t i = 0; i < datasets.size(); ++i) {
    const auto counts = duplicates.look_at(i);
    auto& of = out.datasets[i];
    of.compared_documents = counts.documents, of.compared_tokens = counts.tokens;
    of.repeated_documents = counts.repeated_documents, of.repeated_tokens = counts.repeated_tokens;
  }
  out.compared_share = duplicates.share();
  out.repeated = duplicates.most_repeated(options.most_repeated);
}

}  // namespace

int64_t VocabularyUse::used() const {
  return std::count_if(counts.begin(), counts.end(), [](int64_t count) { return count > 0; });
}

bool Statistics::counts_all() const {
  return std::all_of(datasets.begin(), datasets.end(), [](const auto& d) { return d.counted_tokens == d.tokens; });
}

Statistics statistics_of(const std::vector<const IndexedDataset*>& datasets, const Tokenizer* tokenizer, const StatisticsOptions& options) {
  Statistics out;
  out.vocabulary.size = options.vocab_size;
  int64_t tokens = 0, done = 0;
  for (const auto* dataset : datasets) tokens += dataset->tokens();
  const double share = static_cast<double>(options.most_tokens) / static_cast<double>(std::max<int64_t>(tokens, 1));
  base::ProgressBar bar("counting tokens", std::min(tokens, options.most_tokens), base::ProgressUnit::count);
  IdCounts counts(out.vocabulary);
  for (const auto* dataset : datasets) {
    auto& one = out.datasets.emplace_back();
    one.path = dataset->prefix().string();
    one.token_type = name_of(dataset->token_type());
    one.tokens = dataset->tokens();
    one.has_mask = dataset->has_mask();
    count_lengths(*dataset, one.lengths);
    count_ids(*dataset, share, counts, one, bar, done);
    if (tokenizer) decode_some(*dataset, *tokenizer, options.most_decoded, one);
  }
  bar.finish();
  compare(datasets, options, out);
  return out;
}

}  // namespace ingot::data
