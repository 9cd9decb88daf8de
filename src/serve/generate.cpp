#include "serve/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace ingot::serve {

Generator::Generator(models::Model& model) : model_(model), caches_(static_cast<size_t>(model.config().layers)) {}

at::Tensor Generator::run(const at::Tensor& ids, const parallel::ContextAxis& axis) {
  models::ForwardContext context;
  const auto own = axis.own_tokens(ids).to(model_.device());
  context.sequences =
      std::make_shared<layers::Sequences>(own.size(0), own.size(1), at::Tensor(), length_, model_.device(), axis.schedule());
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

// Probabilities of one row after temperature, top-k and top-p, not normalised; `order` holds the ids from likely to unlikely.
std::vector<double> candidates(const float* logits, int64_t vocab, const SamplingOptions& options, std::vector<int64_t>& order) {
  order.resize(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(static_cast<size_t>(std::min(options.top_k, vocab)));
  std::vector<double> weights;
  double total = 0;
  for (const int64_t id : order) {
    weights.push_back(std::exp((static_cast<double>(logits[id]) - static_cast<double>(logits[order[0]])) / options.temperature));
    total += weights.back();
  }
  double mass = 0;
  for (size_t kept = 0; kept < weights.size(); ++kept) {
    mass += weights[kept];
    if (mass >= options.top_p * total) {  // the smallest set whose mass reaches top_p
      weights.resize(kept + 1);
      break;
    }
  }
  return weights;
}

}  // namespace

at::Tensor sample(const at::Tensor& logits, const SamplingOptions& options, int64_t position) {
  if (options.temperature <= 0) return logits.argmax(-1).cpu();
  const auto host = logits.to(at::kCPU, at::kFloat).contiguous();
  auto ids = at::empty({host.size(0)}, at::kLong);
  const uint64_t key = base::stream_key(options.seed, "sample");
  std::vector<int64_t> order;
  for (int64_t row = 0; row < host.size(0); ++row) {
    const auto weights = candidates(host[row].data_ptr<float>(), host.size(1), options, order);
    double draw =
        base::uniform_at(key, static_cast<uint64_t>(position * 65536 + row)) * std::accumulate(weights.begin(), weights.end(), 0.0);
    size_t chosen = 0;
    while (chosen + 1 < weights.size() && draw >= weights[chosen]) draw -= weights[chosen++];
    ids.data_ptr<int64_t>()[row] = order[chosen];
  }
  return ids;
}

std::vector<int64_t> generate(models::Model& model, const std::vector<int64_t>& prompt, int64_t limit, int64_t eos_id,
                              const SamplingOptions& options, const std::function<bool(int64_t)>& on_token) {
  if (prompt.empty())
    throw base::UsageError("the prompt has no tokens; give some text, or a tokenizer that begins a document with a token");
  Generator generator(model);
  auto logits = generator.feed(at::tensor(prompt, at::kLong).unsqueeze(0));
  std::vector<int64_t> ids;
  while (static_cast<int64_t>(ids.size()) < limit) {
    const auto next = sample(logits, options, generator.length());
    ids.push_back(next.item<int64_t>());
    if (ids.back() == eos_id || (on_token && !on_token(ids.back()))) break;
    if (static_cast<int64_t>(ids.size()) < limit) logits = generator.feed(next.unsqueeze(1));
  }
  return ids;
}

}  // namespace ingot::serve
