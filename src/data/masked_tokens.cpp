#include "data/masked_tokens.h"

#include <algorithm>

#include "base/random.h"

namespace ingot::data {

void mask_tokens(const DataConfig& config, int64_t sample, int64_t vocab_size, const Row& row) {
  const auto seq = static_cast<int64_t>(row.inputs.size());
  const uint64_t key = base::stream_key(static_cast<uint64_t>(config.seed), "masked tokens");
  const auto drawn = [&](int64_t s, uint64_t which) { return base::uniform_at(key, static_cast<uint64_t>(sample * seq + s) * 3 + which); };
  // The token before, where it has one as its next, knows that a token is text and learned; the first of a document has none before it.
  int32_t before = kIgnoredTarget;
  for (int64_t s = 0; s < seq; ++s) {
    const auto at = static_cast<size_t>(s);
    const bool is_first = row.document_starts[at] == static_cast<int32_t>(s);
    const bool is_text = is_first ? row.targets[at] != kIgnoredTarget : before == row.inputs[at];
    before = row.targets[at];
    row.targets[at] = kIgnoredTarget;
    if (!is_text || drawn(s, 0) >= config.mask_rate) continue;
    row.targets[at] = row.inputs[at];
    const double what = drawn(s, 1);
    if (what < 0.8) row.inputs[at] = static_cast<int32_t>(config.mask_id);
    else if (what < 0.9)
      row.inputs[at] =
          static_cast<int32_t>(std::min<int64_t>(vocab_size - 1, static_cast<int64_t>(drawn(s, 2) * static_cast<double>(vocab_size))));
  }
}

}  // namespace ingot::data
