#include "data/curriculum.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"

namespace ingot::data {
namespace {

using base::DataError;

constexpr double kHardest = std::numeric_limits<double>::infinity();  // of rows without tokens

// floor(count * part / whole), part <= whole.
int64_t part_of(int64_t count, int64_t part, int64_t whole) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>(static_cast<Wide>(count) * static_cast<Wide>(part) / static_cast<Wide>(whole));
}

// IEEE operations alone, so that all machines have the same.
int64_t pool_of(const Curriculum::Options& options, int64_t rows, int64_t stretch) {
  const double time = static_cast<double>(stretch) / static_cast<double>(Curriculum::kStretches);
  const double share = options.start + (1 - options.start) * (options.by_root ? std::sqrt(time) : time);
  return std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(rows)), 1, rows);
}

uint64_t key_of(const Curriculum::Options& options, const char* what, size_t number) {
  return base::stream_key(options.seed, fmt::format("source {} curriculum {} {}", options.source, what, number));
}

std::vector<float> read_scores(const std::string& path, int64_t documents) {
  std::error_code none;
  std::ifstream file(path);
  if (!file || !fs::is_regular_file(path, none)) throw DataError("curriculum_scores: {} cannot be read", path);
  std::vector<float> scores;
  scores.reserve(static_cast<size_t>(documents));
  std::array<char, 64> line{};
  while (file.getline(line.data(), line.size())) {
    std::string_view text(line.data(), static_cast<size_t>(file.gcount() - (file.eof() ? 0 : 1)));
    while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
    const auto score = base::parse_number(text);
    if (!score || !(std::abs(*score) <= double{std::numeric_limits<float>::max()}))
      throw DataError("{}:{}: \"{}\" is not a finite number of 32 bits", path, scores.size() + 1, text);
    scores.push_back(static_cast<float>(*score));
    if (static_cast<int64_t>(scores.size()) > documents)
      throw DataError("{}:{}: the source has {} documents, and a line for each", path, scores.size(), documents);
  }
  if (!file.eof()) throw DataError("{}:{}: the line is too long for a number", path, scores.size() + 1);
  if (static_cast<int64_t>(scores.size()) < documents)
    throw DataError("{}:{}: the source has {} documents, and the file ends here", path, scores.size() + 1, documents);
  return scores;
}

// By token: its document's length in the row, or score.
struct Sum {
  double total = 0;
  int64_t tokens = 0;
};

void add(const IndexedDataset& dataset, const Slice& piece, const std::vector<float>& scores, Sum& sum) {
  const int64_t length = piece.end - piece.begin;
  const double each = scores.empty() ? static_cast<double>(length) : double{scores[static_cast<size_t>(dataset.document_at(piece.begin))]};
  sum.total += each * static_cast<double>(length);
  sum.tokens += length;
}

}  // namespace

Curriculum::Curriculum(int64_t rows, int64_t unit_rows, const std::vector<double>& difficulty, const Options& options)
    : rows_(rows), unit_rows_(unit_rows), units_(difficulty.size()) {
  // Shuffled first, lest of units that are alike those at the beginning of the file come first.
  const uint64_t key = key_of(options, "ties", 0);
  const auto full = static_cast<uint64_t>(rows / unit_rows);
  for (uint64_t i = 0; i < full; ++i) units_[i] = static_cast<uint32_t>(base::permute(key, i, full));
  if (full < units_.size()) units_.back() = static_cast<uint32_t>(full);
  std::stable_sort(units_.begin(), units_.begin() + static_cast<std::ptrdiff_t>(full),
                   [&](uint32_t a, uint32_t b) { return difficulty[a] < difficulty[b]; });

  const int64_t samples = options.samples > 0 ? std::min(options.samples, rows) : rows;
  for (int64_t s = 0; s <= kStretches; ++s) begins_.push_back(part_of(samples, s, kStretches));
  if (samples < rows) begins_.push_back(rows);
  const size_t stretches = begins_.size() - 1;
  for (size_t s = 0; s < stretches; ++s)
    pools_.push_back(s < kStretches ? std::max(pool_of(options, rows, static_cast<int64_t>(s)), begins_[s + 1]) : rows);
  pools_[stretches - 1] = rows;  // what is left
  std::vector<int64_t> taken(stretches, 0);
  for (size_t s = 0; s < stretches; ++s) {
    before_.push_back(taken);
    keys_.push_back(key_of(options, "stretch", s));
    pool_keys_.push_back(key_of(options, "pool", s));
    const int64_t count = begins_[s + 1] - begins_[s], left = pools_[s] - begins_[s];
    int64_t behind = 0, given = 0;  // of what is left in the pools so far
    for (size_t pool = 0; pool <= s; ++pool) {
      behind += pools_[pool] - (pool > 0 ? pools_[pool - 1] : 0) - taken[pool];
      const int64_t up_to_here = left > 0 ? part_of(count, behind, left) : 0;
      taken[pool] += up_to_here - given;
      given = up_to_here;
    }
  }
  before_.push_back(taken);

  uint64_t hash = 0;
  const auto mix = [&](uint64_t number) { hash = (hash ^ number) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29; };
  for (const uint32_t unit : units_) mix(unit);
  for (const int64_t pool : pools_) mix(static_cast<uint64_t>(pool));
  description_ =
      fmt::format("start {} {} until sample {}, order {:016x}", options.start, options.by_root ? "root" : "linear", samples, hash);
}

size_t Curriculum::stretch_of(int64_t sample) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), sample) - begins_.begin() - 1);
}

int64_t Curriculum::pool_at(int64_t sample) const { return pools_[stretch_of(sample)]; }

int64_t Curriculum::row_of_rank(int64_t rank) const {
  return static_cast<int64_t>(units_[static_cast<size_t>(rank / unit_rows_)]) * unit_rows_ + rank % unit_rows_;
}

int64_t Curriculum::row_of(int64_t sample) const {
  const size_t stretch = stretch_of(sample);
  const auto &before = before_[stretch], &behind = before_[stretch + 1];
  const int64_t begin = begins_[stretch], count = begins_[stretch + 1] - begin;
  auto place = static_cast<int64_t>(base::permute(keys_[stretch], static_cast<uint64_t>(sample - begin), static_cast<uint64_t>(count)));
  size_t pool = 0;
  for (; place >= behind[pool] - before[pool]; ++pool) place -= behind[pool] - before[pool];
  const int64_t first = pool > 0 ? pools_[pool - 1] : 0, size = pools_[pool] - first;
  return row_of_rank(first + static_cast<int64_t>(base::permute(pool_keys_[pool], static_cast<uint64_t>(before[pool] + place),
                                                                static_cast<uint64_t>(size))));
}

std::shared_ptr<const Curriculum> make_curriculum(const DataSource& source, const IndexedDataset& dataset, const Packing& packing,
                                                  uint64_t seed, int64_t number) {
  if (source.curriculum == "none") return nullptr;
  const auto scores = source.curriculum == "score" ? read_scores(source.curriculum_scores, dataset.documents()) : std::vector<float>();
  const int64_t rows = packing.rows(), unit_rows = (rows + Curriculum::kMostUnits - 1) / Curriculum::kMostUnits;
  constexpr int64_t kReleasedPieces = int64_t{1} << 20;
  int64_t tokens = 0, pieces = 0;  // of all rows
  std::vector<double> difficulty;
  difficulty.reserve(static_cast<size_t>((rows + unit_rows - 1) / unit_rows));
  for (int64_t unit = 0; unit < rows; unit += unit_rows) {
    Sum sum;
    for (int64_t row = unit; row < std::min(unit + unit_rows, rows); ++row)
      for (const Slice& piece : packing.pieces(row)) {
        add(dataset, piece, scores, sum);
        if (++pieces % kReleasedPieces == 0) dataset.release_pages();
      }
    tokens += sum.tokens;
    difficulty.push_back(sum.tokens > 0 ? sum.total / static_cast<double>(sum.tokens) : kHardest);
  }
  dataset.release_pages();
  // As many rows as have the curriculum's tokens, in the mean, rounded up: rows are not full in every packing.
  const int64_t behind = std::max<int64_t>(0, tokens - source.curriculum_tokens);
  const int64_t samples = rows - (tokens > 0 ? part_of(rows, behind, tokens) : 0);
  return std::make_shared<Curriculum>(rows, unit_rows, difficulty,
                                      Curriculum::Options{.seed = seed,
                                                          .source = number,
                                                          .start = source.curriculum_start,
                                                          .samples = samples,
                                                          .by_root = source.curriculum_pace == "root"});
}

}  // namespace ingot::data
