// Runs a model on pieces of texts: passes of few tokens by a decoder where there is one, others as everywhere else.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/weight_format.h"
#include "models/decode/decoder.h"
#include "models/model.h"
#include "serve/engine/cached_text.h"

namespace ingot::serve {

/// Tokens that follow what a text has fed, and the rows of logits that are wanted of them: the last so many.
struct Piece {
  CachedText* text = nullptr;
  std::vector<int64_t> ids;
  int64_t rows = 0;
  /// The last so many of them are masks, in whose place the model drafts (model.draft_block): they see one another, and are forgotten.
  int64_t masks = 0;
};

/// "same" (as the model has them), "int8" or "int4".
kernels::WeightFormat weight_format_named(const std::string& name);
/// A decoder of a model; null where it cannot be decoded so. Throws ConfigError if `weights` then asks for fewer bits.
std::unique_ptr<models::decode::Decoder> make_decoder(models::Model& model, kernels::WeightFormat weights);

class Runner {
 public:
  /// The model must outlive it; int8 and int4 round its weights.
  Runner(models::Model& model, kernels::WeightFormat weights, int64_t few_tokens);

  /// Feeds all pieces in one pass. Returns the logits that are wanted, one piece behind another, [rows, vocabulary] in fp32 on the host;
  /// good until the next pass.
  std::span<const float> run(std::span<const Piece> pieces);
  /// Tokens of one pass that cost little more than one.
  int64_t few_tokens() const { return few_tokens_; }
  int64_t vocabulary() const { return model_.config().vocab_size; }
  const models::Model& model() const { return model_; }

 private:
  models::Model& model_;
  const std::unique_ptr<models::decode::Decoder> decoder_;  // null where there is none for the model
  const int64_t few_tokens_;
  at::Tensor logits_;
};

}  // namespace ingot::serve
