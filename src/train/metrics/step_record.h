// What one training step reports. Every output of a run - the step line, metrics.jsonl, TensorBoard, Prometheus - is made
// from this one struct, so that they cannot disagree. docs/run-directory.md defines each field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ingot::train {

/// How evenly the router spread the tokens of one step.
struct ExpertLoad {
  double max = 0;                            // tokens of the busiest expert of any layer
  double mean = 0;                           // tokens per expert, mean over all experts and layers
  std::vector<double> layers;                // max/mean of each MoE layer; 1 is an even spread
  std::vector<double> entropy;               // of what each layer's router gives its classes, nats, mean over tokens; may be left empty
  std::vector<double> dropped;               // share of slots that each layer's experts had no room for; empty without a capacity
  std::vector<std::vector<int64_t>> tokens;  // [moe_layers][experts]; may be left empty

  double imbalance() const { return mean > 0 ? max / mean : 0; }
};

/// From tokens per expert, [moe_layers][experts]. A layer that saw no tokens counts as even.
ExpertLoad expert_load_of(std::vector<std::vector<int64_t>> tokens);

/// What a task of train.evaluations says of the model.
struct Evaluation {
  struct Metric {
    std::string name;
    double value = 0;
    std::optional<double> error;  // standard error
    bool higher_is_better = true;
  };
  std::string task;
  int64_t items = 0;
  std::vector<Metric> metrics;  // the first stands for the task
};

/// Of the rows of a step that one source of training gave.
struct SourceRecord {
  std::string source;  // its path
  double loss = 0;     // nats per token
  int64_t tokens = 0;  // that were predicted, over all ranks
};

struct StepRecord {
  int64_t step = 0;    // 1 for the first
  int64_t steps = 0;   // of the whole run
  int64_t tokens = 0;  // trained on since step 1, over all ranks
  double loss = 0;     // nats per token, over the global batch
  double grad_norm = 0;
  double lr = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
  double flops_per_token = 0;  // model FLOPs, forward and backward
  double tflops = 0;           // 10^12 model FLOP/s per rank
  double mfu = 0;              // fraction of the measured peak, 0 when no peak is known
  int64_t memory_peak_bytes = 0;
  double predicted_step_ms = 0;         // 0: no prediction
  int64_t predicted_memory_bytes = 0;   // 0: no prediction
  double calibrated_step_ms = 0;        // the prediction as earlier runs would correct it; 0: too few of them
  int64_t calibrated_memory_bytes = 0;  // the same
  int64_t comm_bytes = 0;               // sent by this rank during the step
  double eta_s = 0;
  double time_s = 0;  // Unix time at the end of the step; 0: the sink fills it in

  std::vector<SourceRecord> source_loss;  // runs of several sources: of those that the step has rows of

  std::optional<ExpertLoad> expert_load;  // MoE runs
  // Of the losses of routers that are on, means over layers without coefficients.
  std::optional<double> balance_loss, router_z_loss;
  std::optional<double> dropped;                   // share of tokens' slots that experts with a capacity had no room for
  std::optional<double> attention_max;             // largest log-sum-exp of a head's attention scores, with optimizer.qk_clip
  std::optional<double> draft_loss;                // nats per token, of drafts; loss is the mean of it and of the next token's
  std::optional<double> mtp_loss;                  // of predictors, mean over them
  std::optional<double> dpo_accuracy, dpo_margin;  // of pairs of answers: share ordered as chosen, mean of beta h
  std::optional<double> validation_loss;           // steps that were followed by a validation
  std::vector<Evaluation> evaluations;             // steps that were followed by some
  bool skipped = false;                            // NaN or Inf was found and the weights were left alone
  bool resumed = false;                            // first step after a start from a checkpoint; the sink fills it in
};

/// Entries of the same path are one.
void add_source_loss(StepRecord& record, SourceRecord of_source);

/// One JSON object with the fields of docs/run-directory.md. JSON has no NaN or Inf: such a value becomes null, and the
/// member "nonfinite" says which it was, as in {"loss": null, "nonfinite": {"loss": "nan"}}.
nlohmann::ordered_json to_json(const StepRecord& record);

}  // namespace ingot::train
