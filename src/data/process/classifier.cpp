#include "data/process/classifier.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "data/process/steps.h"
#include "data/process/text_parts.h"

namespace ingot::data::process {
namespace {

constexpr int kBits = 20;
constexpr uint32_t kFeatures = uint32_t{1} << kBits;
constexpr char kMagic[8] = {'I', 'N', 'G', 'O', 'T', 'L', 'C', '1'};

struct Feature {
  uint32_t index;
  float value;
};

// Words and pairs of them, each log(1 + times), together of length 1.
std::vector<Feature> features_of(std::string_view text) {
  const auto words = word_hashes(text);
  std::vector<uint32_t> all;
  for (size_t i = 0; i < words.size(); ++i) {
    all.push_back(static_cast<uint32_t>(words[i] >> (64 - kBits)));
    if (i + 1 < words.size()) all.push_back(static_cast<uint32_t>(run_hash(words, i, 2) >> (64 - kBits)));
  }
  std::sort(all.begin(), all.end());
  std::vector<Feature> features;
  double squares = 0;
  for (size_t from = 0; from < all.size();) {
    size_t to = from;
    while (to < all.size() && all[to] == all[from]) ++to;
    const double value = std::log1p(static_cast<double>(to - from));
    features.push_back({all[from], static_cast<float>(value)});
    squares += value * value;
    from = to;
  }
  const auto scale = static_cast<float>(1 / std::sqrt(std::max(squares, 1e-30)));
  for (auto& feature : features) feature.value *= scale;
  return features;
}

double logit_of(const std::vector<float>& weights, const std::vector<Feature>& features) {
  double sum = weights.back();
  for (const auto& feature : features) sum += static_cast<double>(weights[feature.index]) * static_cast<double>(feature.value);
  return sum;
}

double probability(double logit) { return 1 / (1 + std::exp(-logit)); }

// Of pairs of one of each heap those in the right order; equal scores count half.
double auc_of(std::vector<std::pair<double, bool>> scores) {
  std::sort(scores.begin(), scores.end());
  double right = 0, negatives = 0, positives = 0;
  for (size_t from = 0; from < scores.size();) {
    double plus = 0, minus = 0;
    size_t to = from;
    for (; to < scores.size() && scores[to].first == scores[from].first; ++to) (scores[to].second ? plus : minus) += 1;
    right += plus * (negatives + minus / 2);
    positives += plus, negatives += minus;
    from = to;
  }
  return positives * negatives > 0 ? right / (positives * negatives) : std::nan("");
}

}  // namespace

class ClassifierTraining {
 public:
  ClassifierTraining() {
    classifier_.weights_.resize(kFeatures + 1);
    squares_.resize(kFeatures + 1, 1e-6F);
  }
  // One step of AdaGrad (Duchi, Hazan and Singer 2011).
  void learn(const std::vector<Feature>& features, double target, double weight, double rate) {
    const double slope = weight * (probability(logit_of(classifier_.weights_, features)) - target);
    const auto move = [&](size_t index, double value) {
      const double gradient = slope * value;
      squares_[index] += static_cast<float>(gradient * gradient);
      classifier_.weights_[index] -= static_cast<float>(rate * gradient / std::sqrt(static_cast<double>(squares_[index])));
    };
    for (const auto& feature : features) move(feature.index, static_cast<double>(feature.value));
    move(kFeatures, 1);
  }
  Classifier take() { return std::move(classifier_); }
  const Classifier& now() const { return classifier_; }

 private:
  Classifier classifier_;
  std::vector<float> squares_;
};

double Classifier::score(std::string_view text) const { return probability(logit_of(weights_, features_of(text))); }

void Classifier::save(const base::fs::path& path) const {
  std::string content(kMagic, sizeof kMagic);
  content.append(reinterpret_cast<const char*>(weights_.data()), weights_.size() * sizeof(float));
  const uint64_t digest = XXH3_64bits(content.data(), content.size());
  content.append(reinterpret_cast<const char*>(&digest), sizeof digest);
  base::write_file_atomically(path, content);
}

Classifier Classifier::load(const base::fs::path& path) {
  constexpr size_t kBytes = sizeof kMagic + (kFeatures + 1) * sizeof(float);
  const auto content = base::read_file(path, static_cast<int64_t>(kBytes + sizeof(uint64_t)));
  if (content.size() < sizeof kMagic || std::memcmp(content.data(), kMagic, sizeof kMagic) != 0)
    throw base::DataError("{} is no classifier: make one with 'ingot data train-classifier'", path.string());
  uint64_t digest = 0;
  if (content.size() != kBytes + sizeof digest) throw base::DataError("{} is damaged: it has {} bytes", path.string(), content.size());
  std::memcpy(&digest, content.data() + kBytes, sizeof digest);
  if (digest != XXH3_64bits(content.data(), kBytes)) throw base::DataError("{} is damaged: its digest does not fit", path.string());
  Classifier classifier;
  classifier.weights_.resize(kFeatures + 1);
  std::memcpy(classifier.weights_.data(), content.data() + sizeof kMagic, (kFeatures + 1) * sizeof(float));
  return classifier;
}

Classifier train_classifier(const std::vector<std::string>& positive, const std::vector<std::string>& negative,
                            const ClassifierOptions& options, ClassifierResult& result) {
  if (positive.empty() || negative.empty())
    throw base::DataError("there is no document of the {} kind", positive.empty() ? "first" : "second");
  result = {};
  struct Example {
    const std::string* text;
    bool is_positive;
  };
  std::vector<Example> examples, held_out;
  const auto limit = static_cast<uint32_t>(options.held_out * 4294967295.0);
  for (const bool is_positive : {true, false}) {
    uint64_t number = 0;
    for (const auto& text : is_positive ? positive : negative) {
      const bool is_held_out = base::philox(options.seed, 2 * number++ + is_positive)[0] < limit;
      (is_held_out ? held_out : examples).push_back({&text, is_positive});
      if (!is_held_out) ++(is_positive ? result.positive : result.negative);
    }
  }
  if (result.positive == 0 || result.negative == 0) throw base::DataError("there are too few documents to hold some of them out");
  // Both kinds count as much, however many there are.
  const double half = 0.5 * static_cast<double>(examples.size());
  const double weights[] = {half / static_cast<double>(result.negative), half / static_cast<double>(result.positive)};
  ClassifierTraining training;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (size_t i = examples.size() - 1; i > 0; --i)
      std::swap(examples[i], examples[base::philox(options.seed + 1 + static_cast<uint64_t>(epoch), i)[0] % (i + 1)]);
    const double rate = options.rate * (1 - static_cast<double>(epoch) / static_cast<double>(options.epochs));
    for (const auto& example : examples)
      training.learn(features_of(*example.text), example.is_positive ? 1 : 0, weights[example.is_positive], rate);
  }
  std::vector<std::pair<double, bool>> scores;
  int64_t right = 0;
  for (const auto& example : held_out) {
    scores.emplace_back(training.now().score(*example.text), example.is_positive);
    right += (scores.back().first >= 0.5) == example.is_positive;
  }
  result.held_out = static_cast<int64_t>(held_out.size());
  result.accuracy = held_out.empty() ? std::nan("") : static_cast<double>(right) / static_cast<double>(held_out.size());
  result.auc = auc_of(std::move(scores));
  return training.take();
}

namespace {

class ByScore : public Filter {
 public:
  explicit ByScore(const StepConfig& config) : threshold_(config.threshold) {
    if (config.model.empty()) throw base::ConfigError("{}: model is empty: name a file of 'ingot data train-classifier'", config.name);
    classifier_ = Classifier::load(config.model);
  }
  bool apply(Document& document, Tally& tally) const override {
    const double score = classifier_.score(document.text);
    if (score >= threshold_) return true;
    tally.remove(document, fmt::format("score below {:g}", threshold_), fmt::format("{:.3f}", score));
    return false;
  }

 private:
  double threshold_;
  Classifier classifier_;
};

}  // namespace

std::unique_ptr<Filter> make_classifier(const StepConfig& config) { return std::make_unique<ByScore>(config); }

}  // namespace ingot::data::process
