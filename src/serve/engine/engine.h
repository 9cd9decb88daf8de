// Continues many texts at once: texts come and go between passes, and each pass takes the next token of all that have begun and pieces of
// the prompts of others. A text begins with the pages that earlier ones with an equal beginning have left (prefix_cache.h). Guesses at next
// tokens make several tokens of one pass (drafts.h).
//
// Over several ranks (a tensor, a tensor_sequence or an expert axis) every rank has an engine that does the same: the first tells the
// others who has come and gone before each pass, and what follows from that is the same everywhere.
//
// One thread of the engine's own runs the model; any thread may ask and listen. On a CPU passes of few tokens go through a decoder, whose
// numbers for a token do not depend on what else is in the pass; those of larger passes do in the rounding of sums, GEMMs being of other
// sizes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/group.h"
#include "kernels/weight_format.h"
#include "models/model.h"
#include "serve/engine/text.h"

namespace ingot::serve {

/// The engine takes no more at the moment.
class BusyError : public base::Error {
 public:
  using base::Error::Error;
};

struct EngineOptions {
  int64_t most_texts = 64;              // at once
  int64_t most_waiting = 256;           // behind them
  int64_t pass_tokens = 512;            // of one pass, at most, unless more texts are under way
  int64_t most_cached_tokens = 262144;  // prompts and texts at their longest, of all that are under way
  /// Of passes with few tokens (models/decode/decoder.h); int8 and int4 round the model's weights. fp32: as they are.
  kernels::WeightFormat weights = kernels::WeightFormat::fp32;
  int64_t few_tokens = 32;                     // of a pass that costs little more than one; longer ones in bf16 are not the decoder's
  int64_t most_kept_bytes = int64_t{1} << 30;  // of pages and states that stay for texts to come; 0: none do
  /// Tokens of a text that are guessed for one pass, at most; 0: none. By `draft_model`, which has the same vocabulary, must outlive the
  /// engine and is used by nobody else, or where there is none by looking the newest tokens up in the text (drafts.h).
  int64_t most_drafts = 0;
  models::Model* draft_model = nullptr;
  /// A model with model.draft_block guesses itself, as many (TiDAR, arXiv 2511.08923).
  bool drafts_itself = false;
  /// Of the host, all ranks that hold the model together: the first has the engine, the others follow() it. Null: one rank.
  comm::Group* ranks = nullptr;
};

struct EngineCounts {
  int64_t running = 0, waiting = 0, cached_tokens = 0;
  int64_t passes = 0, prompt_tokens = 0, text_tokens = 0, finished = 0;
  int64_t reused_tokens = 0;              // of prompts, which earlier texts had left
  int64_t drafted = 0, drafts_taken = 0;  // guesses that were looked at, and that were right
  int64_t kept_bytes = 0;
};

class Engine {
 public:
  /// The model must outlive it, and is used by nobody else. Throws ConfigError for models that cannot be continued: encoders, and shards.
  explicit Engine(models::Model& model, EngineOptions options = {});
  /// Texts that are not done are cancelled.
  ~Engine();

  /// All or none of them. Throws UsageError for prompts that are empty, have ids beyond the vocabulary, or can never fit, for more texts
  /// than can ever be under way and waiting, and BusyError when the queue is full or the engine is closed.
  std::vector<std::shared_ptr<Text>> submit_all(std::vector<TextRequest> requests);
  std::shared_ptr<Text> submit(TextRequest request);
  /// What rank 0's engine does, done by another rank with the same options; returns when that engine ends. Throws CommError when it is
  /// gone.
  static void follow(models::Model& model, const EngineOptions& options);

  /// Takes no more texts from now on.
  void close();
  EngineCounts counts() const;
  /// Why it runs no more, having lost other ranks; empty while it does.
  std::string failure() const;

 private:
  static void require_continues(const models::Model& model, const EngineOptions& options);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::serve
