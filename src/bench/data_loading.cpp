#include "bench/data_loading.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace ingot::bench {

ReadPattern read_pattern(const data::Loader& loader, int64_t first_sample, int64_t count, int64_t page_bytes) {
  ReadPattern pattern;
  int64_t pages = 0, pieces = 0;
  for (int64_t sample = first_sample; sample < first_sample + count; ++sample) {
    std::set<std::pair<size_t, int64_t>> touched;  // source and page
    for (const auto& read : loader.reads(sample)) {
      ++pieces;
      for (int64_t page = read.begin_byte / page_bytes; page * page_bytes < read.end_byte; ++page) touched.emplace(read.source, page);
    }
    pages += static_cast<int64_t>(touched.size());
    pattern.most_pages = std::max(pattern.most_pages, static_cast<int64_t>(touched.size()));
  }
  if (count == 0) return pattern;
  pattern.samples = count;
  pattern.pages = static_cast<double>(pages) / static_cast<double>(count);
  pattern.pieces = static_cast<double>(pieces) / static_cast<double>(count);
  const plan::LoadingShape shape{.batch = 1, .seq = loader.seq_len(), .token_bytes = loader.token_bytes(), .page_bytes = page_bytes};
  // Rows that padding fills in part may touch fewer pages than full ones would.
  pattern.extra_pages = std::max(0.0, pattern.pages - shape.pages_of_sample());
  pattern.scatter = plan::scatter_of(shape, pattern.extra_pages);
  return pattern;
}

void write_simulated_dataset(const data::fs::path& prefix, int64_t tokens, int64_t document_tokens, int64_t vocab_size) {
  data::IndexedDatasetWriter writer(prefix, data::token_type_for(vocab_size));
  const auto key = base::stream_key(1, "lengths of documents");
  std::vector<int32_t> document;
  for (uint64_t i = 0; writer.tokens() < tokens; ++i) {
    const double length = -std::log1p(-base::uniform_at(key, i)) * static_cast<double>(document_tokens);
    document.assign(static_cast<size_t>(std::clamp(length, 1.0, static_cast<double>(tokens))), 0);
    for (size_t at = 0; at < document.size(); ++at)
      document[at] = static_cast<int32_t>((i * 7919 + at) % static_cast<uint64_t>(vocab_size));
    writer.add_document(document);
  }
  writer.finish();
}

}  // namespace ingot::bench
