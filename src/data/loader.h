// Batches for training. Sample i is a pure function of (settings, i): a mixture says which source gives it, and a keyed
// permutation which row of that source's present epoch (data/sample_order.h; docs/data-formats.md, "Sample order"). There is no shuffle
// table and no hidden position: any batch can be asked for at any time, on any rank, by any number of threads, and resuming is asking for
// the next sample.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/config.h"
#include "data/indexed_dataset.h"
#include "data/mixture.h"
#include "data/packing.h"
#include "data/sample_order.h"

namespace ingot::data {

struct Batch {
  int64_t batch = 0, seq = 0;
  std::vector<int32_t> inputs;           // [batch, seq]
  std::vector<int32_t> targets;          // [batch, seq], kIgnoredTarget where there is nothing to predict
  std::vector<int32_t> document_starts;  // [batch, seq]: index in the row of the first token of the document of token s
  // Of pairs of answers (data/pair_packing.h), else empty; [batch, seq] each.
  std::vector<int32_t> pair_starts;       // index in the row of the first token of the pair of token s; -1 in padding
  std::vector<double> reference_margins;  // where a pair begins, the reference's log p(chosen) - log p(rejected); else NaN
  std::vector<int32_t> sources;           // [batch]: which of the loader's sources the row is of
  // Of data.rows = "variable", else empty; [batch + 1]: where each row begins, and the end of all. Rows lie one behind another without
  // padding, as one row of row_begins.back() tokens: so many does each vector have, and starts are places in it. seq is the most of a row.
  std::vector<int64_t> row_begins;
};

enum class Split { train, validation };

struct LoaderOptions {
  int64_t vocab_size = 0;  // ids at or beyond it are an error; 0 = not checked
  int32_t pad_id = 0;
};

/// Where training stands in the data: all that a checkpoint needs to keep. Sizes and settings are there to notice that the
/// data is no longer what it was.
struct LoaderState {
  struct Source {
    int64_t tokens = 0, documents = 0;
    double weight = 0;
    int64_t samples = 0;      // of it that were given out
    int64_t first = 0;        // samples of it, in this phase's length, that count as drawn before the phase
    int64_t unit_tokens = 0;  // DataSource::unit_tokens
    std::string curriculum;   // its settings and what came of them; empty = none
  };
  int64_t step = 0, samples = 0;  // samples: given out over all ranks
  int64_t seed = 0, seq_len = 0;
  std::string packing;
  bool reset_documents = true;
  int64_t row_version = 1;     // of the packing
  std::string fill_in_middle;  // its settings; empty = off
  std::string masked;          // the same
  std::vector<Source> sources;
  /// Where the sources' weights are not those that the phase began with: from which sample on, and which.
  struct Change {
    int64_t first_sample = 0;
    std::vector<double> weights;
  };
  std::vector<Change> changes;

  std::string to_json() const;
  /// Throws DataError when the text is not a state.
  static LoaderState from_json(const std::string& text);
};

/// Of the samples [first, first + count) of a step those that one of the ranks that share it takes: first and count. Every sample goes
/// to exactly one of them, however many there are.
std::pair<int64_t, int64_t> share_of(int64_t first, int64_t count, int64_t rank, int64_t ranks);

class Loader {
 public:
  /// Opens the datasets. Throws DataError when one is damaged or too short for a sample, ConfigError for impossible settings
  /// or when `split` is validation and none is set.
  Loader(const DataConfig& config, Split split, const LoaderOptions& options = {});

  /// Samples [first_sample, first_sample + count). Training goes through the sources again and again, each epoch in a new
  /// order; validation samples lie in the order of the files and begin again after samples().
  Batch batch(int64_t first_sample, int64_t count) const;
  /// The same into a batch whose memory is used again.
  void fill(int64_t first_sample, int64_t count, Batch& out) const;

  /// From this sample on the sources have these weights; the samples before it stay what they are, and no row is repeated or left out. Of
  /// training; not while others ask for batches. Throws ConfigError where no weight is above 0, and DataError for a sample before the last
  /// change.
  void change_weights(int64_t first_sample, const std::vector<double>& weights);
  /// The changes that the state knows.
  void restore_changes(const LoaderState& state);
  /// Those of the last change.
  const std::vector<double>& weights() const { return stretches_.back().weights; }

  /// What the first `samples` samples take of each source of training.
  struct Drawn {
    std::string path;
    int64_t samples = 0, rows = 0;  // rows: of an epoch
  };
  std::vector<Drawn> drawn(int64_t samples) const;

  /// Asks for what these samples need of files with a URL, and does not wait.
  void read_ahead(int64_t first_sample, int64_t count) const;

  /// Bytes of a source's .bin file.
  struct FileRead {
    size_t source = 0;
    int64_t begin_byte = 0, end_byte = 0;
  };
  /// What has to be read for one sample. The index is not counted: a few pages of it for each row, of which the same are read again and
  /// again.
  std::vector<FileRead> reads(int64_t sample) const;
  /// Where the tokens of a sample come from, in their order in the row.
  struct Origin {
    size_t source = 0;
    std::vector<Slice> pieces;
  };
  Origin origin(int64_t sample) const;

  size_t sources() const { return sources_.size(); }
  const IndexedDataset& dataset(size_t source) const { return *sources_[source].dataset; }
  const Packing& packing(size_t source) const { return *sources_[source].packing; }
  /// The tokens of a source on this side of the split.
  Slice slice(size_t source) const { return sources_[source].slice; }

  /// Bytes of a token in the files; of several sources the largest.
  int64_t token_bytes() const;

  /// Samples that visit every row of every source once.
  int64_t samples() const;
  /// Samples of a training source that are still to come in the epoch in which the phase begins.
  int64_t unseen_samples(size_t source) const { return sources_[source].order->samples_left_of_epoch(0); }
  /// Tokens of the sources on this side of the split.
  int64_t tokens() const;
  int64_t seq_len() const { return config_.seq_len; }

  LoaderState state(int64_t step, int64_t samples) const;
  /// Throws DataError naming what differs if `state` was made with other data or settings, so that resuming would repeat or
  /// leave out samples.
  void check_resumable(const LoaderState& state) const;

 private:
  struct Source {
    std::string path;
    double weight = 1;
    std::unique_ptr<IndexedDataset> dataset;
    Slice slice;
    std::unique_ptr<Packing> packing;
    std::optional<SampleOrder> order;  // of training
    int64_t unit_tokens = 0;
  };
  struct Place {
    size_t source = 0;
    int64_t row = 0;
  };
  struct Stretch {  // of training, with the same weights
    int64_t first_sample = 0;
    std::vector<double> weights;
    Mixture mixture;
    std::vector<int64_t> before;  // samples of each source
  };
  Source& open(const std::string& path, double weight, int64_t unit_tokens);
  SampleOrder order_of(const Source& source, const DataSource& described) const;
  Place place_of(int64_t sample) const;
  void check_ids(const Row& row, const Place& place) const;
  void resize(Batch& out, size_t tokens) const;
  const Stretch& stretch_at(int64_t sample) const;
  std::vector<int64_t> counts(int64_t samples) const;
  bool has_weights_of_settings(const Stretch& stretch) const;

  DataConfig config_;
  Split split_;
  LoaderOptions options_;
  std::vector<Source> sources_;
  std::vector<Stretch> stretches_;  // with rising first samples; none of validation
};

/// Whether the settings name validation data at all.
bool has_validation(const DataConfig& config);

}  // namespace ingot::data
