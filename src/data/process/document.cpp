#include "data/process/document.h"

#include <algorithm>

#include "data/utf8.h"

namespace ingot::data::process {
namespace {

constexpr size_t kExampleBytes = 300;

std::string beginning_of(const std::string& text) {
  if (text.size() <= kExampleBytes) return text;
  return text.substr(0, complete_utf8_prefix(std::string_view(text).substr(0, kExampleBytes))) + "\u2026";
}

}  // namespace

void Tally::remove(const Document& document, const std::string& reason, const std::string& remark) {
  auto& entry = removed[reason];
  ++entry.documents;
  entry.bytes += static_cast<int64_t>(document.text.size());
  if (entry.examples.size() < kExamples) entry.examples.push_back((remark.empty() ? "" : remark + ": ") + beginning_of(document.text));
}

void Tally::add(const Tally& later) {
  documents += later.documents;
  bytes += later.bytes;
  kept_documents += later.kept_documents;
  kept_bytes += later.kept_bytes;
  for (const auto& [reason, more] : later.removed) {
    auto& entry = removed[reason];
    entry.documents += more.documents;
    entry.bytes += more.bytes;
    for (const auto& example : more.examples)
      if (entry.examples.size() < kExamples) entry.examples.push_back(example);
  }
  for (const auto& [what, times] : later.counts) counts[what] += times;
}

}  // namespace ingot::data::process
