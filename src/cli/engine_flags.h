// How texts are continued, as flags of two verbs.
#pragma once

#include "cli/verb.h"

namespace ingot::cli {

struct EngineFlags {
  std::string dtype, weights = "same", draft_model, axis;
  int64_t draft_tokens = 0;
  bool drafts_itself = false;

  /// The draft model guesses a few where nobody says how many.
  int64_t most_drafts() const { return !draft_model.empty() && draft_tokens == 0 ? 4 : draft_tokens; }
};

#ifndef INGOT_COMPUTES
inline void add_engine(CLI::App& verb, EngineFlags& o) {
  verb.add_option("--dtype", o.dtype, "fp32 or bf16 (default: an archive's own, else fp32)")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  verb.add_option("--weights", o.weights, "same: as --dtype; int8 or int4: in fewer bits, read faster, at a loss")
      ->check(CLI::IsMember({"same", "int8", "int4"}))
      ->capture_default_str();
  auto* tokens =
      verb.add_option("--draft-tokens", o.draft_tokens,
                      "most tokens that are guessed for one pass, from the text itself or by --draft-model: the same text, faster")
          ->check(CLI::Range(0, 31))
          ->capture_default_str();
  auto* model = verb.add_option("--draft-model", o.draft_model,
                                "a smaller model with the same tokenizer (with --draft-tokens 4 where none are given)");
  verb.add_flag("--drafts", o.drafts_itself, "guess by what a model with model.draft_block drafts itself: the same text, faster")
      ->excludes(tokens)
      ->excludes(model);
  verb.add_option(
          "--axis", o.axis,
          "what several ranks share out: tensor (each matrix), tensor_sequence (and the tokens in the cache) or experts (default: the "
          "first of these by which the model can be)")
      ->check(CLI::IsMember({"tensor", "tensor_sequence", "experts"}));
}
#endif

}  // namespace ingot::cli
