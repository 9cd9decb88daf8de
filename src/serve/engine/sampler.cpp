#include "serve/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace ingot::serve {
namespace {

// Ids from likely to unlikely, of equal ones the smaller first, sorted as far as they are asked for: mostly a handful of a large
// vocabulary.
class Ranking {
 public:
  explicit Ranking(std::span<const float> logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), int64_t{0});
  }

  size_t size() const { return ids_.size(); }
  int64_t id(size_t place) {
    while (place >= sorted_) sort_more();
    return ids_[place];
  }
  double logit(size_t place) { return logits_[static_cast<size_t>(id(place))]; }

 private:
  void sort_more() {
    const size_t next = std::min(ids_.size(), std::max<size_t>(64, 8 * sorted_));
    const auto at = [&](size_t place) { return ids_.begin() + static_cast<std::ptrdiff_t>(place); };
    const auto is_before = [&](int64_t a, int64_t b) {
      const float of_a = logits_[static_cast<size_t>(a)], of_b = logits_[static_cast<size_t>(b)];
      return of_a != of_b ? of_a > of_b : a < b;
    };
    if (next < ids_.size()) std::nth_element(at(sorted_), at(next), ids_.end(), is_before);
    std::sort(at(sorted_), at(next), is_before);
    sorted_ = next;
  }

  std::span<const float> logits_;
  std::vector<int64_t> ids_;
  size_t sorted_ = 0;
};

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

void require_numbers(std::span<const float> logits) {
  if (std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); }))
    throw base::Error("the model's logits are not numbers: its weights are damaged, or its training diverged");
}

}  // namespace

double uniform_of(uint64_t seed, int64_t position, int64_t row) {
  return base::uniform_at(base::stream_key(seed, "sample"), static_cast<uint64_t>(position * 65536 + row));
}

int64_t draw(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  require_numbers(logits);
  if (options.temperature <= 0) return std::max_element(logits.begin(), logits.end()) - logits.begin();
  Ranking ranking(logits);
  const double largest = ranking.logit(0);
  const auto weight_of = [&](double logit) { return std::exp((logit - largest) / options.temperature); };
  size_t kept = ranking.size();
  double mass = 0;
  if (options.top_k > 0) {
    kept = std::min(kept, static_cast<size_t>(options.top_k));
    for (size_t place = 0; place < kept; ++place) mass += weight_of(ranking.logit(place));
  } else {
    for (const float logit : logits) mass += weight_of(logit);
  }
  if (options.top_p < 1) {  // the smallest set whose mass reaches top_p
    const double wanted = options.top_p * mass;
    size_t place = 0;
    mass = weight_of(ranking.logit(0));
    while (mass < wanted && place + 1 < kept) mass += weight_of(ranking.logit(++place));
    kept = place + 1;
  }
  if (options.min_p > 0) {  // weights are those of the likeliest, whose own is 1
    size_t place = 0;
    double left = 0;
    for (; place < kept; ++place) {
      const double weight = weight_of(ranking.logit(place));
      if (weight < options.min_p) break;
      left += weight;
    }
    if (place < kept) kept = place, mass = left;
  }
  double at = uniform * mass;
  size_t chosen = 0;
  for (; chosen + 1 < kept; ++chosen) {
    const double weight = weight_of(ranking.logit(chosen));
    if (at < weight) break;
    at -= weight;
  }
  return ranking.id(chosen);
}

Choice scored(std::span<const float> logits, int64_t id, int64_t count) {
  require_numbers(logits);
  const double all = log_sum_exp(logits);
  const auto logprob = [&](int64_t token) { return logits[static_cast<size_t>(token)] - all; };
  Choice choice{.id = id, .logprob = logprob(id)};
  if (count == 0) return choice;
  Ranking ranking(logits);
  for (size_t place = 0; place < std::min(static_cast<size_t>(count), ranking.size()); ++place)
    choice.likeliest.push_back({ranking.id(place), logprob(ranking.id(place))});
  return choice;
}

Sampler::Sampler(SamplingOptions options, std::span<const int64_t> prompt) : options_(std::move(options)) {
  if (options_.repetition_penalty == 1) return;
  for (const int64_t id : prompt) ++seen_[id];
}

bool Sampler::changes_logits() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0 ||
         !options_.logit_bias.empty();
}

int64_t Sampler::choose(std::span<const float> logits, int64_t position) {
  if (changes_logits()) {
    changed_.assign(logits.begin(), logits.end());
    const auto size = static_cast<int64_t>(changed_.size());
    const auto at = [&](int64_t id) -> float& { return changed_[static_cast<size_t>(id)]; };
    if (options_.repetition_penalty != 1)
      for (const auto& [id, times] : seen_) {
        const auto penalty = static_cast<float>(options_.repetition_penalty);
        at(id) = at(id) > 0 ? at(id) / penalty : at(id) * penalty;
      }
    for (const auto& [id, times] : count_)
      at(id) -= static_cast<float>(options_.presence_penalty + options_.frequency_penalty * static_cast<double>(times));
    for (const auto& [id, bias] : options_.logit_bias)
      if (id >= 0 && id < size) at(id) += static_cast<float>(bias);
    logits = changed_;
  }
  const int64_t id = draw(logits, options_, options_.temperature > 0 ? uniform_of(options_.seed, position) : 0);
  if (changes_logits()) ++seen_[id], ++count_[id];
  return id;
}

}  // namespace ingot::serve
