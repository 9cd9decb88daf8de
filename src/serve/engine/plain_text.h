// What the engine is tested against: a text by the model alone, the prompt in one pass and each token in another. That caches change no
// number is tested beside the models (models/behaviour_test.cpp).
#pragma once

#include <ATen/core/grad_mode.h>

#include "models/model.h"
#include "serve/engine/sampler.h"

namespace ingot::serve {

/// Continues `prompt` until `limit` new ids or `eos_id` (-1 = never).
inline std::vector<int64_t> plain_text(models::Model& model, const std::vector<int64_t>& prompt, int64_t limit, int64_t eos_id,
                                       const SamplingOptions& sampling) {
  const at::NoGradGuard no_grad;
  auto caches = model.new_caches();
  std::vector<int64_t> made;
  auto next = prompt;
  for (int64_t fed = 0; static_cast<int64_t>(made.size()) < limit && (made.empty() || made.back() != eos_id);) {
    const auto count = static_cast<int64_t>(next.size());
    models::ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(1, count, at::Tensor(), fed, model.device());
    context.caches = {&caches};
    const auto hidden = model.forward(at::tensor(next, at::kLong).unsqueeze(0), context);
    fed += count;
    const auto logits = model.logits(hidden.narrow(1, count - 1, 1)).flatten().to(at::kFloat).contiguous();
    made.push_back(draw({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}, sampling, uniform_of(sampling.seed, fed)));
    next = {made.back()};
  }
  return made;
}

}  // namespace ingot::serve
