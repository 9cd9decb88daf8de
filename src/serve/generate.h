// Token by token generation with a cache: keys and values, and for CCA the convolution tail and the delayed value.
#pragma once

#include <functional>
#include <vector>

#include "device/aten.h"
#include "models/model.h"
#include "serve/engine/sampler.h"

namespace ingot::serve {

/// One sequence batch being continued. The model must outlive it; one thread at a time. With a model on a tensor_sequence axis all its
/// ranks feed the same tokens and get the same logits: the prompt goes through the folded schedules, each rank keeping the keys and values
/// of its tokens, and what does not fill equal chunks, as every later token, is decoded one by one with weights and cache where they are.
class Generator {
 public:
  explicit Generator(models::Model& model);

  /// Feeds tokens int64 [batch, n] and returns the logits after the last of them, [batch, vocab] in fp32 or wider.
  at::Tensor feed(const at::Tensor& ids);
  /// The same, of a model with model.draft_block on one rank, and behind it what it drafts for that many tokens from the next one on:
  /// [batch, 1 + draft_block, vocab]. What it drafts is not fed.
  at::Tensor feed_and_draft(const at::Tensor& ids);
  /// The logits after each of the tokens, [batch, n, vocab]; those behind the first `length` of all are forgotten by forget_behind.
  at::Tensor feed_each(const at::Tensor& ids);
  void forget_behind(int64_t length);
  int64_t length() const { return length_; }
  /// One per layer.
  const std::vector<models::LayerCache>& caches() const { return caches_; }

 private:
  /// The normed hidden state of ids that follow what is cached; sharded over the ranks by `axis` if it is on.
  at::Tensor run(const at::Tensor& ids, const parallel::ContextAxis& axis, int64_t drafts = 0);
  at::Tensor feed_folded(const at::Tensor& ids);
  void require_length(int64_t tokens) const;

  models::Model& model_;
  std::vector<models::LayerCache> caches_;
  int64_t length_ = 0;
};

/// The next id of each row, int64 [batch], drawn from logits [batch, vocab]. A pure function of (options.seed, position, row).
at::Tensor sample(const at::Tensor& logits, const SamplingOptions& options, int64_t position);

/// What drafting has done for a text.
struct DraftCounts {
  int64_t passes = 0, drafted = 0,
          taken = 0;  // through the model behind the prompt; tokens that were looked at, and that were the model's own choice
};
/// As generate(), and the same ids but for rounding: where the model's own choice, greedy or drawn, is what it has drafted, several tokens
/// come of one pass (TiDAR, arXiv 2511.08923). Throws ConfigError for a model without model.draft_block, and on several ranks.
std::vector<int64_t> generate_with_drafts(models::Model& model, const std::vector<int64_t>& prompt, int64_t limit, int64_t eos_id,
                                          const SamplingOptions& options, const std::function<bool(int64_t)>& on_token = {},
                                          DraftCounts* counts = nullptr);

/// Continues `prompt` (one row) until `limit` new ids, `eos_id` (-1 = never), or `on_token` returns false.
std::vector<int64_t> generate(models::Model& model, const std::vector<int64_t>& prompt, int64_t limit, int64_t eos_id,
                              const SamplingOptions& options, const std::function<bool(int64_t)>& on_token = {});

}  // namespace ingot::serve
