// What data.packing makes of the sources of a run, in numbers: rows, padding, documents that are cut, tokens that no row has, and how often
// the run goes through each source.
#pragma once

#include <string>
#include <vector>

#include "data/loader.h"

namespace ingot::data {

/// A source as one phase of a run draws from it.
struct PackedSource {
  std::string path;
  double weight = 1;
  int64_t tokens = 0, documents = 0;                // of the training split; a document that the split cuts counts
  int64_t longer_documents = 0, longer_tokens = 0;  // than seq_len
  int64_t rows = 0;

  // Of the rows that were looked at: all while they are few, else runs of neighbours that lie evenly over the whole.
  int64_t read_rows = 0, row_tokens = 0, padding = 0;
  int64_t pieces = 0, cut_pieces = 0;  // runs of tokens of one document; those whose document goes on behind them

  int64_t samples = 0;  // that the phase draws
  /// Times that the phase goes through the source.
  double epochs() const { return rows > 0 ? static_cast<double>(samples) / static_cast<double>(rows) : 0; }
  /// Tokens of the split that stand in no row, from the rows that were looked at.
  double left_out_tokens() const;
};

struct PackedPhase {
  std::string name, packing;
  int64_t seq_len = 0, samples = 0;
  std::vector<PackedSource> sources;
};

/// What a phase of `samples` samples draws by `loader`, which is one of training by `config`. At most about `most_rows` rows of each source
/// are looked at, by the index alone.
PackedPhase packed_phase(const Loader& loader, const DataConfig& config, const std::string& name, int64_t samples,
                         int64_t most_rows = int64_t{1} << 16);

}  // namespace ingot::data
