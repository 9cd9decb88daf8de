#include "train/spike_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace ingot::train {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string SpikeWatch::spike_in(const char* what, const std::deque<double>& before, double value) const {
  std::vector<double> values(before.begin(), before.end());
  const double usual = median(values);
  for (auto& v : values) v = std::abs(v - usual);
  // Steps that are all alike have no deviation: then a millionth counts as one.
  const double sigma = std::max(1.4826 * median(values), 1e-6 * std::abs(usual));
  if (value <= usual + sigmas_ * sigma) return "";
  return fmt::format("{} {:.4g}, the {} steps before have {:.4g} ± {:.2g}", what, value, before.size(), usual, sigma);
}

std::string SpikeWatch::take(double loss, double grad_norm) {
  std::string spike;
  if (static_cast<int64_t>(losses_.size()) >= std::min(kFewest, window_)) {
    spike = spike_in("loss", losses_, loss);
    if (spike.empty()) spike = spike_in("gradient norm", norms_, grad_norm);
  }
  in_a_row_ = spike.empty() ? 0 : in_a_row_ + 1;
  if (in_a_row_ > limit_) {
    losses_.clear(), norms_.clear();
    in_a_row_ = 0;
    spike.clear();
  }
  if (!spike.empty()) return spike;
  for (const auto& [list, value] : {std::pair{&losses_, loss}, {&norms_, grad_norm}}) {
    list->push_back(value);
    if (static_cast<int64_t>(list->size()) > window_) list->pop_front();
  }
  return "";
}

std::string SpikeWatch::to_json() const { return nlohmann::json{{"losses", losses_}, {"norms", norms_}, {"in_a_row", in_a_row_}}.dump(); }

void SpikeWatch::restore(const std::string& json, const std::string& origin) {
  if (json.empty()) return;
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  try {
    auto losses = parsed.at("losses").get<std::deque<double>>(), norms = parsed.at("norms").get<std::deque<double>>();
    const auto in_a_row = parsed.at("in_a_row").get<int64_t>();
    if (losses.size() != norms.size() || in_a_row < 0)
      throw base::CheckpointError("{}: the record 'spikes' has losses without norms", origin);
    while (static_cast<int64_t>(losses.size()) > window_) losses.pop_front(), norms.pop_front();
    losses_ = std::move(losses), norms_ = std::move(norms), in_a_row_ = in_a_row;
  } catch (const nlohmann::json::exception&) {
    throw base::CheckpointError("{}: the record 'spikes' is not that of a training run", origin);
  }
}

}  // namespace ingot::train
