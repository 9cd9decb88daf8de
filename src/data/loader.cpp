#include "data/loader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/fill_in_middle.h"
#include "data/masked_tokens.h"

namespace ingot::data {

using base::ConfigError;
using base::DataError;

namespace {

// Of packed chunks, which the sources share that a loader has open: what each may keep in any case.
constexpr int64_t kLeastKeptBytes = int64_t{1} << 20;

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
    for (const auto& path : config.validation) open(path, 1, 0);
    return;
  }
  check(config);
  for (const int64_t id : {config.fim_prefix, config.fim_suffix, config.fim_middle, config.mask_id})
    if (options.vocab_size > 0 && id >= options.vocab_size)
      throw ConfigError("data.fim_prefix, fim_suffix, fim_middle or mask_id is {}, and the vocabulary ends at {}", id,
                        options.vocab_size - 1);
  std::vector<double> weights;
  for (const auto& source : config.sources) {
    weights.push_back(source.weight);
    if (split == Split::validation && source.weight > 0) open(source.path, source.weight, 0);
    if (split == Split::validation) continue;
    auto& opened = open(source.path, source.weight, source.unit_tokens);
    opened.order = order_of(opened, source);
  }
  if (split == Split::validation) return;
  // Not before rows are laid out and ordered: that goes through the index from front to back.
  for (const auto& source : sources_) source.dataset->expect_random_reads();
  stretches_.push_back({0, weights, Mixture(weights), std::vector<int64_t>(weights.size(), 0)});
}

void Loader::change_weights(int64_t first_sample, const std::vector<double>& weights) {
  if (weights.size() != sources_.size()) throw DataError("{} weights for {} sources", weights.size(), sources_.size());
  if (first_sample < stretches_.back().first_sample)
    throw DataError("the weights of the sources have changed at sample {}, and cannot change before it", stretches_.back().first_sample);
  Stretch next{first_sample, weights, Mixture(weights), counts(first_sample)};
  if (first_sample == stretches_.back().first_sample) stretches_.back() = std::move(next);
  else stretches_.push_back(std::move(next));
}

void Loader::restore_changes(const LoaderState& state) {
  for (const auto& change : state.changes) change_weights(change.first_sample, change.weights);
}

const Loader::Stretch& Loader::stretch_at(int64_t sample) const {
  const auto next = std::upper_bound(stretches_.begin(), stretches_.end(), sample,
                                     [](int64_t s, const Stretch& stretch) { return s < stretch.first_sample; });
  return *std::prev(next);
}

std::vector<int64_t> Loader::counts(int64_t samples) const {
  const auto& stretch = stretch_at(samples);
  auto counts = stretch.mixture.counts(samples - stretch.first_sample);
  for (size_t s = 0; s < counts.size(); ++s) counts[s] += stretch.before[s];
  return counts;
}

std::vector<Loader::Drawn> Loader::drawn(int64_t samples) const {
  std::vector<Drawn> all;
  const auto taken = counts(samples);
  for (size_t s = 0; s < sources_.size(); ++s) all.push_back({sources_[s].path, taken[s], sources_[s].packing->rows()});
  return all;
}

Loader::Source& Loader::open(const std::string& path, double weight, int64_t unit_tokens) {
  if (config_.packing == "pairs" && is_url(path))
    throw base::ConfigError("{}: pairs of answers are read from local files only: copy the data set", path);
  const CacheOptions cache{.folder = config_.cache, .limit_bytes = config_.cache_mib << 20};
  Source source{path, weight, std::make_unique<IndexedDataset>(path, cache), {}, nullptr, {}, unit_tokens};
  source.slice = {0, source.dataset->tokens()};
  if (config_.validation.empty() && config_.validation_fraction > 0) {
    const int64_t border = validation_begin(*source.dataset, config_.validation_fraction);
    (split_ == Split::train ? source.slice.end : source.slice.begin) = border;
  }
  PackingOptions options{config_.seq_len, config_.reset_documents, options_.pad_id, unit_tokens};
  const bool is_of_file = split_ == Split::validation && !config_.validation.empty();
  const auto sources = static_cast<int64_t>(is_of_file ? config_.validation.size() : config_.sources.size());
  options.kept_bytes = std::max(kLeastKeptBytes, options.kept_bytes / sources);
  source.packing = make_packing(config_.packing, *source.dataset, source.slice, options);
  source.dataset->release_pages();  // of many sources the few that it took to open each add up
  return sources_.emplace_back(std::move(source));
}

// Phases of one length go on at the very sample. Where the length changes, samples are other ones: the first window of units goes on that
// no former sample has touched.
SampleOrder Loader::order_of(const Source& source, const DataSource& described) const {
  // Many rows of a unit are a shuffle already; else windows are large enough for one, and small enough to leave little out.
  constexpr int64_t kWindowRows = 64, kFewestWindows = 16;
  const auto packing_of = [&](int64_t seq_len) {
    return make_packing(config_.packing, *source.dataset, source.slice, {seq_len, true, 0, described.unit_tokens});
  };
  SampleOrder::Options options{.seed = static_cast<uint64_t>(config_.seed), .rows = source.packing->rows()};
  options.source = described.number >= 0 ? described.number : static_cast<int64_t>(&source - sources_.data());
  if (described.curriculum != "none" && described.unit_tokens != 0)
    throw ConfigError(
        "{} has a curriculum, which goes with one data.seq_len, and phases of several: leave out the curriculum, or give the later phases "
        "reset_dataloader = true",
        source.path);
  if (described.unit_tokens == 0) {
    options.curriculum = make_curriculum(described, *source.dataset, *source.packing, options.seed, options.source);
    for (const auto& drawn : described.drawn) options.first += drawn.samples;
    return SampleOrder(options);
  }
  const auto longest = packing_of(described.unit_tokens);
  const int64_t units = longest->rows() / longest->unit_rows();
  options.window_units = std::clamp<int64_t>(units / kFewestWindows, 1, std::max<int64_t>(1, kWindowRows / longest->unit_rows()));
  int64_t seq_len = 0;
  const auto go_on_with = [&](int64_t length, const Packing& packing) {
    const int64_t unit = length == seq_len || seq_len == 0 ? 0 : SampleOrder(options).first_untouched_unit(0);
    if (length == seq_len) return;
    options.rows = packing.rows();
    options.unit_rows = packing.unit_rows();
    options.first = unit * options.unit_rows;
    seq_len = length;
  };
  for (const auto& drawn : described.drawn) {
    if (drawn.samples == 0) continue;
    go_on_with(drawn.seq_len, *packing_of(drawn.seq_len));
    options.first += drawn.samples;
  }
  go_on_with(config_.seq_len, *source.packing);
  return SampleOrder(options);
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
  if (stretches_.empty()) {
    sample %= samples();
    for (size_t s = 0;; ++s) {
      const int64_t rows = sources_[s].packing->rows();
      if (sample < rows) return {s, sample};
      sample -= rows;
    }
  }
  const auto& stretch = stretch_at(sample);
  const auto pick = stretch.mixture.at(sample - stretch.first_sample);
  return {pick.source, sources_[pick.source].order->row_of(stretch.before[pick.source] + pick.index)};
}

Batch Loader::batch(int64_t first_sample, int64_t count) const {
  Batch out;
  fill(first_sample, count, out);
  return out;
}

void Loader::resize(Batch& out, size_t tokens) const {
  const size_t of_pairs = config_.packing == "pairs" ? tokens : 0;
  for (auto* ids : {&out.inputs, &out.targets, &out.document_starts}) ids->resize(tokens);
  out.pair_starts.resize(of_pairs);
  out.reference_margins.resize(of_pairs);
}

namespace {

// The row that begins at the end of those before it has so many tokens: the next one begins behind them. A row without any keeps one of its
// padding, so that there is something to compute with.
void end_row(int64_t tokens, Batch& out) {
  const int64_t begin = out.row_begins.back(), end = begin + std::max<int64_t>(1, tokens);
  for (auto at = static_cast<size_t>(begin); at < static_cast<size_t>(end); ++at) {
    out.document_starts[at] += static_cast<int32_t>(begin);
    if (!out.pair_starts.empty() && out.pair_starts[at] >= 0) out.pair_starts[at] += static_cast<int32_t>(begin);
  }
  out.row_begins.push_back(end);
}

}  // namespace

void Loader::fill(int64_t first_sample, int64_t count, Batch& out) const {
  if (first_sample < 0 || count < 0) throw DataError("samples {} to {} do not exist", first_sample, first_sample + count);
  const auto seq = static_cast<size_t>(config_.seq_len), total = static_cast<size_t>(count) * seq;
  const bool is_variable = config_.rows == "variable";
  out.batch = count;
  out.row_begins.assign(is_variable ? 1 : 0, 0);
  out.seq = config_.seq_len;
  out.sources.resize(static_cast<size_t>(count));
  resize(out, is_variable ? 0 : total);
  read_ahead(first_sample, count);
  const bool has_pairs = config_.packing == "pairs";
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = is_variable ? static_cast<size_t>(out.row_begins.back()) : static_cast<size_t>(i) * seq;
    if (is_variable) resize(out, at + seq);
    Row row{std::span(out.inputs).subspan(at, seq), std::span(out.targets).subspan(at, seq),
            std::span(out.document_starts).subspan(at, seq)};
    if (has_pairs) {
      row.pair_starts = std::span(out.pair_starts).subspan(at, seq);
      row.reference_margins = std::span(out.reference_margins).subspan(at, seq);
    }
    const Place place = place_of(first_sample + i);
    out.sources[static_cast<size_t>(i)] = static_cast<int32_t>(place.source);
    const int64_t filled = sources_[place.source].packing->fill(place.row, row);
    if (config_.fim_rate > 0 && split_ == Split::train) fill_in_middle(config_, first_sample + i, row);
    if (config_.mask_rate > 0) mask_tokens(config_, first_sample + i, std::max(options_.vocab_size, config_.mask_id + 1), row);
    if (options_.vocab_size > 0) check_ids(row, place);
    if (is_variable) end_row(filled, out);
  }
  if (is_variable) resize(out, static_cast<size_t>(out.row_begins.back()));
  auto used = out.sources;
  std::ranges::sort(used);
  used.erase(std::ranges::unique(used).begin(), used.end());
  for (const int32_t source : used) sources_[static_cast<size_t>(source)].dataset->release_pages();
}

void Loader::check_ids(const Row& row, const Place& place) const {
  const int32_t largest =
      std::max(*std::max_element(row.inputs.begin(), row.inputs.end()), *std::max_element(row.targets.begin(), row.targets.end()));
  if (largest >= options_.vocab_size)
    throw DataError("{} holds the token {}, but the model's vocabulary ends at {}: it was made with another tokenizer; tokenise it again",
                    sources_[place.source].path, largest, options_.vocab_size - 1);
}

void Loader::read_ahead(int64_t first_sample, int64_t count) const {
  if (std::none_of(sources_.begin(), sources_.end(), [](const Source& source) { return source.dataset->is_remote(); })) return;
  for (int64_t sample = first_sample; sample < first_sample + count; ++sample) {
    const Place place = place_of(sample);
    const auto& source = sources_[place.source];
    if (!source.dataset->is_remote()) continue;
    for (const Slice& tokens : source.packing->reads(place.row)) source.dataset->read_ahead(tokens.begin, tokens.end - tokens.begin);
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

Loader::Origin Loader::origin(int64_t sample) const {
  const Place place = place_of(sample);
  return {place.source, sources_[place.source].packing->pieces(place.row)};
}

int64_t Loader::token_bytes() const {
  int64_t bytes = 0;
  for (const auto& source : sources_) bytes = std::max(bytes, size_bytes(source.dataset->token_type()));
  return bytes;
}

bool Loader::has_weights_of_settings(const Stretch& stretch) const {
  return std::equal(sources_.begin(), sources_.end(), stretch.weights.begin(),
                    [](const Source& source, double weight) { return source.weight == weight; });
}

LoaderState Loader::state(int64_t step, int64_t samples) const {
  LoaderState state{step,
                    samples,
                    config_.seed,
                    config_.seq_len,
                    config_.packing,
                    config_.reset_documents,
                    row_version(config_.packing),
                    config_.fim_rate == 0 ? std::string()
                                          : fmt::format("{} {} {} {} {}", config_.fim_rate, config_.fim_spm_rate, config_.fim_prefix,
                                                        config_.fim_suffix, config_.fim_middle),
                    config_.mask_rate == 0 ? std::string() : fmt::format("{} {}", config_.mask_rate, config_.mask_id),
                    {},
                    {}};
  const auto drawn = stretches_.empty() ? std::vector<int64_t>(sources_.size(), 0) : counts(samples);
  for (size_t s = 0; s < sources_.size(); ++s)
    state.sources.push_back({sources_[s].slice.end - sources_[s].slice.begin, sources_[s].dataset->documents(), sources_[s].weight,
                             drawn[s], sources_[s].order ? sources_[s].order->first() : 0, sources_[s].unit_tokens,
                             sources_[s].order && sources_[s].order->curriculum() ? sources_[s].order->curriculum()->description() : ""});
  for (const auto& stretch : stretches_)
    if (stretches_.size() > 1 || !has_weights_of_settings(stretch)) state.changes.push_back({stretch.first_sample, stretch.weights});
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
  compare("data.fim_…", saved.fill_in_middle, now.fill_in_middle);
  compare("data.mask_…", saved.masked, now.masked);
  compare("the number of sources", saved.sources.size(), now.sources.size());
  for (size_t s = 0; s < now.sources.size(); ++s) {
    const char* by_epochs = config_.sources.size() > s && config_.sources[s].epochs > 0 ? " (of its epochs, and the phase's samples)" : "";
    compare(fmt::format("the weight of {}{}", sources_[s].path, by_epochs), saved.sources[s].weight, now.sources[s].weight);
    compare(fmt::format("the number of training tokens of {}", sources_[s].path), saved.sources[s].tokens, now.sources[s].tokens);
    compare(fmt::format("the number of documents of {}", sources_[s].path), saved.sources[s].documents, now.sources[s].documents);
    const char* hint = " (the lengths of the phases before, or reset_dataloader)";
    compare(fmt::format("where the phase begins in {}{}", sources_[s].path, hint), saved.sources[s].first, now.sources[s].first);
    compare(fmt::format("the unit of the order of {}{}", sources_[s].path, hint), saved.sources[s].unit_tokens, now.sources[s].unit_tokens);
    compare(fmt::format("the curriculum of {}", sources_[s].path), saved.sources[s].curriculum, now.sources[s].curriculum);
  }
}

std::string LoaderState::to_json() const {
  nlohmann::json json{{"step", step},
                      {"samples", samples},
                      {"seed", seed},
                      {"seq_len", seq_len},
                      {"packing", packing},
                      {"reset_documents", reset_documents},
                      {"row_version", row_version},
                      {"fill_in_middle", fill_in_middle},
                      {"masked", masked}};
  json["sources"] = nlohmann::json::array();
  for (const auto& source : sources)
    json["sources"].push_back({{"tokens", source.tokens},
                               {"documents", source.documents},
                               {"weight", source.weight},
                               {"samples", source.samples},
                               {"first", source.first},
                               {"unit_tokens", source.unit_tokens},
                               {"curriculum", source.curriculum}});
  for (const auto& change : changes) json["changes"].push_back({{"first_sample", change.first_sample}, {"weights", change.weights}});
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
                      json.value("fill_in_middle", std::string()),
                      json.value("masked", std::string()),
                      {},
                      {}};
    for (const auto& source : json.at("sources"))
      state.sources.push_back({source.at("tokens"), source.at("documents"), source.at("weight"), source.at("samples"),
                               source.value("first", int64_t{0}), source.value("unit_tokens", int64_t{0}),
                               source.value("curriculum", std::string())});
    for (const auto& change : json.value("changes", nlohmann::json::array()))
      state.changes.push_back({change.at("first_sample"), change.at("weights")});
    if (state.step < 0 || state.samples < 0)
      throw DataError("the state of the data loader counts {} steps and {} samples", state.step, state.samples);
    return state;
  } catch (const nlohmann::json::exception& wrong) {
    throw DataError("the state of the data loader cannot be read ({}): the checkpoint is damaged", wrong.what());
  }
}

}  // namespace ingot::data
