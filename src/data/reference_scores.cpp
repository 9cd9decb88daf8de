#include "data/reference_scores.h"

#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ingot::data {
namespace {

constexpr std::string_view kMagic = "INGOTREF";

fs::path file_of(const IndexedDataset& dataset) { return dataset.prefix().string() + ".reference"; }

}  // namespace

std::vector<double> read_reference_scores(const IndexedDataset& dataset) {
  const auto path = file_of(dataset);
  std::error_code none;
  if (!fs::exists(path, none))
    throw base::DataError(
        "there is no {}, which says what the reference makes of the answers: 'ingot data score {} --model MODEL' writes it", path.string(),
        dataset.prefix().string());
  const auto documents = static_cast<size_t>(dataset.documents());
  const auto size = static_cast<int64_t>(kMagic.size() + documents * sizeof(double));
  const auto bytes = static_cast<int64_t>(fs::file_size(path, none)) == size ? base::read_file(path, size) : std::string();
  if (!bytes.starts_with(kMagic))
    throw base::DataError("{} does not hold a number for each of the {} documents: make it again with 'ingot data score'", path.string(),
                          documents);
  std::vector<double> scores(documents);
  std::memcpy(scores.data(), bytes.data() + kMagic.size(), documents * sizeof(double));
  for (size_t i = 0; i < documents; ++i)
    if (!std::isfinite(scores[i]) || scores[i] > 0)
      throw base::DataError("{}: the log-probability of document {} is {}: make it again with 'ingot data score'", path.string(), i,
                            scores[i]);
  return scores;
}

void write_reference_scores(const IndexedDataset& dataset, std::span<const double> scores) {
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(scores.data()), scores.size_bytes());
  base::write_file_atomically(file_of(dataset), bytes);
}

}  // namespace ingot::data
