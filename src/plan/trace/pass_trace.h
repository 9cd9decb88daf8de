// One microbatch forward and backward as the program itself does it, on the counting device, taken apart into what repeats: embedding,
// blocks, head. A planner traces as many blocks as there are kinds of them and knows what a model of any depth does.
//
// Exact are operations, FLOPs, bytes moved and sent, and storages; experts are sent even shares times a stated load. Gathered weights and
// sums of gradients are in it where they belong to a pass, under ZeRO 2 and 3; the rest of a step is update_trace.h's, and a rank's whole
// step step_trace.h's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/trace.h"
#include "device/virtual_device.h"
#include "models/model.h"
#include "plan/trace/pass_operation.h"
#include "plan/trace/update_trace.h"
#include "plan/work_kind.h"

namespace ingot::plan {

/// What a pass depends on besides the model and its layout.
struct PassShape {
  int64_t batch = 1, seq = 0;      // sequences at a time; tokens of one, on however many ranks
  std::string precision = "fp32";  // fp64, fp32, bf16
  models::Recompute recompute = models::Recompute::none;
  bool offloads_activations = false;
  bool weighs_losses = false;                   // the head makes its losses first, then what weighs them: of pairs of answers
  device::Target target = device::Target::cpu;  // whose kernels
  double expert_load = 1;                       // what this rank's experts are sent, over the mean
  bool learns = true;                           // false: forward alone, without gradients, as a validation
  // ZeRO 2 and 3, whose gradients and weights come and go within a pass: over how many ranks with other tokens, by how much at a time, and
  // whether microbatches overlap in a pipeline. Below 2 the others do not count.
  int64_t zero = 0, replicas = 1, bucket_bytes = 0;
  bool is_reproducible = false, is_stage = false;
};

/// What happens between two points of a pass.
struct PassSegment {
  /// In order: operation `index`, or the start of or wait for communication `index`.
  struct Event {
    enum class Kind : uint8_t { operation, start, wait } kind;
    int32_t index;
  };
  std::vector<PassOperation> operations;
  std::vector<device::Trace::Communication> communications;
  std::vector<device::Trace::Communication> sums, gathers;  // of gradients and weights under ZeRO 2 and 3; not among the others
  std::vector<Event> events;
  int64_t kept_bytes = 0;  // what lives more at its end than at its beginning
  int64_t peak_bytes = 0;  // the most that lived more than at its beginning

  double flops() const;
};

struct BlockPass {
  PassSegment forward, backward;
};

/// The layers of a stage of a pipeline; the embedding stands before the first layer of all, the head behind the last.
struct StageSpan {
  std::vector<int64_t> layers;
  bool has_embedding = true, has_head = true;
};
StageSpan span_of(const models::Model& part);

struct PassTrace {
  BlockPass embedding, head;      // of the head all gradients are made in its forward part
  std::vector<BlockPass> blocks;  // of the first layers, two periods of kinds of blocks at most; five under ZeRO 2 and 3, in FP8, offloaded
  bool has_neighbours =
      false;  // the first and last ones are not like the others: they send or move what those beside them made, or are not in FP8
  int64_t period = 1;
  int64_t stream_bytes = 0;  // of what one stage of a pipeline hands to the next
  double seconds = 0;        // that tracing took
  std::vector<std::string> guessed;

  const BlockPass& block(int64_t layer) const;
  /// The i-th of a stage.
  const BlockPass& block(const StageSpan& span, size_t i) const;
  /// The parts of a pass through these layers.
  void visit(const StageSpan& span, const std::function<void(const BlockPass&)>& with) const;
  /// Most that lives during a pass through these layers beyond what lived before, and what a stage keeps of a microbatch until its
  /// backward.
  int64_t peak_bytes(const StageSpan& span) const;
  int64_t kept_bytes(const StageSpan& span) const;
};

/// Of the rank that `part` describes; of its stage, data and ZeRO ranks only which blocks there are counts.
PassTrace trace_pass(const models::Model& part, const PassShape& shape);

/// New tokens for each of `batch` users behind others, as generation runs them. Forward parts alone; of the head the last token's.
struct InferenceShape {
  int64_t batch = 1, context = 0, tokens = 1;
  std::string precision = "fp32";
  device::Target target = device::Target::cpu;
};
PassTrace trace_inference(models::ModelConfig config, const InferenceShape& shape);

/// Keeps what it traced. Used by one thread at a time.
class PassTraces {
 public:
  const PassTrace& of(const models::Model& part, const PassShape& shape);
  const UpdateTrace& update_of(const models::Model& part, const UpdateShape& shape);

 private:
  std::map<std::string, std::vector<std::pair<models::ModelConfig, std::unique_ptr<UpdateTrace>>>> updates_;
  std::map<std::string, std::vector<std::pair<models::ModelConfig, std::unique_ptr<PassTrace>>>> known_;  // by layout and shape
};

}  // namespace ingot::plan
