#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/error.h"
#include "base/progress.h"
#include "base/text.h"
#include "data/commands.h"
#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kShownDocuments = 3, kSampleTokens = 64;
constexpr int64_t kScanTokens = int64_t{1} << 18;

struct LengthBin {
  int64_t from = 0, to = 0;  // tokens, inclusive
  int64_t documents = 0, tokens = 0;
};

struct DatasetFacts {
  int64_t smallest_id = 0, largest_id = 0;
  int64_t shortest = 0, longest = 0, empty_documents = 0;
  std::vector<LengthBin> lengths;  // powers of two
};

void scan_ids(const IndexedDataset& dataset, DatasetFacts& facts) {
  base::ProgressBar bar("scanning", dataset.tokens(), base::ProgressUnit::count);
  std::vector<int32_t> block(static_cast<size_t>(std::min(kScanTokens, dataset.tokens())));
  facts.smallest_id = dataset.tokens() > 0 ? INT32_MAX : 0;
  for (int64_t at = 0; at < dataset.tokens(); at += kScanTokens) {
    const auto part = std::span(block).first(static_cast<size_t>(std::min(kScanTokens, dataset.tokens() - at)));
    dataset.read(at, part);
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    facts.smallest_id = std::min<int64_t>(facts.smallest_id, *low);
    facts.largest_id = std::max<int64_t>(facts.largest_id, *high);
    bar.update(at + static_cast<int64_t>(part.size()));
  }
}

void count_lengths(const IndexedDataset& dataset, DatasetFacts& facts) {
  facts.shortest = dataset.documents() > 0 ? INT64_MAX : 0;
  for (int64_t d = 0; d < dataset.documents(); ++d) {
    const int64_t tokens = dataset.document_tokens(d);
    facts.shortest = std::min(facts.shortest, tokens);
    facts.longest = std::max(facts.longest, tokens);
    if (tokens == 0) {
      ++facts.empty_documents;
      continue;
    }
    const auto bin = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(tokens)) - 1);
    while (facts.lengths.size() <= bin) {
      const int64_t from = int64_t{1} << facts.lengths.size();
      facts.lengths.push_back({from, 2 * from - 1});
    }
    ++facts.lengths[bin].documents;
    facts.lengths[bin].tokens += tokens;
  }
}

std::vector<int32_t> beginning_of(const IndexedDataset& dataset, int64_t document) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kSampleTokens, dataset.document_tokens(document))));
  dataset.read(dataset.document_begin(document), ids);
  return ids;
}

Json as_json(const IndexedDataset& dataset, const DatasetFacts& facts) {
  Json lengths = Json::array();
  for (const auto& bin : facts.lengths)
    lengths.push_back({{"from", bin.from}, {"to", bin.to}, {"documents", bin.documents}, {"tokens", bin.tokens}});
  return {{"path", dataset.prefix().string()},
          {"dtype", name_of(dataset.token_type())},
          {"tokens", dataset.tokens()},
          {"sequences", dataset.sequences()},
          {"documents", dataset.documents()},
          {"empty_documents", facts.empty_documents},
          {"smallest_id", facts.smallest_id},
          {"largest_id", facts.largest_id},
          {"shortest_document", facts.shortest},
          {"longest_document", facts.longest},
          {"lengths", lengths}};
}

void print_facts(const IndexedDataset& dataset, const DatasetFacts& facts, std::ostream& out) {
  const double documents = static_cast<double>(std::max<int64_t>(dataset.documents(), 1));
  out << fmt::format("{}: {} tokens as {}, {} sequences in {} documents\n", dataset.prefix().string(), dataset.tokens(),
                     name_of(dataset.token_type()), dataset.sequences(), dataset.documents());
  out << fmt::format("ids {} to {}; documents of {} to {} tokens, {:.1f} on average, {} empty\n", facts.smallest_id, facts.largest_id,
                     facts.shortest, facts.longest, static_cast<double>(dataset.tokens()) / documents, facts.empty_documents);
  int64_t most = 1;
  for (const auto& bin : facts.lengths) most = std::max(most, bin.documents);
  out << "tokens of a document      documents     share of tokens\n";
  for (const auto& bin : facts.lengths) {
    const auto width = static_cast<size_t>(bin.documents * 40 / most + (bin.documents > 0));
    out << fmt::format("{:>9} – {:<9} {:>13} {:>16.1f} %  {}\n", bin.from, bin.to, bin.documents,
                       100.0 * static_cast<double>(bin.tokens) / static_cast<double>(std::max<int64_t>(dataset.tokens(), 1)),
                       std::string(width, '#'));
  }
}

}  // namespace

int run_data_inspect(const InspectCommand& command, std::ostream& out) {
  if (command.path.empty()) throw base::UsageError("name the prefix of a .bin/.idx pair");
  const IndexedDataset dataset(command.path);
  const auto tokenizer = command.tokenizer.empty() ? nullptr : load_tokenizer(command.tokenizer);
  dataset.check_whole_index();
  DatasetFacts facts;
  scan_ids(dataset, facts);
  count_lengths(dataset, facts);
  const bool fits = !tokenizer || facts.largest_id < tokenizer->vocab_size();

  Json json = as_json(dataset, facts);
  if (!command.json) print_facts(dataset, facts, out);
  const int64_t samples = std::clamp<int64_t>(command.samples.value_or(kShownDocuments), 0, dataset.documents());
  if (samples > 0) json["samples"] = Json::array();
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t document = i * dataset.documents() / samples;
    const auto ids = beginning_of(dataset, document);
    const std::string text = tokenizer && fits ? tokenizer->decode(ids, /*keep_special=*/true) : "";
    json["samples"].push_back({{"document", document}, {"ids", ids}, {"text", text}});
    if (!command.json)
      out << fmt::format("\ndocument {}: {}\n", document, tokenizer && fits ? text : fmt::format("{}", fmt::join(ids, " ")));
  }
  if (tokenizer) {
    json["vocab_size"] = tokenizer->vocab_size();
    json["fits_tokenizer"] = fits;
    if (!fits && !command.json)
      out << fmt::format("\nthe id {} is outside the vocabulary of {} ({}): this is not the tokenizer of the data\n", facts.largest_id,
                         command.tokenizer, tokenizer->vocab_size());
  }
  if (command.json) out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  return fits ? 0 : 3;
}

}  // namespace ingot::data
