// What rows of best_fit cost, hold and lose: rows asked for in a random order, as training does, of documents of log-normal lengths.
//   packing_bench FOLDER [millions of documents [median length]]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "base/random.h"
#include "data/packing.h"

namespace {

using namespace ingot;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

void write(const base::fs::path& prefix, uint64_t documents, double median) {
  const std::vector<int32_t> tokens(100'000, 1);
  data::IndexedDatasetWriter writer(prefix, data::TokenType::uint8);
  for (uint64_t i = 0; i < documents; ++i) {
    const double u = base::uniform_at(11, 2 * i), v = base::uniform_at(11, 2 * i + 1);
    const double length = median * std::exp(1.17 * std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * M_PI * v));
    writer.add_document(std::span(tokens).first(static_cast<size_t>(std::clamp(length, 2.0, 1e5))));
  }
  writer.finish();
}

// Rows without end, all documents at once: no document that fits is cut.
double padding_of_the_whole(const data::IndexedDataset& dataset, int64_t seq_len) {
  std::map<int64_t, int64_t, std::greater<>> pieces;  // how many of each length
  for (int64_t document = 0; document < dataset.documents(); ++document)
    for (int64_t length = dataset.document_tokens(document); length > 0; length -= std::min(length, seq_len))
      ++pieces[std::min(length, seq_len)];
  std::map<int64_t, int64_t> room;  // how many rows of each
  int64_t rows = 0;
  for (const auto& [length, count] : pieces)
    for (int64_t i = 0; i < count; ++i) {
      auto best = room.lower_bound(length);
      if (best == room.end()) best = room.try_emplace(seq_len).first, ++best->second, ++rows;
      const int64_t left = best->first - length;
      if (--best->second == 0) room.erase(best);
      if (left > 0) ++room[left];
    }
  return 1 - static_cast<double>(dataset.tokens()) / static_cast<double>(rows * seq_len);
}

void lose(const data::IndexedDataset& dataset, const data::Packing& packing, int64_t seq_len) {
  std::vector<uint8_t> parts(static_cast<size_t>(dataset.documents()), 0);
  int64_t placed = 0, fit = 0, cut = 0;
  for (int64_t row = 0; row < packing.rows(); ++row)
    for (const auto& piece : packing.pieces(row)) {
      placed += piece.end - piece.begin;
      auto& count = parts[static_cast<size_t>(dataset.document_at(piece.begin))];
      count = static_cast<uint8_t>(std::min(count + 1, 2));
    }
  for (int64_t document = 0; document < dataset.documents(); ++document)
    if (dataset.document_tokens(document) <= seq_len) ++fit, cut += parts[static_cast<size_t>(document)] > 1;
  std::printf(" | %.3f | %.3f | %.3f |\n", 100 - 100 * static_cast<double>(placed) / static_cast<double>(packing.rows() * seq_len),
              100 * padding_of_the_whole(dataset, seq_len), 100 * static_cast<double>(cut) / static_cast<double>(fit));
}

void measure(const data::IndexedDataset& dataset, int64_t seq_len) {
  constexpr uint64_t kRows = 1000;
  const auto start = Clock::now();
  const auto packing = data::make_packing("best_fit", dataset, {0, dataset.tokens()}, {.seq_len = seq_len});
  const double open_ms = ms_since(start);
  std::vector<double> ms;
  const auto used = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const auto before = used();
  size_t most = 0;
  for (uint64_t i = 0; i < kRows; ++i) {
    const auto row = static_cast<int64_t>(base::uniform_at(5, i) * static_cast<double>(packing->rows()));
    const auto asked = Clock::now();
    static_cast<void>(packing->pieces(row));
    ms.push_back(ms_since(asked));
    most = std::max(most, used() - before);
  }
  std::sort(ms.begin(), ms.end());
  std::printf("| %ld | %ld | %.3f | %.3f | %.3f | %.2f | %.1f", static_cast<long>(seq_len), static_cast<long>(packing->rows()), open_ms,
              ms[kRows / 2], ms[kRows * 9 / 10], ms.back(), static_cast<double>(most) / (1 << 20));
  lose(dataset, *packing, seq_len);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::puts("packing_bench FOLDER [millions of documents [median length]]"), 2;
  const auto documents = static_cast<uint64_t>(1e6 * (argc > 2 ? std::atof(argv[2]) : 1));
  const double median = argc > 3 ? std::atof(argv[3]) : 512;
  const auto prefix = base::fs::path(argv[1]) / "packing_bench";
  write(prefix, documents, median);
  const data::IndexedDataset dataset(prefix);
  std::printf("%lu documents, %ld tokens\n\n", static_cast<unsigned long>(documents), static_cast<long>(dataset.tokens()));
  std::puts("| seq_len | rows | open ms | row ms, median | 90 % | most | MiB held | % padding | of the whole data set | % cut |");
  std::puts("|---|---|---|---|---|---|---|---|---|---|");
  for (const int64_t seq_len : {512, 2048, 4096, 32768, 131072}) measure(dataset, seq_len);
  for (const char* suffix : {".bin", ".idx"}) base::fs::remove(prefix.string() + suffix);
}
