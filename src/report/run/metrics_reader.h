// Reads metrics.jsonl of any length and any state into columns. Lines that are empty, broken or without a step are counted,
// never fatal; memory is about 140 bytes per line.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "report/run/lines.h"

namespace ingot::report {

/// The numeric fields of a line that the report uses; the names are those of docs/run-directory.md.
enum class Field {
  steps,
  tokens,
  loss,
  grad_norm,
  lr,
  step_ms,
  tokens_per_s,
  flops_per_token,
  tflops,
  mfu,
  memory_peak_bytes,
  predicted_step_ms,
  predicted_memory_bytes,
  calibrated_step_ms,
  calibrated_memory_bytes,
  time_s,
  validation_loss,
  expert_imbalance,  // max/mean of expert_load
  count,
};

struct LineCounts {
  int64_t total = 0, empty = 0;
  int64_t unreadable = 0;  // not JSON, not an object, no usable step, or longer than any line of ours
  int64_t redone = 0;      // superseded, as a later line went back to an earlier step
  int64_t skipped = 0;     // steps that were not applied
  int64_t nonfinite = 0;   // lines with a NaN or Inf in them
};

struct Restart {
  double step = 0;   // the first step after it
  size_t row = 0;    // of that step
  std::string what;  // "resumed", "went back from step 120", "no step for 2 h 03 min"
};

/// Imbalance (max/mean) of each MoE layer, averaged over a stretch of steps.
struct LoadStretch {
  double first_step = 0, last_step = 0;
  int64_t lines = 0;
  std::vector<float> layers;
};

/// The metric that stands for a task of train.evaluations, at the steps that were followed by one.
struct EvaluationCurve {
  std::string task, metric;
  std::vector<double> step, value, error;  // standard error; NaN where a line has none
};

/// Losses of the sources of training over a stretch of steps, by source as Metrics::sources; a stretch may know fewer of them.
struct SourceStretch {
  double first_step = 0, last_step = 0;
  int64_t lines = 0;
  std::vector<double> nats, tokens;  // sums over targets

  double loss(size_t source) const;  // NaN where the stretch has nothing of it
};

struct Metrics {
  std::vector<double> step;                                                    // strictly ascending
  std::array<std::vector<double>, static_cast<size_t>(Field::count)> columns;  // as long as `step`; NaN where a line has none
  std::vector<Restart> restarts;
  std::vector<LoadStretch> load;                   // at most 2 kMaxStretches
  std::vector<std::string> sources;                // at most kMaxSources, as they first appear
  std::vector<SourceStretch> source_loss;          // at most 2 kMaxStretches
  std::vector<EvaluationCurve> evaluations;        // at most kMaxEvaluations
  std::vector<std::vector<double>> expert_tokens;  // [moe_layers][experts], summed over the last tenth of the file
  LineCounts lines;

  const std::vector<double>& operator[](Field field) const { return columns[static_cast<size_t>(field)]; }
};

inline constexpr size_t kMaxStretches = 256;
inline constexpr size_t kMaxEvaluations = 64;
inline constexpr size_t kMaxSources = 64;

/// Takes a file piece by piece, so that its size does not matter and a trainer may cut it off meanwhile.
class MetricsReader {
 public:
  /// `size_bytes` of the whole file, to know its last tenth.
  explicit MetricsReader(int64_t size_bytes);
  MetricsReader(MetricsReader&&) noexcept;
  ~MetricsReader();

  void feed(std::string_view piece);
  /// After the last piece.
  Metrics finish(LastLine last = LastLine::counts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A whole file at once.
Metrics read_metrics(std::string_view content);

}  // namespace ingot::report
