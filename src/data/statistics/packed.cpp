#include "data/statistics/packed.h"

#include <algorithm>

namespace ingot::data {
namespace {

constexpr int64_t kNeighbours = 256;  // rows: what a packing makes at once, it keeps

void count_documents(const IndexedDataset& dataset, Slice slice, int64_t seq_len, PackedSource& out) {
  if (slice.begin >= slice.end) return;
  for (int64_t document = dataset.document_at(slice.begin); document < dataset.documents() && dataset.document_begin(document) < slice.end;
       ++document) {
    const int64_t tokens =
        std::min(dataset.document_begin(document + 1), slice.end) - std::max(dataset.document_begin(document), slice.begin);
    ++out.documents;
    if (tokens <= seq_len) continue;
    ++out.longer_documents;
    out.longer_tokens += tokens;
  }
}

void count_row(const IndexedDataset& dataset, const Packing& packing, int64_t row, int64_t seq_len, PackedSource& out) {
  int64_t tokens = 0;
  for (const Slice& piece : packing.pieces(row)) {
    tokens += piece.end - piece.begin;
    ++out.pieces;
    out.cut_pieces += piece.end < dataset.document_begin(dataset.document_at(piece.begin) + 1) ? 1 : 0;
  }
  ++out.read_rows;
  out.row_tokens += tokens;
  out.padding += seq_len - tokens;
}

void count_rows(const IndexedDataset& dataset, const Packing& packing, int64_t seq_len, int64_t most_rows, PackedSource& out) {
  out.rows = packing.rows();
  const int64_t runs = (out.rows + kNeighbours - 1) / kNeighbours;
  const int64_t read = std::min(runs, std::max<int64_t>(1, most_rows / kNeighbours));
  for (int64_t i = 0; i < read; ++i) {
    const auto begin = static_cast<int64_t>(static_cast<__int128>(i) * runs / read) * kNeighbours;
    for (int64_t row = begin; row < std::min(begin + kNeighbours, out.rows); ++row) count_row(dataset, packing, row, seq_len, out);
  }
}

}  // namespace

double PackedSource::left_out_tokens() const {
  if (read_rows == 0) return static_cast<double>(tokens);
  const double in_rows = static_cast<double>(row_tokens) / static_cast<double>(read_rows) * static_cast<double>(rows);
  return std::max(0.0, static_cast<double>(tokens) - in_rows);
}

PackedPhase packed_phase(const Loader& loader, const DataConfig& config, const std::string& name, int64_t samples, int64_t most_rows) {
  PackedPhase phase{.name = name, .packing = config.packing, .seq_len = config.seq_len, .samples = samples, .sources = {}};
  const auto state = loader.state(0, samples);
  for (size_t s = 0; s < loader.sources(); ++s) {
    auto& source = phase.sources.emplace_back();
    const Slice slice = loader.slice(s);
    source.path = config.sources[s].path;
    source.weight = config.sources[s].weight;
    source.tokens = slice.end - slice.begin;
    source.samples = state.sources[s].samples;
    count_documents(loader.dataset(s), slice, config.seq_len, source);
    count_rows(loader.dataset(s), loader.packing(s), config.seq_len, most_rows, source);
    if (config.rows == "variable") source.padding = 0;
  }
  return phase;
}

}  // namespace ingot::data
