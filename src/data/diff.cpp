// `ingot data diff`: which documents two token datasets have in common, and which one of them alone has.
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/error.h"
#include "base/progress.h"
#include "data/commands.h"
#include "data/indexed_dataset.h"
#include "data/process/records.h"
#include "data/tokenizer.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;
using process::Record, process::RecordSorter;

constexpr int64_t kShownTokens = 64;
constexpr int64_t kSortedBytes = int64_t{512} << 20;

// Digests of all documents, sorted; equal ones by their place.
void add_digests(const IndexedDataset& dataset, RecordSorter& digests) {
  base::ProgressBar bar("reading " + dataset.prefix().filename().string(), dataset.tokens(), base::ProgressUnit::count);
  std::vector<int32_t> ids;
  for (int64_t document = 0; document < dataset.documents(); ++document) {
    ids.resize(static_cast<size_t>(dataset.document_tokens(document)));
    dataset.read(dataset.document_begin(document), ids);
    const auto hash = XXH3_128bits(ids.data(), ids.size() * sizeof(int32_t));
    digests.add({{hash.low64, hash.high64}, {document, 0}});
    if (document % 1024 == 0) bar.update(dataset.document_begin(document)), dataset.release_pages();
  }
}

struct Difference {
  int64_t common = 0, same_place = 0;
  int64_t only[2] = {0, 0}, tokens[2] = {0, 0};
  std::vector<int64_t> examples[2];  // documents, the first ones
};

void add_only(const IndexedDataset& dataset, const Record& record, int side, int64_t samples, Difference& difference) {
  ++difference.only[side];
  difference.tokens[side] += dataset.document_tokens(record.place.document);
  auto& examples = difference.examples[side];
  examples.insert(std::upper_bound(examples.begin(), examples.end(), record.place.document), record.place.document);
  if (static_cast<int64_t>(examples.size()) > samples) examples.pop_back();
}

// All documents of one digest, of both. Equal ones at the same place belong together first; what one has more of than the other is alone.
struct Equals {
  std::vector<Record> of[2];
};
void compare(Equals equals, const IndexedDataset (&datasets)[2], int64_t samples, Difference& difference) {
  std::vector<Record> rest[2];
  for (size_t i = 0, k = 0; i < equals.of[0].size() || k < equals.of[1].size();) {
    const bool has_a = i < equals.of[0].size(), has_b = k < equals.of[1].size();
    if (has_a && has_b && equals.of[0][i].place == equals.of[1][k].place) ++difference.common, ++difference.same_place, ++i, ++k;
    else if (has_a && (!has_b || equals.of[0][i].place < equals.of[1][k].place)) rest[0].push_back(equals.of[0][i++]);
    else rest[1].push_back(equals.of[1][k++]);
  }
  const size_t pairs = std::min(rest[0].size(), rest[1].size());
  difference.common += static_cast<int64_t>(pairs);
  for (const int side : {0, 1})
    for (size_t i = pairs; i < rest[side].size(); ++i) add_only(datasets[side], rest[side][i], side, samples, difference);
}

Difference compare(const IndexedDataset (&datasets)[2], RecordSorter (&digests)[2], int64_t samples) {
  RecordSorter::Reader readers[] = {RecordSorter::Reader(digests[0]), RecordSorter::Reader(digests[1])};
  Record heads[2];
  bool are_there[] = {readers[0].next(heads[0]), readers[1].next(heads[1])};
  Difference difference;
  const auto key_of = [](const Record& record) { return std::pair(record.key[0], record.key[1]); };
  while (are_there[0] || are_there[1]) {
    const auto key = !are_there[1] || (are_there[0] && key_of(heads[0]) < key_of(heads[1])) ? key_of(heads[0]) : key_of(heads[1]);
    Equals equals;
    for (const int side : {0, 1})
      while (are_there[side] && key_of(heads[side]) == key) {
        equals.of[side].push_back(heads[side]);
        are_there[side] = readers[side].next(heads[side]);
      }
    compare(std::move(equals), datasets, samples, difference);
  }
  return difference;
}

std::string beginning_of(const IndexedDataset& dataset, int64_t document, const Tokenizer* tokenizer) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kShownTokens, dataset.document_tokens(document))));
  dataset.read(dataset.document_begin(document), ids);
  return tokenizer ? tokenizer->decode(ids, /*keep_special=*/true) : fmt::format("{}", fmt::join(ids, " "));
}

}  // namespace

int run_data_diff(const DiffCommand& command, std::ostream& out) {
  if (command.a.empty() || command.b.empty()) throw base::UsageError("name the prefixes of two .bin/.idx pairs");
  const IndexedDataset datasets[2] = {IndexedDataset(command.a), IndexedDataset(command.b)};
  const auto tokenizer = command.tokenizer.empty() ? nullptr : load_tokenizer(command.tokenizer);
  const auto folder = base::temporary_folder();
  const auto name = fmt::format("ingot-diff-{}", ::getpid());
  RecordSorter digests[] = {RecordSorter(folder, name + "-a", kSortedBytes), RecordSorter(folder, name + "-b", kSortedBytes)};
  for (const int side : {0, 1}) add_digests(datasets[side], digests[side]);
  const auto difference = compare(datasets, digests, std::max<int64_t>(0, command.samples));
  const bool are_equal = difference.only[0] == 0 && difference.only[1] == 0 && difference.same_place == difference.common;

  Json json = {{"equal", are_equal}, {"common", difference.common}, {"same_place", difference.same_place}};
  if (!command.json) out << fmt::format("{} documents in common, {} of them at the same place\n", difference.common, difference.same_place);
  for (const int side : {0, 1}) {
    const auto& dataset = datasets[side];
    Json examples = Json::array();
    if (!command.json)
      out << fmt::format("{}: {} documents, {} of them alone here ({} tokens)\n", dataset.prefix().string(), dataset.documents(),
                         difference.only[side], difference.tokens[side]);
    for (const int64_t document : difference.examples[side]) {
      const auto text = beginning_of(dataset, document, tokenizer.get());
      examples.push_back({{"document", document}, {"beginning", text}});
      if (!command.json) out << fmt::format("  document {}: {}\n", document, text);
    }
    json[side == 0 ? "a" : "b"] = {{"path", dataset.prefix().string()},
                                   {"documents", dataset.documents()},
                                   {"alone", difference.only[side]},
                                   {"tokens_alone", difference.tokens[side]},
                                   {"examples", examples}};
  }
  if (command.json) out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  return are_equal ? 0 : 3;
}

}  // namespace ingot::data
