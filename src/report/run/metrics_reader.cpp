#include "report/run/metrics_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "report/run/lines.h"

namespace ingot::report {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMaxLineBytes = size_t{1} << 22;
constexpr size_t kLongestSource = 4096;
constexpr size_t kMaxLayers = 1024, kMaxExperts = 1024;
// Larger values are no measurements, and their differences would overflow in a plot.
constexpr double kMaxValue = 1e100;

constexpr std::array<std::string_view, static_cast<size_t>(Field::count)> kNames = {"steps",
                                                                                    "tokens",
                                                                                    "loss",
                                                                                    "grad_norm",
                                                                                    "lr",
                                                                                    "step_ms",
                                                                                    "tokens_per_s",
                                                                                    "flops_per_token",
                                                                                    "tflops",
                                                                                    "mfu",
                                                                                    "memory_peak_bytes",
                                                                                    "predicted_step_ms",
                                                                                    "predicted_memory_bytes",
                                                                                    "calibrated_step_ms",
                                                                                    "calibrated_memory_bytes",
                                                                                    "time_s",
                                                                                    "validation_loss",
                                                                                    "expert_imbalance"};

struct Line {
  double step = kNone;
  std::array<double, kNames.size()> values;
  bool resumed = false, skipped = false, nonfinite = false;
  double load_max = kNone, load_mean = kNone;
  std::vector<double> layers;
  std::vector<std::vector<double>> tokens;
  struct Evaluated {
    std::string task, metric;
    double value = kNone, error = kNone;
  };
  std::vector<Evaluated> evaluations;
  struct OfSource {
    std::string source;
    double loss = kNone, tokens = kNone;
  };
  std::vector<OfSource> sources;

  void clear() {
    step = load_max = load_mean = kNone;
    values.fill(kNone);
    resumed = skipped = nonfinite = false;
    layers.clear();
    tokens.clear();
    evaluations.clear();
    sources.clear();
  }
};

// Receives one line's JSON as events, so that no tree is built: a million lines take seconds. `place_` says what the values
// at the present depth mean; everything unknown is passed over.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit LineHandler(Line& line) : line_(line) {}

  bool null() override {
    take_evaluated(kNone);
    return true;
  }
  bool boolean(bool value) override {
    if (depth_ == 1 && key_ == "resumed") line_.resumed = value;
    if (depth_ == 1 && key_ == "skipped") line_.skipped = value;
    return depth_ > 0;
  }
  bool number_integer(int64_t value) override { return take(static_cast<double>(value)); }
  bool number_unsigned(uint64_t value) override { return take(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return take(value); }
  bool string(std::string&) override { return depth_ > 0; }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (depth_ == 1 && key_ == "nonfinite") line_.nonfinite = true;
    in_load_ = depth_ == 1 ? key_ == "expert_load" : in_load_ && depth_ > 1;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return false;
    if (depth_ == 1) load_key_ = key_ == "expert_load" ? "tokens" : "";
    if (depth_ >= 1) ++array_depth_;
    ++depth_;
    if (array_depth_ == 2 && load_key_ == "tokens" && line_.tokens.size() < kMaxLayers) line_.tokens.emplace_back();
    return true;
  }
  bool end_array() override {
    --depth_;
    if (--array_depth_ == 0 && depth_ == 1) load_key_.clear();
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) key_ = name;
    if (depth_ == 2) load_key_ = in_load_ ? name : "";
    if (depth_ == 2) task_ = key_ == "evaluations" || key_ == "source_loss" ? name : "";
    if (depth_ == 3) metric_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool take(double value) {
    if (depth_ == 0) return false;
    if (!(std::abs(value) <= kMaxValue)) return true;
    take_evaluated(value);
    take_of_source(value);
    if (depth_ == 1) take_field(value);
    else if (array_depth_ == 0 && depth_ == 2 && load_key_ == "max") line_.load_max = value;
    else if (array_depth_ == 0 && depth_ == 2 && load_key_ == "mean") line_.load_mean = value;
    else if (array_depth_ == 1 && load_key_ == "layers" && line_.layers.size() < kMaxLayers) line_.layers.push_back(value);
    else if (array_depth_ == 2 && load_key_ == "tokens" && !line_.tokens.empty() && line_.tokens.back().size() < kMaxExperts)
      line_.tokens.back().push_back(value);
    return true;
  }
  // Behind the number of its items a task has its metrics, the first of which stands for it.
  void take_evaluated(double value) {
    if (depth_ != 3 || array_depth_ != 0 || key_ != "evaluations" || metric_ == "items") return;
    auto& all = line_.evaluations;
    if (all.empty() || all.back().task != task_) {
      if (all.size() < kMaxEvaluations) all.push_back({task_, metric_, value});
    } else if (metric_ == all.back().metric + "_stderr") {
      all.back().error = value;
    }
  }
  void take_of_source(double value) {
    if (depth_ != 3 || array_depth_ != 0 || key_ != "source_loss") return;
    auto& all = line_.sources;
    if (all.empty() || all.back().source != task_) {
      if (all.size() >= kMaxSources) return;
      all.push_back({task_});
    }
    if (metric_ == "loss") all.back().loss = value;
    if (metric_ == "tokens") all.back().tokens = value;
  }
  void take_field(double value) {
    if (key_ == "step") line_.step = value;
    const auto found = std::find(kNames.begin(), kNames.end(), key_);
    if (found != kNames.end()) line_.values[static_cast<size_t>(found - kNames.begin())] = value;
    if (key_ == "expert_load") line_.values[static_cast<size_t>(Field::expert_imbalance)] = value;
  }

  Line& line_;
  std::string key_, load_key_, task_, metric_;
  int64_t depth_ = 0, array_depth_ = 0;
  bool in_load_ = false;
};

// Fills in what follows from the tokens per expert when a line gives only those.
void complete_load(Line& line) {
  if (line.layers.empty()) {
    double total = 0, experts = 0, busiest = 0;
    for (const auto& layer : line.tokens) {
      double sum = 0, max = 0;
      for (const double tokens : layer) {
        sum += tokens;
        max = std::max(max, tokens);
      }
      line.layers.push_back(sum > 0 ? max * static_cast<double>(layer.size()) / sum : 1);
      total += sum;
      experts += static_cast<double>(layer.size());
      busiest = std::max(busiest, max);
    }
    if (total > 0 && std::isnan(line.load_mean)) {
      line.load_max = busiest;
      line.load_mean = total / experts;
    }
  }
  if (line.load_mean > 0) line.values[static_cast<size_t>(Field::expert_imbalance)] = line.load_max / line.load_mean;
}

class Reader {
 public:
  void set_last_tenth(bool is) { in_last_tenth_ = is; }
  Metrics& metrics() { return metrics_; }

  void take_overlong() {
    ++metrics_.lines.total;
    ++metrics_.lines.unreadable;
  }

  void take(std::string_view text) {
    ++metrics_.lines.total;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) {
      ++metrics_.lines.empty;
      return;
    }
    line_.clear();
    LineHandler handler(line_);
    const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
    if (!parsed || !(line_.step >= 0 && line_.step <= 0x1p53 && line_.step == std::floor(line_.step))) {
      ++metrics_.lines.unreadable;
      return;
    }
    complete_load(line_);
    add_restart();
    append();
  }

 private:
  // Notes a restart before this line, and takes back the rows that it does again.
  void add_restart() {
    auto& step = metrics_.step;
    if (step.empty()) return;
    const double last = step.back();
    while (!step.empty() && step.back() >= line_.step) {
      step.pop_back();
      for (auto& column : metrics_.columns) column.pop_back();
      ++metrics_.lines.redone;
    }
    for (auto& curve : metrics_.evaluations)
      while (!curve.step.empty() && curve.step.back() >= line_.step)
        for (auto* column : {&curve.step, &curve.value, &curve.error}) column->pop_back();
    auto& sources = metrics_.source_loss;
    while (!sources.empty() && sources.back().first_step >= line_.step) sources.pop_back();
    // What a stretch has added up cannot be told apart: it ends here, with the steps that are done again.
    if (!sources.empty() && sources.back().last_step >= line_.step)
      sources.back().last_step = line_.step - 1, sources.back().lines = std::max(sources.back().lines, lines_per_source_stretch_);
    while (!metrics_.load.empty() && metrics_.load.back().first_step >= line_.step) metrics_.load.pop_back();
    while (!metrics_.restarts.empty() && metrics_.restarts.back().step > line_.step) metrics_.restarts.pop_back();
    const double time_s = line_.values[static_cast<size_t>(Field::time_s)];
    const double step_s = line_.values[static_cast<size_t>(Field::step_ms)] / 1e3;
    const double pause_s = time_s - last_time_s_;
    std::string what;
    if (line_.resumed) what = "resumed";
    else if (line_.step <= last) what = fmt::format("went back from step {:.0f}", last);
    const bool long_pause = pause_s > std::max(60.0, 20 * (std::isnan(step_s) ? 0 : step_s));
    if (long_pause) what += fmt::format("{}no step for {}", what.empty() ? "" : ", ", base::format_duration(pause_s));
    if (!what.empty()) metrics_.restarts.push_back({line_.step, step.size(), std::move(what)});
  }

  void append() {
    metrics_.step.push_back(line_.step);
    for (size_t i = 0; i < line_.values.size(); ++i) metrics_.columns[i].push_back(line_.values[i]);
    last_time_s_ = line_.values[static_cast<size_t>(Field::time_s)];
    metrics_.lines.skipped += line_.skipped;
    metrics_.lines.nonfinite += line_.nonfinite;
    for (const auto& one : line_.evaluations) append_evaluated(one);
    if (!line_.sources.empty()) append_sources();
    if (!line_.layers.empty()) append_load();
    if (in_last_tenth_ && !line_.tokens.empty()) add_tokens();
  }

  void append_evaluated(const Line::Evaluated& one) {
    auto& all = metrics_.evaluations;
    auto found = std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.task == one.task && c.metric == one.metric; });
    if (found == all.end()) {
      if (all.size() >= kMaxEvaluations) return;
      found = all.insert(all.end(), {one.task, one.metric, {}, {}, {}});
    }
    found->step.push_back(line_.step);
    found->value.push_back(one.value);
    found->error.push_back(one.error);
  }

  // As many names as there may be, and as long ones as paths are.
  std::optional<size_t> number_of(const std::string& source) {
    auto& all = metrics_.sources;
    const auto found = std::find(all.begin(), all.end(), source);
    if (found != all.end()) return static_cast<size_t>(found - all.begin());
    if (all.size() >= kMaxSources || source.size() > kLongestSource) return std::nullopt;
    all.push_back(source);
    return all.size() - 1;
  }

  static void add_to(SourceStretch& stretch, size_t source, double nats, double tokens) {
    if (stretch.nats.size() <= source) stretch.nats.resize(source + 1), stretch.tokens.resize(source + 1);
    stretch.nats[source] += nats, stretch.tokens[source] += tokens;
  }

  void append_sources() {
    auto& all = metrics_.source_loss;
    if (all.empty() || all.back().lines >= lines_per_source_stretch_) {
      if (all.size() >= 2 * kMaxStretches) join_source_stretches();
      all.push_back({line_.step, line_.step, 0, {}, {}});
    }
    auto& stretch = all.back();
    stretch.last_step = line_.step;
    ++stretch.lines;
    for (const auto& one : line_.sources)
      if (const auto source = one.tokens > 0 && std::isfinite(one.loss) ? number_of(one.source) : std::nullopt)
        add_to(stretch, *source, one.loss * one.tokens, one.tokens);
  }

  void join_source_stretches() {
    auto& all = metrics_.source_loss;
    for (size_t i = 0; i + 1 < all.size(); i += 2) {
      auto joined = std::move(all[i]);
      const auto& next = all[i + 1];
      for (size_t s = 0; s < next.nats.size(); ++s) add_to(joined, s, next.nats[s], next.tokens[s]);
      joined.lines += next.lines, joined.last_step = next.last_step;
      all[i / 2] = std::move(joined);
    }
    all.resize(all.size() / 2);
    lines_per_source_stretch_ *= 2;
  }

  // Stretches grow by doubling: when there are too many, neighbours are joined and each covers twice the lines.
  void append_load() {
    auto& load = metrics_.load;
    if (load.empty() || load.back().lines >= lines_per_stretch_ || load.back().layers.size() != line_.layers.size()) {
      if (load.size() >= 2 * kMaxStretches) join_stretches();
      load.push_back({line_.step, line_.step, 0, std::vector<float>(line_.layers.size())});
    }
    auto& stretch = load.back();
    stretch.last_step = line_.step;
    ++stretch.lines;
    for (size_t i = 0; i < line_.layers.size(); ++i) {
      stretch.layers[i] += (static_cast<float>(line_.layers[i]) - stretch.layers[i]) / static_cast<float>(stretch.lines);
    }
  }

  void join_stretches() {
    auto& load = metrics_.load;
    std::vector<LoadStretch> joined;
    for (size_t i = 0; i < load.size(); i += 2) {
      LoadStretch stretch = std::move(load[i]);
      if (i + 1 < load.size()) {
        const auto& next = load[i + 1];
        const auto lines = stretch.lines + next.lines;
        stretch.layers.resize(std::min(stretch.layers.size(), next.layers.size()));
        for (size_t k = 0; k < stretch.layers.size(); ++k) {
          stretch.layers[k] += (next.layers[k] - stretch.layers[k]) * static_cast<float>(next.lines) / static_cast<float>(lines);
        }
        stretch.lines = lines;
        stretch.last_step = next.last_step;
      }
      joined.push_back(std::move(stretch));
    }
    load = std::move(joined);
    lines_per_stretch_ *= 2;
  }

  void add_tokens() {
    auto& sums = metrics_.expert_tokens;
    const bool same = sums.size() == line_.tokens.size() && std::equal(sums.begin(), sums.end(), line_.tokens.begin(),
                                                                       [](const auto& a, const auto& b) { return a.size() == b.size(); });
    if (!same) {
      sums = line_.tokens;
      return;
    }
    for (size_t layer = 0; layer < sums.size(); ++layer) {
      for (size_t expert = 0; expert < sums[layer].size(); ++expert) sums[layer][expert] += line_.tokens[layer][expert];
    }
  }

  Metrics metrics_;
  Line line_;
  double last_time_s_ = kNone;
  int64_t lines_per_stretch_ = 1, lines_per_source_stretch_ = 1;
  bool in_last_tenth_ = false;
};

}  // namespace

double SourceStretch::loss(size_t source) const {
  return source < tokens.size() && tokens[source] > 0 ? nats[source] / tokens[source] : kNone;
}

struct MetricsReader::State {
  Reader reader;
  LineCutter lines{kMaxLineBytes};
  int64_t size_bytes = 0;

  void take(const std::optional<std::string_view>& line) {
    reader.set_last_tenth(lines.done_bytes() >= size_bytes - size_bytes / 10);
    if (line) reader.take(*line);
    else reader.take_overlong();
  }
};

MetricsReader::MetricsReader(int64_t size_bytes) : state_(std::make_unique<State>()) { state_->size_bytes = size_bytes; }
MetricsReader::MetricsReader(MetricsReader&&) noexcept = default;
MetricsReader::~MetricsReader() = default;

void MetricsReader::feed(std::string_view piece) {
  state_->lines.feed(piece, [&](const auto& line) { state_->take(line); });
}

Metrics MetricsReader::finish(LastLine last) {
  state_->lines.finish(last, [&](const auto& line) { state_->take(line); });
  return std::move(state_->reader.metrics());
}

Metrics read_metrics(std::string_view content) {
  MetricsReader reader(static_cast<int64_t>(content.size()));
  reader.feed(content);
  return reader.finish();
}

}  // namespace ingot::report
