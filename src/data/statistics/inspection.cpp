#include "data/statistics/inspection.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kFrequentIds = 100;

void show_repeated(const std::vector<const IndexedDataset*>& datasets, const InspectionOptions& options, Inspection& out) {
  for (const auto& one : out.statistics.repeated)
    out.repeated.push_back(
        shown_document(*datasets[one.dataset], out.statistics.datasets[one.dataset].path, one.document, options.most_beginning));
}

// The datasets of all phases, each once.
std::vector<std::unique_ptr<IndexedDataset>> datasets_of(const std::vector<RunPhase>& phases) {
  std::vector<std::unique_ptr<IndexedDataset>> datasets;
  std::set<std::string> known;
  for (const auto& phase : phases)
    for (const auto& source : phase.data.sources)
      if (known.insert(dataset_prefix(source.path).lexically_normal().string()).second)
        datasets.push_back(std::make_unique<IndexedDataset>(source.path));
  return datasets;
}

void show_samples(const Loader& loader, const RunPhase& phase, bool is_only, const InspectionOptions& options, Inspection& out) {
  try {
    for (int64_t sample = 0; sample < std::min(options.samples, phase.samples); ++sample) {
      auto shown = shown_sample(loader, phase.data, sample, options.most_shown);
      if (!is_only) shown.title = fmt::format("Phase {}, {}", phase.name, shown.title);
      out.shown.push_back(std::move(shown));
    }
  } catch (const base::DataError& wrong) {  // a token outside of the model's vocabulary
    out.remarks.push_back(fmt::format("The run would end at this: {}", wrong.what()));
  }
}

Json json_of(const LengthCounts& lengths) {
  Json json{{"documents", lengths.documents()},      {"empty_documents", lengths.empty()}, {"shortest_document", lengths.shortest()},
            {"longest_document", lengths.longest()}, {"quantiles", Json::object()},        {"lengths", Json::array()}};
  for (const double share : {0.05, 0.25, 0.5, 0.75, 0.95, 0.99}) json["quantiles"][fmt::format("{}", share)] = lengths.quantile(share);
  for (const auto& bin : lengths.bins())
    json["lengths"].push_back({{"from", bin.from}, {"to", bin.to}, {"documents", bin.documents}, {"tokens", bin.tokens}});
  return json;
}

Json json_of(const DatasetStatistics& dataset) {
  Json json{{"path", dataset.path}, {"dtype", dataset.token_type}, {"tokens", dataset.tokens}};
  json.update(json_of(dataset.lengths));
  json.update(Json{{"counted_tokens", dataset.counted_tokens},
                   {"unlearned_tokens", dataset.unlearned_tokens},
                   {"decoded_tokens", dataset.decoded_tokens},
                   {"decoded_bytes", dataset.decoded_bytes},
                   {"compared_documents", dataset.compared_documents},
                   {"compared_tokens", dataset.compared_tokens},
                   {"repeated_documents", dataset.repeated_documents},
                   {"repeated_tokens", dataset.repeated_tokens}});
  return json;
}

Json json_of(const VocabularyUse& vocabulary) {
  const auto ids = by_frequency(vocabulary);
  Json frequent = Json::array();
  for (size_t i = 0; i < std::min(kFrequentIds, ids.size()); ++i)
    frequent.push_back({{"id", ids[i]}, {"count", vocabulary.counts[static_cast<size_t>(ids[i])]}});
  Json json{{"size", vocabulary.size}, {"used", vocabulary.used()}};
  if (vocabulary.size > 0) json["never_used"] = vocabulary.size - vocabulary.used();
  json.update(Json{{"outside", vocabulary.outside}, {"largest_id", vocabulary.largest_id}, {"most_frequent", frequent}});
  return json;
}

Json json_of(const PackedSource& source) {
  return {{"path", source.path},
          {"weight", source.weight},
          {"tokens", source.tokens},
          {"documents", source.documents},
          {"longer_documents", source.longer_documents},
          {"longer_tokens", source.longer_tokens},
          {"rows", source.rows},
          {"read_rows", source.read_rows},
          {"row_tokens", source.row_tokens},
          {"padding", source.padding},
          {"pieces", source.pieces},
          {"cut_pieces", source.cut_pieces},
          {"left_out_tokens", source.left_out_tokens()},
          {"samples", source.samples},
          {"epochs", source.epochs()}};
}

Json json_of(const PackedPhase& phase) {
  Json sources = Json::array();
  for (const auto& source : phase.sources) sources.push_back(json_of(source));
  return {{"name", phase.name}, {"packing", phase.packing}, {"seq_len", phase.seq_len}, {"samples", phase.samples}, {"sources", sources}};
}

Json duplicates_json(const Statistics& statistics) {
  Json most = Json::array();
  for (const auto& one : statistics.repeated)
    most.push_back(
        {{"path", statistics.datasets[one.dataset].path}, {"document", one.document}, {"tokens", one.tokens}, {"copies", one.copies}});
  return {{"compared_share", statistics.compared_share}, {"most_repeated", most}};
}

}  // namespace

Inspection inspect_dataset(const fs::path& path, const Tokenizer* tokenizer, const InspectionOptions& options) {
  const IndexedDataset dataset(path);
  Inspection out{.title = dataset.prefix().string(), .statistics = statistics_of({&dataset}, tokenizer, options.statistics)};
  const int64_t samples = std::min(options.samples, dataset.documents());
  for (int64_t i = 0; i < samples; ++i)
    out.shown.push_back(shown_document(dataset, out.title, static_cast<int64_t>(static_cast<__int128>(i) * dataset.documents() / samples),
                                       options.most_shown));
  show_repeated({&dataset}, options, out);
  return out;
}

Inspection inspect_run(const std::string& title, const std::vector<RunPhase>& phases, const Tokenizer* tokenizer,
                       const InspectionOptions& options) {
  const auto opened = datasets_of(phases);
  std::vector<const IndexedDataset*> datasets;
  for (const auto& one : opened) datasets.push_back(one.get());
  Inspection out{.title = title, .statistics = statistics_of(datasets, tokenizer, options.statistics)};
  for (const auto& phase : phases) {
    const Loader loader(phase.data, Split::train, phase.loader);
    out.phases.push_back(packed_phase(loader, phase.data, phase.name, phase.samples));
    show_samples(loader, phase, phases.size() == 1, options, out);
  }
  show_repeated(datasets, options, out);
  return out;
}

nlohmann::ordered_json numbers_of(const Inspection& inspection) {
  Json datasets = Json::array(), phases = Json::array();
  for (const auto& dataset : inspection.statistics.datasets) datasets.push_back(json_of(dataset));
  for (const auto& phase : inspection.phases) phases.push_back(json_of(phase));
  return {{"title", inspection.title},
          {"datasets", datasets},
          {"vocabulary", json_of(inspection.statistics.vocabulary)},
          {"duplicates", duplicates_json(inspection.statistics)},
          {"phases", phases},
          {"remarks", inspection.remarks}};
}

std::vector<int32_t> by_frequency(const VocabularyUse& vocabulary) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < vocabulary.counts.size(); ++id)
    if (vocabulary.counts[id] > 0) ids.push_back(static_cast<int32_t>(id));
  const auto count = [&](int32_t id) { return vocabulary.counts[static_cast<size_t>(id)]; };
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return count(a) != count(b) ? count(a) > count(b) : a < b; });
  return ids;
}

}  // namespace ingot::data
