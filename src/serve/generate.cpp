#include "serve/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"

namespace ingot::serve {

Generator::Generator(models::Model& model) : model_(model), caches_(static_cast<size_t>(model.config().layers)) {}

void Generator::require_length(int64_t tokens) const {
  const auto& config = model_.config();
  if (config.rope_scaling == "longrope" && length_ > 0 && length_ <= config.rope_original_positions &&
      length_ + tokens > config.rope_original_positions)
    throw base::ModelError(
        "a text cannot grow beyond {} tokens, from which on longrope turns earlier keys otherwise; give a longer prompt, or ask for less",
        config.rope_original_positions);
}

at::Tensor Generator::run(const at::Tensor& ids, const parallel::ContextAxis& axis, int64_t drafts) {
  require_length(ids.size(1));
  models::ForwardContext context;
  const auto own = axis.own_tokens(ids).to(model_.device());
  context.sequences =
      std::make_shared<layers::Sequences>(own.size(0), own.size(1), at::Tensor(), length_, model_.device(), axis.schedule());
  if (drafts > 0) context.sequences->let_drafts_see_each_other(drafts);
  context.caches = {&caches_};
  auto hidden = model_.forward(own, context);
  length_ += ids.size(1);
  return hidden;
}

at::Tensor Generator::feed(const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const auto hidden = model_.layout().tensor_sequence.is_on() ? feed_folded(ids) : run(ids, {});
  return model_.logits(hidden.narrow(1, hidden.size(1) - 1, 1)).squeeze(1);
}

at::Tensor Generator::feed_each(const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  return model_.logits(run(ids, {}));
}

at::Tensor Generator::feed_and_draft(const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const auto& config = model_.config();
  const int64_t length = length_ + ids.size(1), drafts = config.draft_block;
  const auto masks = at::full({ids.size(0), drafts}, config.draft_mask_id, ids.options());
  const auto hidden = run(at::cat({ids, masks}, 1), {}, drafts);
  forget_behind(length);
  return model_.logits(hidden.narrow(1, hidden.size(1) - drafts - 1, drafts + 1));
}

void Generator::forget_behind(int64_t length) {
  if (length >= length_) return;
  for (auto& cache : caches_) {
    cache.key_values.shorten(length);
    if (cache.shorten_tail) cache.shorten_tail(length_ - length);
  }
  length_ = length;
}

at::Tensor Generator::feed_folded(const at::Tensor& ids) {
  const auto& axis = model_.layout().sequence;
  const int64_t chunk = ids.size(1) / axis.all_chunks();
  const bool fills_chunks = length_ == 0 && chunk >= model_.halo();
  const int64_t prefix = fills_chunks ? chunk * axis.all_chunks() : 0;
  at::Tensor hidden;
  if (prefix > 0) {
    const int owner = axis.owner(axis.all_chunks() - 1);
    hidden = run(ids.narrow(1, 0, prefix), axis);
    hidden = hidden.narrow(1, hidden.size(1) - 1, 1).contiguous();  // the row's last token where the owner says it
    axis.group->broadcast(hidden, owner);
  }
  for (int64_t i = prefix; i < ids.size(1); ++i) hidden = run(ids.narrow(1, i, 1), {});
  return hidden;
}

at::Tensor sample(const at::Tensor& logits, const SamplingOptions& options, int64_t position) {
  if (options.temperature <= 0) return logits.argmax(-1).cpu();
  const auto host = logits.to(at::kCPU, at::kFloat).contiguous();
  auto ids = at::empty({host.size(0)}, at::kLong);
  const auto vocab = static_cast<size_t>(host.size(1));
  for (int64_t row = 0; row < host.size(0); ++row) {
    ids.data_ptr<int64_t>()[row] = draw({host[row].data_ptr<float>(), vocab}, options, uniform_of(options.seed, position, row));
  }
  return ids;
}

namespace {

void require_prompt(const models::Model& model, const std::vector<int64_t>& prompt) {
  if (model.config().bidirectional)
    throw base::ConfigError("the model is an encoder (model.bidirectional = true): it fills masks in, and does not continue a text");
  if (prompt.empty())
    throw base::UsageError("the prompt has no tokens; give some text, or a tokenizer that begins a document with a token");
}

// The ids so far, and whether another one is wanted.
struct Text {
  int64_t limit, eos_id;
  const std::function<bool(int64_t)>& on_token;
  std::vector<int64_t> ids{};

  bool take(int64_t id) {
    ids.push_back(id);
    return id != eos_id && (!on_token || on_token(id)) && static_cast<int64_t>(ids.size()) < limit;
  }
};

}  // namespace

std::vector<int64_t> generate_with_drafts(models::Model& model, const std::vector<int64_t>& prompt, int64_t limit, int64_t eos_id,
                                          const SamplingOptions& options, const std::function<bool(int64_t)>& on_token,
                                          DraftCounts* counts) {
  require_prompt(model, prompt);
  if (model.config().draft_block == 0 || model.layout().tensor_sequence.is_on() || model.layout().tensor.is_on())
    throw base::ConfigError("drafts are made by a model with model.draft_block > 0, on one rank");
  DraftCounts none;
  auto& count = counts ? *counts : none;
  Text text{limit, eos_id, on_token};
  Generator generator(model);
  const auto row_of = [](const std::vector<int64_t>& ids) { return at::tensor(ids, at::kLong).unsqueeze(0); };
  // What the model chooses behind each of the positions of `logits` [1, n, vocab], the first of which is behind `length` tokens.
  const auto choices = [&](const at::Tensor& logits, int64_t length) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < logits.size(1); ++i) ids.push_back(sample(logits.select(1, i), options, length + i).item<int64_t>());
    return ids;
  };
  auto fed = row_of(prompt);
  if (limit < 1) return {};
  for (;;) {
    auto logits = generator.feed_and_draft(fed);
    ++count.passes;
    const int64_t length = generator.length();
    const auto chosen = choices(logits.narrow(1, 0, 1), length)[0];
    if (!text.take(chosen)) return text.ids;
    auto drafts = choices(logits.narrow(1, 1, logits.size(1) - 1), length);
    ++count.drafted;
    fed = row_of({chosen});
    if (drafts[0] != chosen) continue;
    ++count.taken;
    // All but the last are looked at behind those before them.
    const auto own = choices(generator.feed_each(row_of(drafts)), length + 1);
    ++count.passes;
    size_t taken = 1;
    for (; taken < drafts.size(); ++taken) {
      ++count.drafted;
      if (!text.take(own[taken - 1])) return text.ids;
      if (own[taken - 1] != drafts[taken]) break;
      ++count.taken;
    }
    if (taken == drafts.size() && !text.take(own.back())) return text.ids;
    // The last that was chosen is not fed yet.
    generator.forget_behind(length + static_cast<int64_t>(taken));
    fed = row_of({own[taken - 1]});
  }
}

std::vector<int64_t> generate(models::Model& model, const std::vector<int64_t>& prompt, int64_t limit, int64_t eos_id,
                              const SamplingOptions& options, const std::function<bool(int64_t)>& on_token) {
  require_prompt(model, prompt);
  Generator generator(model);
  auto logits = generator.feed(at::tensor(prompt, at::kLong).unsqueeze(0));
  Text text{limit, eos_id, on_token};
  if (limit < 1) return {};
  for (;;) {
    const auto next = sample(logits, options, generator.length());
    if (!text.take(next.item<int64_t>())) return text.ids;
    logits = generator.feed(next.unsqueeze(1));
  }
}

}  // namespace ingot::serve
