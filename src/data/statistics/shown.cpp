#include "data/statistics/shown.h"

#include <fmt/format.h>

#include <algorithm>

namespace ingot::data {

ShownTokens shown_document(const IndexedDataset& dataset, const std::string& path, int64_t document, int64_t most) {
  ShownTokens out{.title = fmt::format("Document {}", document), .ids = {}, .learned = {}, .pieces = {}};
  out.tokens = dataset.document_tokens(document);
  const auto count = static_cast<size_t>(std::min(most, out.tokens));
  const int64_t begin = dataset.document_begin(document);
  out.ids.resize(count);
  dataset.read(begin, out.ids);
  for (size_t i = 0; i < count; ++i) out.learned.push_back(dataset.is_learned(begin + static_cast<int64_t>(i)));
  out.pieces.push_back({path, document, 0, out.tokens, count});
  return out;
}

ShownTokens shown_sample(const Loader& loader, const DataConfig& config, int64_t sample, int64_t most) {
  ShownTokens out{.title = fmt::format("Sample {}", sample), .ids = {}, .learned = {}, .pieces = {}};
  const auto origin = loader.origin(sample);
  const auto& dataset = loader.dataset(origin.source);
  for (const Slice& piece : origin.pieces) {
    const int64_t document = dataset.document_at(piece.begin);
    const auto shown = std::clamp<int64_t>(most - out.tokens, 0, piece.end - piece.begin);
    out.tokens += piece.end - piece.begin;
    if (shown > 0)
      out.pieces.push_back({config.sources[origin.source].path, document, piece.begin - dataset.document_begin(document),
                            dataset.document_tokens(document), static_cast<size_t>(shown)});
  }
  out.padding = config.rows == "variable" ? 0 : config.seq_len - out.tokens;
  const auto batch = loader.batch(sample, 1);
  const auto count = static_cast<size_t>(std::min(most, out.tokens));
  out.ids.assign(batch.inputs.begin(), batch.inputs.begin() + static_cast<std::ptrdiff_t>(count));
  // A target is the token behind an input, but of masked tokens, where it stands for the input itself.
  const size_t ahead = config.mask_rate > 0 ? 0 : 1;
  for (size_t i = 0; i < count; ++i) out.learned.push_back(i >= ahead && batch.targets[i - ahead] != kIgnoredTarget);
  return out;
}

}  // namespace ingot::data
