#include "serve/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/random.h"

namespace ingot::serve {

Generator::Generator(models::Model& model) : model_(model), caches_(static_cast<size_t>(model.config().layers)) {}

at::Tensor Generator::run(const at::Tensor& ids, const parallel::ContextAxis& axis, int64_t drafts) {
  const auto& config = model_.config();
  if (config.rope_scaling == "longrope" && length_ > 0 && length_ <= config.rope_original_positions &&
      length_ + ids.size(1) > config.rope_original_positions)
    throw base::ModelError(
        "a text cannot grow beyond {} tokens, from which on longrope turns earlier keys otherwise; give a longer prompt, or ask for less",
        config.rope_original_positions);
  models::ForwardContext context;
  const auto own = axis.own_tokens(ids).to(model_.device());
  context.sequences =
      std::make_shared<layers::Sequences>(own.size(0), own.size(1), at::Tensor(), length_, model_.device(), axis.schedule());
  if (drafts > 0) context.sequences->let_drafts_see_each_other(drafts);
  context.caches = &caches_;
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
    cache.key_values.length = std::min(cache.key_values.length, length);
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

namespace {

// Ids from likely to unlikely, of equal ones the smaller first, sorted as far as they are asked for: mostly a handful of a large
// vocabulary.
class Ranking {
 public:
  explicit Ranking(std::span<const float> logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), int64_t{0});
  }

  size_t size() const { return ids_.size(); }
  int64_t id(size_t place) {
    while (place >= sorted_) sort_more();
    return ids_[place];
  }
  double logit(size_t place) { return logits_[static_cast<size_t>(id(place))]; }

 private:
  void sort_more() {
    const size_t next = std::min(ids_.size(), std::max<size_t>(64, 8 * sorted_));
    const auto at = [&](size_t place) { return ids_.begin() + static_cast<std::ptrdiff_t>(place); };
    const auto is_before = [&](int64_t a, int64_t b) {
      const float of_a = logits_[static_cast<size_t>(a)], of_b = logits_[static_cast<size_t>(b)];
      return of_a != of_b ? of_a > of_b : a < b;
    };
    if (next < ids_.size()) std::nth_element(at(sorted_), at(next), ids_.end(), is_before);
    std::sort(at(sorted_), at(next), is_before);
    sorted_ = next;
  }

  std::span<const float> logits_;
  std::vector<int64_t> ids_;
  size_t sorted_ = 0;
};

// One id by `uniform` from [0, 1), of what temperature, top-k and top-p leave.
int64_t drawn(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  if (std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit); }))
    throw base::Error("the model's logits are not numbers: its weights are damaged, or its training diverged");
  Ranking ranking(logits);
  const double largest = ranking.logit(0);
  const auto weight_of = [&](double logit) { return std::exp((logit - largest) / options.temperature); };
  size_t kept = ranking.size();
  double mass = 0;
  if (options.top_k > 0) {
    kept = std::min(kept, static_cast<size_t>(options.top_k));
    for (size_t place = 0; place < kept; ++place) mass += weight_of(ranking.logit(place));
  } else {
    for (const float logit : logits) mass += weight_of(logit);
  }
  if (options.top_p < 1) {  // the smallest set whose mass reaches top_p
    const double wanted = options.top_p * mass;
    size_t place = 0;
    mass = weight_of(ranking.logit(0));
    while (mass < wanted && place + 1 < kept) mass += weight_of(ranking.logit(++place));
    kept = place + 1;
  }
  double draw = uniform * mass;
  size_t chosen = 0;
  for (; chosen + 1 < kept; ++chosen) {
    const double weight = weight_of(ranking.logit(chosen));
    if (draw < weight) break;
    draw -= weight;
  }
  return ranking.id(chosen);
}

}  // namespace

at::Tensor sample(const at::Tensor& logits, const SamplingOptions& options, int64_t position) {
  if (options.temperature <= 0) return logits.argmax(-1).cpu();
  const auto host = logits.to(at::kCPU, at::kFloat).contiguous();
  auto ids = at::empty({host.size(0)}, at::kLong);
  const uint64_t key = base::stream_key(options.seed, "sample");
  const auto vocab = static_cast<size_t>(host.size(1));
  for (int64_t row = 0; row < host.size(0); ++row) {
    const double uniform = base::uniform_at(key, static_cast<uint64_t>(position * 65536 + row));
    ids.data_ptr<int64_t>()[row] = drawn({host[row].data_ptr<float>(), vocab}, options, uniform);
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
