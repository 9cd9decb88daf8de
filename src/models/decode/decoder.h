// A model run on a few tokens at a time, as decoding does: bound by the memory that weights are read from, not by calls.
//
// The same computation as Model::forward and Model::logits, in steps that a team of threads runs together (step.h). Parts that have no
// steps (linear and latent attention, adapters) run as everywhere else, between them. A token's numbers do not depend on what else is in
// the pass.
#pragma once

#include <span>

#include "models/decode/program.h"
#include "models/model.h"

namespace ingot::models::decode {

class Decoder {
 public:
  /// On a CPU, in fp32 or bf16, of a model whose weights are all here and which reads from left to right.
  static bool takes(const Model& model);
  /// The model must outlive it and stay as it is; with int8 and int4 its weights are rounded now.
  Decoder(Model& model, kernels::WeightFormat format, int workers);
  ~Decoder();

  /// Tokens of sequences, those of each one behind another, as Sequences::side_by_side has them; their caches, by sequence and layer.
  /// Returns logits [rows.size(), vocabulary] of the tokens that `rows` names, good until the next pass.
  const float* run(std::span<const layers::Sequences::Length> lengths, std::span<const int64_t> ids,
                   const std::vector<std::vector<LayerCache>*>& caches, std::span<const int64_t> rows);
  /// Whether passes of many tokens are made as fast as by Model::forward.
  bool takes_long_passes() const { return head_->format != kernels::WeightFormat::bf16; }
  int64_t vocabulary() const { return model_.config().vocab_size; }

 private:
  void embed(std::span<const int64_t> ids);
  void run_steps();
  const float* logits(std::span<const int64_t> rows);

  Model& model_;
  Program program_;
  Team team_;
  Pass pass_;
  const Matrix* head_ = nullptr;
  bool needs_context_ = false;
  std::vector<float> logits_;
};

}  // namespace ingot::models::decode
