#include "data/loader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"

namespace ingot::data {

using base::ConfigError;
using base::DataError;

namespace {

// Where the validation part of a dataset begins: at the border of documents nearest to the wished place, unless that would
// make it less than half or more than one and a half times as large as wished; then a document is cut.
int64_t validation_begin(const IndexedDataset& dataset, double fraction) {
  const int64_t wished = static_cast<int64_t>(static_cast<double>(dataset.tokens()) * (1 - fraction));
  const int64_t size = dataset.tokens() - wished;
  if (size == 0 || wished == 0) return wished;
  const int64_t document = dataset.document_at(wished);
  const int64_t below = dataset.document_begin(document), above = dataset.document_begin(document + 1);
  const int64_t border = wished - below <= above - wished ? below : above;
  return 2 * std::abs(border - wished) <= size && border > 0 ? border : wished;
}

}  // namespace

bool has_validation(const DataConfig& config) { return !config.validation.empty() || config.validation_fraction > 0; }

std::pair<int64_t, int64_t> share_of(int64_t first, int64_t count, int64_t rank, int64_t ranks) {
  const int64_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
  return {first + begin, end - begin};
}

Loader::Loader(const DataConfig& config, Split split, const LoaderOptions& options) : config_(config), split_(split), options_(options) {
  if (split == Split::validation && !has_validation(config))
    throw ConfigError("there is no validation data: set data.validation or data.validation_fraction");
  if (split == Split::validation && !config.validation.empty()) {
    for (const auto& path : config.validation) open(path, 1);
    return;
  }
  check(config);
  std::vector<double> weights;
  for (const auto& source : config.sources) {
    if (source.weight > 0 || split == Split::train) open(source.path, source.weight);
    weights.push_back(source.weight);
  }
  if (split == Split::train) mixture_.emplace(weights);
}

void Loader::open(const std::string& path, double weight) {
  Source source{path, weight, std::make_unique<IndexedDataset>(path), {}, nullptr};
  source.slice = {0, source.dataset->tokens()};
  if (config_.validation.empty() && config_.validation_fraction > 0) {
    const int64_t border = validation_begin(*source.dataset, config_.validation_fraction);
    (split_ == Split::train ? source.slice.end : source.slice.begin) = border;
  }
  source.packing =
      make_packing(config_.packing, *source.dataset, source.slice, {config_.seq_len, config_.reset_documents, options_.pad_id});
  sources_.push_back(std::move(source));
}

int64_t Loader::samples() const {
  int64_t rows = 0;
  for (const auto& source : sources_) rows += source.packing->rows();
  return rows;
}

int64_t Loader::tokens() const {
  int64_t tokens = 0;
  for (const auto& source : sources_) tokens += source.slice.end - source.slice.begin;
  return tokens;
}

Loader::Place Loader::place_of(int64_t sample) const {
  if (!mixture_) {
    sample %= samples();
    for (size_t s = 0;; ++s) {
      const int64_t rows = sources_[s].packing->rows();
      if (sample < rows) return {s, sample};
      sample -= rows;
    }
  }
  const auto pick = mixture_->at(sample);
  const int64_t rows = sources_[pick.source].packing->rows(), epoch = pick.index / rows;
  const uint64_t key = base::stream_key(static_cast<uint64_t>(config_.seed), fmt::format("source {} epoch {}", pick.source, epoch));
  return {pick.source, static_cast<int64_t>(base::permute(key, static_cast<uint64_t>(pick.index % rows), static_cast<uint64_t>(rows)))};
}

Batch Loader::batch(int64_t first_sample, int64_t count) const {
  Batch out;
  fill(first_sample, count, out);
  return out;
}

void Loader::fill(int64_t first_sample, int64_t count, Batch& out) const {
  if (first_sample < 0 || count < 0) throw DataError("samples {} to {} do not exist", first_sample, first_sample + count);
  const auto seq = static_cast<size_t>(config_.seq_len), total = static_cast<size_t>(count) * seq;
  out.batch = count;
  out.seq = config_.seq_len;
  out.inputs.resize(total);
  out.targets.resize(total);
  out.document_starts.resize(total);
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) * seq;
    const Row row{std::span(out.inputs).subspan(at, seq), std::span(out.targets).subspan(at, seq),
                  std::span(out.document_starts).subspan(at, seq)};
    const Place place = place_of(first_sample + i);
    sources_[place.source].packing->fill(place.row, row);
    if (options_.vocab_size == 0) continue;
    const int32_t largest =
        std::max(*std::max_element(row.inputs.begin(), row.inputs.end()), *std::max_element(row.targets.begin(), row.targets.end()));
    if (largest >= options_.vocab_size)
      throw DataError("{} holds the token {}, but the model's vocabulary ends at {}: it was made with another tokenizer; tokenise it again",
                      sources_[place.source].path, largest, options_.vocab_size - 1);
  }
}

std::vector<Loader::FileRead> Loader::reads(int64_t sample) const {
  const Place place = place_of(sample);
  const auto& source = sources_[place.source];
  const int64_t width = size_bytes(source.dataset->token_type());
  std::vector<FileRead> reads;
  for (const Slice& tokens : source.packing->reads(place.row)) reads.push_back({place.source, tokens.begin * width, tokens.end * width});
  return reads;
}

int64_t Loader::token_bytes() const {
  int64_t bytes = 0;
  for (const auto& source : sources_) bytes = std::max(bytes, size_bytes(source.dataset->token_type()));
  return bytes;
}

LoaderState Loader::state(int64_t step, int64_t samples) const {
  LoaderState state{step, samples, config_.seed, config_.seq_len, config_.packing, config_.reset_documents, row_version(config_.packing),
                    {}};
  const auto counts = mixture_ ? mixture_->counts(samples) : std::vector<int64_t>(sources_.size(), 0);
  for (size_t s = 0; s < sources_.size(); ++s)
    state.sources.push_back(
        {sources_[s].slice.end - sources_[s].slice.begin, sources_[s].dataset->documents(), sources_[s].weight, counts[s]});
  return state;
}

void Loader::check_resumable(const LoaderState& saved) const {
  const LoaderState now = state(saved.step, saved.samples);
  const auto compare = [&](const std::string& what, const auto& before, const auto& after) {
    if (before != after)
      throw DataError(
          "the data is not what the checkpoint was trained on: {} was {} and is {}; go back to the old data, or start a new phase with "
          "samples counted from 0",
          what, before, after);
  };
  compare("data.seed", saved.seed, now.seed);
  compare("data.seq_len", saved.seq_len, now.seq_len);
  compare("data.packing", saved.packing, now.packing);
  compare("the version of the rows of data.packing", saved.row_version, now.row_version);
  compare("data.reset_documents", saved.reset_documents, now.reset_documents);
  compare("the number of sources", saved.sources.size(), now.sources.size());
  for (size_t s = 0; s < now.sources.size(); ++s) {
    compare(fmt::format("the weight of {}", sources_[s].path), saved.sources[s].weight, now.sources[s].weight);
    compare(fmt::format("the number of training tokens of {}", sources_[s].path), saved.sources[s].tokens, now.sources[s].tokens);
    compare(fmt::format("the number of documents of {}", sources_[s].path), saved.sources[s].documents, now.sources[s].documents);
  }
}

std::string LoaderState::to_json() const {
  nlohmann::json json{{"step", step},
                      {"samples", samples},
                      {"seed", seed},
                      {"seq_len", seq_len},
                      {"packing", packing},
                      {"reset_documents", reset_documents},
                      {"row_version", row_version}};
  json["sources"] = nlohmann::json::array();
  for (const auto& source : sources)
    json["sources"].push_back(
        {{"tokens", source.tokens}, {"documents", source.documents}, {"weight", source.weight}, {"samples", source.samples}});
  return json.dump();
}

LoaderState LoaderState::from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    LoaderState state{json.at("step"),
                      json.at("samples"),
                      json.at("seed"),
                      json.at("seq_len"),
                      json.at("packing"),
                      json.at("reset_documents"),
                      json.value("row_version", int64_t{1}),
                      {}};
    for (const auto& source : json.at("sources"))
      state.sources.push_back({source.at("tokens"), source.at("documents"), source.at("weight"), source.at("samples")});
    if (state.step < 0 || state.samples < 0)
      throw DataError("the state of the data loader counts {} steps and {} samples", state.step, state.samples);
    return state;
  } catch (const nlohmann::json::exception& wrong) {
    throw DataError("the state of the data loader cannot be read ({}): the checkpoint is damaged", wrong.what());
  }
}

}  // namespace ingot::data
