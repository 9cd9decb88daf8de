#include "data/fill_in_middle.h"

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace ingot::data {
namespace {

constexpr size_t kFewestTokens = 8, kSentinels = 3;

double share_of(uint32_t word) { return static_cast<double>(word) / 4294967296.0; }

// Inputs [begin, end) of a row are of one document.
void turn(const DataConfig& config, const std::array<uint32_t, 4>& random, size_t begin, size_t end, const Row& row) {
  if (share_of(random[0]) >= config.fim_rate) return;
  const bool goes_on = row.targets[end - 1] >= 0;  // behind the row
  std::vector<int32_t> tokens(row.inputs.begin() + static_cast<std::ptrdiff_t>(begin),
                              row.inputs.begin() + static_cast<std::ptrdiff_t>(end));
  for (size_t i = begin; i + 1 < end; ++i)
    if (row.targets[i] < 0) return;
  if (goes_on) tokens.push_back(row.targets[end - 1]);
  if (tokens.size() < kFewestTokens) return;
  const size_t kept = goes_on ? 0 : 1, body = tokens.size() - kept - kSentinels;
  size_t first = static_cast<size_t>(share_of(random[2]) * static_cast<double>(body + 1));
  size_t second = static_cast<size_t>(share_of(random[3]) * static_cast<double>(body + 1));
  if (first > second) std::swap(first, second);
  std::vector<int32_t> turned;
  turned.reserve(tokens.size());
  const auto token = [&](int64_t id) { turned.push_back(static_cast<int32_t>(id)); };
  const auto part = [&](size_t from, size_t to) {
    turned.insert(turned.end(), tokens.begin() + static_cast<std::ptrdiff_t>(from), tokens.begin() + static_cast<std::ptrdiff_t>(to));
  };
  const bool suffix_first = share_of(random[1]) < config.fim_spm_rate;
  token(config.fim_prefix);
  if (!suffix_first) part(0, first);
  token(config.fim_suffix);
  part(second, body);
  token(config.fim_middle);
  if (suffix_first) part(0, first);
  part(first, second);
  part(tokens.size() - kept, tokens.size());
  for (size_t i = begin; i < end; ++i) {
    row.inputs[i] = turned[i - begin];
    if (i + 1 - begin < turned.size()) row.targets[i] = turned[i + 1 - begin];
  }
}

}  // namespace

void fill_in_middle(const DataConfig& config, int64_t sample, const Row& row) {
  const auto key = base::stream_key(static_cast<uint64_t>(config.seed), "fill in the middle");
  uint64_t document = 0;
  for (size_t begin = 0; begin < row.inputs.size(); ++document) {
    size_t end = begin + 1;
    while (end < row.inputs.size() && row.document_starts[end] == row.document_starts[begin]) ++end;
    turn(config, base::philox(key, static_cast<uint64_t>(sample), document), begin, end, row);
    begin = end;
  }
}

}  // namespace ingot::data
