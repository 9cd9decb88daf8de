// What every family must keep to: documents do not leak, recomputation changes no bit, caches change no number.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "kernels/differentiable.h"
#include "models/adapters.h"
#include "models/decode/decoder.h"
#include "models/model.h"

namespace ingot::models {
namespace {

using layers::Parameter;

// A family by its name, with every other layer sliding where it may; zaya1_top2 with two experts for a token, mixtures of parts that no
// family has, and linear_llama_<variant>, with a feature map that the variant may have.
ModelConfig tiny(const std::string& name) {
  static const std::map<std::string, std::string> maps = {
      {"basic", "taylor"},   {"retention", "elu"}, {"scalar_gate", "silu"}, {"diagonal_gate", "rebased"}, {"delta", "l2"},
      {"gated_delta", "l2"}, {"kda", "l2"}};
  const std::string linear = "linear_llama_";
  const auto variant = name.starts_with(linear) ? name.substr(linear.size()) : "";
  auto c = small_model(!variant.empty()             ? "linear_llama"
                       : name.starts_with("zaya1_") ? "zaya1"
                       : name == "linear_moe"       ? "qwen3_moe"
                                                    : name);
  c.layers = 3;
  if (c.layer_types.empty()) c.layer_types = {"full", "sliding"}, c.window = 5;
  if (!variant.empty()) {
    c.linear_attention = variant, c.feature_map = maps.at(variant);
    if (variant == "retention") c.short_convolution = 0;
    if (variant == "delta") c.linear_output_gate = false;
  }
  if (name.starts_with("zaya1_")) c.top_k = 2;
  if (name == "zaya1_hybrid") c.mixers = {"linear", "softmax", "cca"}, c.feed_forwards = {"moe", "mlp", "moe"};
  if (name == "linear_moe") c.mixers = {"linear", "linear", "softmax"};
  return c;
}

std::unique_ptr<Model> build(const ModelConfig& config, at::ScalarType dtype) {
  auto model = create_model(config);
  model->allocate(dtype);
  model->initialise(7);
  return model;
}

at::Tensor ids_of(int64_t batch, int64_t seq, int64_t salt) {
  return (at::arange(batch * seq, at::kLong) * 7919 + salt).remainder(50).view({batch, seq});
}

ForwardContext context_of(int64_t batch, int64_t seq, const at::Tensor& starts = {}) {
  ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(batch, seq, starts, 0, at::kCPU);
  return context;
}

class EveryFamily : public ::testing::TestWithParam<std::string> {};
std::vector<std::string> families_and_mixtures() {
  auto names = family_names();
  for (const char* more : {"zaya1_top2", "zaya1_hybrid", "linear_moe", "linear_llama_basic", "linear_llama_retention",
                           "linear_llama_scalar_gate", "linear_llama_diagonal_gate", "linear_llama_delta", "linear_llama_kda"})
    names.emplace_back(more);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Families, EveryFamily, ::testing::ValuesIn(families_and_mixtures()), [](const auto& info) { return info.param; });

TEST_P(EveryFamily, packed_documents_are_what_they_are_alone) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    auto model = build(tiny(GetParam()), dtype);
    const at::NoGradGuard no_grad;
    const auto ids = ids_of(1, 23, 3);
    std::vector<int32_t> starts;
    const std::vector<std::pair<int64_t, int64_t>> documents = {{0, 9}, {9, 1}, {10, 2}, {12, 11}};
    for (const auto& [from, length] : documents) starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(from));
    auto packed_context = context_of(1, 23, at::tensor(starts, at::kInt).view({1, 23}));
    const auto packed = model->forward(ids, packed_context);
    for (const auto& [from, length] : documents) {
      auto alone_context = context_of(1, length);
      const auto alone = model->forward(ids.narrow(1, from, length), alone_context);
      EXPECT_LT((packed.narrow(1, from, length) - alone).abs().max().item<double>(), dtype == at::kDouble ? 1e-10 : 2e-4)
          << "document at " << from;
    }
  }
}

struct LossAndGradients {
  double loss;
  std::vector<at::Tensor> gradients;
};

LossAndGradients train_once(Model& model, Recompute recompute, int64_t rows_at_a_time) {
  const auto ids = ids_of(4, 19, 1), targets = ids_of(4, 19, 11);
  auto starts = at::zeros({4, 19}, at::kInt);
  starts.narrow(1, 8, 11).fill_(8);
  LossAndGradients result{0, {}};
  model.parameters().drop_gradients();
  for (int64_t from = 0; from < 4; from += rows_at_a_time) {
    auto context = context_of(rows_at_a_time, 19, starts.narrow(0, from, rows_at_a_time));
    context.recompute = recompute;
    const auto loss = model.loss(ids.narrow(0, from, rows_at_a_time), targets.narrow(0, from, rows_at_a_time), 1.0 / 76, context);
    kernels::backward({loss});
    model.parameters().collect_gradients();
    result.loss += loss.item<double>();
  }
  for (const auto& p : model.parameters().all()) {
    if (p->is_trained()) result.gradients.push_back(p->has_gradient ? p->grad.clone() : at::Tensor());
  }
  return result;
}

TEST_P(EveryFamily, recomputation_changes_no_bit_of_loss_or_gradients) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    auto model = build(tiny(GetParam()), dtype);
    const auto none = train_once(*model, Recompute::none, 4);
    for (const auto mode : {Recompute::selective, Recompute::full}) {
      const auto again = train_once(*model, mode, 4);
      EXPECT_EQ(none.loss, again.loss);
      for (size_t i = 0; i < none.gradients.size(); ++i)
        EXPECT_TRUE(at::equal(none.gradients[i], again.gradients[i])) << model->parameters().all()[i]->name;
    }
  }
}

// The model without adapters whose weights are W + scale * up down: the same loss, and its gradient G of W gives theirs.
TEST_P(EveryFamily, adapters_learn_as_the_merged_weights_would) {
  auto config = tiny(GetParam());
  const auto plain = build(config, at::kDouble);
  config.lora_rank = 3, config.lora_alpha = 4;
  const auto adapted = build(config, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (const auto& p : adapted->parameters().all())
      if (p->name.ends_with("lora_B.weight")) p->value.copy_(at::sin(at::arange(p->elements(), at::kDouble) * 1.7).view(p->shape) * 0.1);
    for (const auto& p : adapted->parameters().all())
      if (!is_adapter(p->name)) plain->parameters().get(p->name).value.copy_(merged(*p, [](const Parameter& q) { return q.value; }));
  }
  const auto ids = ids_of(2, 17, 5), targets = ids_of(2, 17, 11);
  auto context = context_of(2, 17);
  const auto expected = plain->loss(ids, targets, 1.0 / 34, context);
  kernels::backward({expected});
  plain->parameters().collect_gradients();
  for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    auto again = context_of(2, 17);
    again.recompute = recompute;
    const auto loss = adapted->loss(ids, targets, 1.0 / 34, again);
    kernels::backward({loss});
    adapted->parameters().collect_gradients();
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-10);
    int64_t adapters = 0;
    for (const auto& p : adapted->parameters().all()) {
      EXPECT_EQ(p->has_gradient, is_adapter(p->name)) << p->name;
      if (!p->adapter) continue;
      ++adapters;
      const auto& grad = plain->parameters().get(p->name).grad;
      const auto of_up = at::matmul(grad, p->adapter.down->value.t()) * p->adapter.scale,
                 of_down = at::matmul(p->adapter.up->value.t(), grad) * p->adapter.scale;
      EXPECT_LT((p->adapter.up->grad - of_up).abs().max().item<double>(), 1e-9) << p->name;
      EXPECT_LT((p->adapter.down->grad - of_down).abs().max().item<double>(), 1e-9) << p->name;
    }
    EXPECT_GE(adapters, 2 * config.layers);
    adapted->parameters().drop_gradients();
  }
  EXPECT_EQ(adapted->parameters().weight_elements() - adapted->parameters().trained_elements(), plain->parameters().weight_elements());
}

// Of rows of one token a head's log-sum-exp is its score, and what attention gives does not depend on it.
TEST(ScoreClip, multiplies_the_scores_of_every_head_of_a_model_by_its_gamma) {
  for (const char* family : {"llama", "granite", "deepseek_v3", "kimi_linear"}) {
    auto config = tiny(family);
    config.attention_bias = config.family == "llama";
    const auto model = build(config, at::kDouble);
    const at::NoGradGuard no_grad;
    const auto ids = ids_of(50, 1, 3);
    const auto scores = [&] {
      const auto largest = model->watch_scores();
      auto context = context_of(50, 1);
      model->forward(ids, context);
      return largest;
    };
    const auto gamma_of = [](const at::Tensor& largest) { return 1 / (1 + at::arange(largest.numel(), at::kDouble)); };
    const auto before = scores();
    int watched = 0;
    for (int64_t layer = 0; layer < model->blocks(); ++layer) {
      const auto& largest = before[static_cast<size_t>(layer)];
      if (!largest.defined()) continue;
      ++watched;
      for (const auto& [parameter, factors] : model->clip_scores(layer, gamma_of(largest)))
        parameter->value.mul_(parameter->value.dim() == 2 ? factors.unsqueeze(1) : factors);
    }
    EXPECT_GT(watched, 0) << family;
    const auto after = scores();
    for (size_t layer = 0; layer < before.size(); ++layer) {
      if (!before[layer].defined()) continue;
      const double wrong = (after[layer] - before[layer] * gamma_of(before[layer])).abs().max().item<double>();
      EXPECT_LT(wrong, 1e-5 * before[layer].abs().max().item<double>()) << family << " layer " << layer;
    }
  }
}

TEST(MixersThatOnlyLookBack, are_no_encoders_and_draft_nothing) {
  const auto refusal = [](ModelConfig c) {
    try {
      create_model(c);
    } catch (const base::ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using ::testing::HasSubstr;
  for (const char* family : {"qwen3_next", "kimi_linear", "linear_llama_retention", "linear_llama_gated_delta"}) {
    auto config = tiny(family);
    config.bidirectional = true;
    EXPECT_THAT(refusal(config), HasSubstr("model.bidirectional")) << family;
    config.bidirectional = false, config.draft_block = 4;
    EXPECT_THAT(refusal(config), HasSubstr("model.draft_block = 4")) << family;
  }
  auto basic = tiny("linear_llama_basic");
  basic.bidirectional = true;
  EXPECT_THAT(refusal(basic), HasSubstr("model.short_convolution"));
  basic.short_convolution = 0;
  EXPECT_EQ(refusal(basic), "accepted");
  auto sinks = tiny("gpt_oss");
  sinks.draft_block = 4;
  EXPECT_THAT(refusal(sinks), HasSubstr("sinks"));
}

TEST(Adapters, lie_at_the_matrices_that_are_named_and_nowhere_else) {
  auto config = tiny("llama");
  config.lora_rank = 2, config.lora_targets = {"q_proj", "down_proj"};
  const auto model = create_model(config);
  for (const auto& p : model->parameters().all()) {
    const bool is_target = p->name.ends_with("q_proj.weight") || p->name.ends_with("down_proj.weight");
    EXPECT_EQ(static_cast<bool>(p->adapter), is_target) << p->name;
    EXPECT_EQ(p->is_trained(), is_adapter(p->name)) << p->name;
    if (p->adapter) {
      EXPECT_TRUE(p->adapter.down->layer == p->layer && p->adapter.up->layer == p->layer);
    }
  }
  const auto refusal = [](const ModelConfig& c, const parallel::Layout& layout = {}) {
    try {
      create_model(c, layout);
    } catch (const base::ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  config.lora_targets = {"q_proj", "qproj"};
  using ::testing::AllOf, ::testing::HasSubstr;
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("'qproj'"), HasSubstr("q_proj"), HasSubstr("down_proj")));
  config.lora_targets = {};
  parallel::Layout layout;
  layout.tensor.size = 2;
  EXPECT_THAT(refusal(config, layout), AllOf(HasSubstr("parallel.tensor = 2"), HasSubstr("lora_rank = 2")));
}

TEST_P(EveryFamily, microbatches_add_up_to_the_batch) {
  auto model = build(tiny(GetParam()), at::kDouble);
  const auto whole = train_once(*model, Recompute::none, 4), halves = train_once(*model, Recompute::none, 2);
  EXPECT_NEAR(whole.loss, halves.loss, 1e-12);
  for (size_t i = 0; i < whole.gradients.size(); ++i)
    EXPECT_LT((whole.gradients[i] - halves.gradients[i]).abs().max().item<double>(), 1e-12);
}

TEST_P(EveryFamily, gradients_agree_with_finite_differences) {
  auto model = build(tiny(GetParam()), at::kDouble);
  const auto ids = ids_of(2, 13, 1), targets = ids_of(2, 13, 11);
  const auto loss_now = [&] {
    const at::NoGradGuard no_grad;
    auto context = context_of(2, 13);
    return model->loss(ids, targets, 1.0 / 26, context).item<double>();
  };
  auto context = context_of(2, 13);
  const auto loss = model->loss(ids, targets, 1.0 / 26, context);
  kernels::backward({loss});
  model->parameters().collect_gradients();
  constexpr double kStep = 1e-6;
  for (const auto& p : model->parameters().all()) {
    if (!p->is_trained() || !p->has_gradient) continue;
    const int64_t at = p->elements() / 2;  // one element of each tensor
    auto flat = p->value.detach().view({-1});
    const double before = flat[at].item<double>();
    flat[at] = before + kStep;
    const double above = loss_now();
    flat[at] = before - kStep;
    const double below = loss_now();
    flat[at] = before;
    EXPECT_NEAR(p->grad.view({-1})[at].item<double>(), (above - below) / (2 * kStep), 2e-7) << p->name;
  }
}

TEST_P(EveryFamily, feeding_in_pieces_through_a_cache_gives_the_numbers_of_one_pass) {
  auto model = build(tiny(GetParam()), at::kDouble);
  const at::NoGradGuard no_grad;
  const auto ids = ids_of(2, 17, 5);
  auto whole_context = context_of(2, 17);
  const auto whole = model->forward(ids, whole_context);
  std::vector<LayerCache> caches(3);
  int64_t at = 0;
  for (const int64_t length : {1, 1, 5, 2, 8}) {
    ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(2, length, at::Tensor(), at, at::kCPU);
    context.caches = {&caches};
    const auto part = model->forward(ids.narrow(1, at, length), context);
    EXPECT_LT((part - whole.narrow(1, at, length)).abs().max().item<double>(), 1e-11) << "tokens from " << at;
    at += length;
  }
}

TEST_P(EveryFamily, sequences_side_by_side_have_the_numbers_of_each_alone) {
  auto model = build(tiny(GetParam()), at::kDouble);
  const at::NoGradGuard no_grad;
  // How many tokens each of the sequences is fed in each pass: one begins late, one ends early.
  const std::vector<std::vector<int64_t>> passes = {{3, 0, 1}, {1, 5, 1}, {1, 1, 1}, {2, 1, 0}, {1, 7, 0}};
  const auto ids = ids_of(3, 14, 5);
  std::vector<at::Tensor> expected;
  for (int64_t row = 0; row < 3; ++row) {
    auto context = context_of(1, 14);
    expected.push_back(model->forward(ids.narrow(0, row, 1), context));
  }
  std::vector<std::vector<LayerCache>> caches(3, std::vector<LayerCache>(3));
  std::vector<int64_t> fed(3);
  for (const auto& lengths : passes) {
    ForwardContext context;
    std::vector<layers::Sequences::Length> parts;
    std::vector<at::Tensor> tokens, wanted;
    for (size_t row = 0; row < 3; ++row) {
      if (lengths[row] == 0) continue;
      parts.push_back({.tokens = lengths[row], .offset = fed[row]});
      tokens.push_back(ids.narrow(0, static_cast<int64_t>(row), 1).narrow(1, fed[row], lengths[row]));
      wanted.push_back(expected[row].narrow(1, fed[row], lengths[row]));
      context.caches.push_back(&caches[row]);
      fed[row] += lengths[row];
    }
    context.sequences = layers::Sequences::side_by_side(parts, at::kCPU);
    const auto out = model->forward(device::cat(tokens, 1), context);
    EXPECT_LT((out - device::cat(wanted, 1)).abs().max().item<double>(), 1e-11);
  }
}

TEST_P(EveryFamily, decoder_gives_what_the_model_does) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype == at::kFloat ? "fp32" : "bf16");
    auto model = build(tiny(GetParam()), dtype), exact = build(tiny(GetParam()), at::kDouble);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < model->parameters().all().size(); ++i)
      exact->parameters().all()[i]->value.copy_(model->parameters().all()[i]->value);
    const std::vector<std::vector<int64_t>> passes = {{3, 0, 1}, {1, 5, 1}, {1, 1, 1}, {2, 1, 0}, {1, 7, 0}};
    const auto ids = ids_of(3, 14, 5);
    auto context = context_of(3, 14);
    const auto expected = exact->logits(exact->forward(ids, context));
    auto same = context_of(3, 14);
    const double own_error = (model->logits(model->forward(ids, same)) - expected).abs().median().item<double>();
    for (const int workers : {1, 3}) {
      decode::Decoder decoder(*model, kernels::WeightFormat::fp32, workers);
      std::vector<std::vector<LayerCache>> caches(3, std::vector<LayerCache>(3));
      std::vector<int64_t> fed(3);
      for (const auto& lengths : passes) {
        std::vector<layers::Sequences::Length> parts;
        std::vector<std::vector<LayerCache>*> of_parts;
        std::vector<int64_t> tokens, rows;
        std::vector<at::Tensor> wanted;
        for (size_t row = 0; row < 3; ++row) {
          if (lengths[row] == 0) continue;
          parts.push_back({.tokens = lengths[row], .offset = fed[row]});
          of_parts.push_back(&caches[row]);
          const auto own = static_cast<int64_t>(row);
          for (int64_t i = 0; i < lengths[row]; ++i) {
            rows.push_back(static_cast<int64_t>(tokens.size()));
            tokens.push_back(ids[own][fed[row] + i].item<int64_t>());
          }
          wanted.push_back(expected[own].narrow(0, fed[row], lengths[row]));
          fed[row] += lengths[row];
        }
        const float* logits = decoder.run(parts, tokens, of_parts, rows);
        const auto out = at::from_blob(const_cast<float*>(logits), {static_cast<int64_t>(rows.size()), decoder.vocabulary()}, at::kFloat);
        const auto all = device::cat(wanted);
        // Rounding to bf16 sends some tokens to other experts.
        const auto difference = (out - all).abs(), largest = all.abs().max().clamp_min(1);
        if (dtype == at::kFloat) EXPECT_LT((difference.max() / largest).item<double>(), 2e-5);
        else EXPECT_LT(difference.median().item<double>(), std::max(3e-2 * largest.item<double>(), 2 * own_error));
      }
    }
  }
}

TEST_P(EveryFamily, a_long_pass_of_the_decoder_is_many_short_ones) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kTokens[] = {150, 70};
  const auto ids = ids_of(2, kTokens[0], 9);
  // Logits [tokens, vocabulary] of both texts, fed at most `most` tokens at a time.
  const auto logits_in_passes_of = [&](int64_t most, kernels::WeightFormat format) {
    const auto model = build(tiny(GetParam()), at::kFloat);
    decode::Decoder decoder(*model, format, 2);
    std::vector<std::vector<LayerCache>> caches(2, std::vector<LayerCache>(static_cast<size_t>(model->config().layers)));
    std::vector<at::Tensor> made[2];
    for (int64_t fed = 0; fed < kTokens[0]; fed += most) {
      std::vector<layers::Sequences::Length> parts;
      std::vector<std::vector<LayerCache>*> of_parts;
      std::vector<int64_t> tokens, rows;
      for (size_t text = 0; text < 2; ++text)
        if (const int64_t count = std::min(most, kTokens[text] - fed); count > 0) {
          parts.push_back({.tokens = count, .offset = fed});
          of_parts.push_back(&caches[text]);
          for (int64_t i = 0; i < count; ++i) tokens.push_back(ids[static_cast<int64_t>(text)][fed + i].item<int64_t>());
        }
      for (size_t i = 0; i < tokens.size(); ++i) rows.push_back(static_cast<int64_t>(i));
      const float* logits = decoder.run(parts, tokens, of_parts, rows);
      const auto out =
          at::from_blob(const_cast<float*>(logits), {static_cast<int64_t>(rows.size()), decoder.vocabulary()}, at::kFloat).clone();
      for (size_t text = 0, first = 0; text < parts.size(); first += static_cast<size_t>(parts[text++].tokens))
        made[text].push_back(out.narrow(0, static_cast<int64_t>(first), parts[text].tokens));
    }
    return device::cat({device::cat(made[0]), device::cat(made[1])});
  };
  using kernels::WeightFormat;
  const auto expected = logits_in_passes_of(7, WeightFormat::fp32), got = logits_in_passes_of(kTokens[0], WeightFormat::fp32);
  EXPECT_LT((got - expected).abs().max().item<double>() / expected.abs().max().item<double>(), 2e-5);
  // Linear and latent attention run as everywhere else, in other pieces.
  for (const auto* family : {"llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "zaya1"})
    if (GetParam() == std::string(family)) {
      EXPECT_TRUE(at::equal(got, expected));
      for (const auto format : {WeightFormat::int8, WeightFormat::int4})
        EXPECT_TRUE(at::equal(logits_in_passes_of(kTokens[0], format), logits_in_passes_of(7, format)));
    }
}

TEST_P(EveryFamily, narrow_and_wide_runs_agree) {
  auto wide = build(tiny(GetParam()), at::kDouble), narrow = build(tiny(GetParam()), at::kFloat);
  const at::NoGradGuard no_grad;
  auto a = context_of(2, 20), b = context_of(2, 20);
  const auto difference = wide->forward(ids_of(2, 20, 9), a) - narrow->forward(ids_of(2, 20, 9), b);
  EXPECT_LT(difference.abs().max().item<double>(), 1e-4);
}

TEST(ImpossibleSizes, are_refused_with_sizes_that_would_work) {
  const auto message = [](auto change) {
    auto config = tiny("zaya1");
    change(config);
    try {
      create_model(config);
    } catch (const base::ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([](auto& c) { c.heads = 5; }), HasSubstr("4 or 6 would work"));
  EXPECT_THAT(message([](auto& c) {
                c.head_dim = 0;
                c.hidden = 23;
              }),
              HasSubstr("20 or 24 would work"));
  EXPECT_THAT(message([](auto& c) { c.top_k = 5; }), HasSubstr("more than model.experts = 4"));
  EXPECT_THAT(message([](auto& c) { c.rope_fraction = 0.4; }), HasSubstr("must be even"));
  EXPECT_THAT(message([](auto& c) { c.layer_types = {"slidng"}; }), HasSubstr("did you mean 'sliding'"));
  EXPECT_THAT(message([](auto& c) { c.family = "lama"; }), HasSubstr("did you mean 'llama'"));
  EXPECT_THAT(message([](auto& c) { c.mlp_bias = true; }), HasSubstr("no such biases"));
}

TEST(LinearLlama, impossible_mixtures_are_refused) {
  const auto message = [](auto change, const parallel::Layout& layout = {}) {
    auto config = tiny("linear_llama_diagonal_gate");
    change(config);
    try {
      create_model(config, layout);
    } catch (const base::ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_THAT(message([](auto& c) { c.layer_pattern = "LLS"; }), HasSubstr("L (linear) and N (softmax)"));
  EXPECT_THAT(message([](auto& c) { c.layer_pattern = ""; }), HasSubstr("as in LLLN"));
  EXPECT_THAT(message([](auto& c) { c.feature_map = "taylor"; }), HasSubstr("diagonal_gate"));
  EXPECT_THAT(message([](auto& c) { c.linear_attention = "kda", c.feature_map = "taylor"; }), HasSubstr("kda"));
  EXPECT_EQ(message([](auto& c) { c.linear_attention = "kda", c.feature_map = "l2"; }), "accepted");
  EXPECT_THAT(message([](auto& c) { c.linear_attention = "gated_dleta"; }), HasSubstr("did you mean 'gated_delta'"));
  parallel::Layout over_sequence;
  over_sequence.sequence.size = 2;
  EXPECT_THAT(message([](auto&) {}, over_sequence), HasSubstr("set it to contiguous"));
  EXPECT_EQ(message([](auto& c) { c.layer_pattern = "N"; }, over_sequence), "accepted");
  over_sequence.sequence.zigzag = false;
  EXPECT_EQ(message([](auto&) {}, over_sequence), "accepted");
  parallel::Layout folded;
  folded.tensor_sequence.size = 2;
  EXPECT_THAT(message([](auto&) {}, folded), HasSubstr("parallel.tensor_sequence = 2"));
}

TEST(LinearLlama, goes_to_a_config_file_and_back) {
  auto config = tiny("linear_llama_gated_delta");
  config.layer_types.clear();
  const auto& family = family_named("linear_llama");
  const auto again = family.from_hugging_face(family.to_hugging_face(config));
  EXPECT_EQ(again.layer_pattern, "LLN");
  EXPECT_EQ(again.linear_attention, "gated_delta");
  EXPECT_EQ(again.linear_value_dim, 5);
  EXPECT_EQ(create_model(again)->parameters().weight_elements(), create_model(config)->parameters().weight_elements());
}

// Without its linear layers it is a llama.
TEST(LinearLlama, of_softmax_layers_alone_is_a_llama) {
  auto config = tiny("linear_llama_basic");
  config.layer_pattern = "N";
  const auto linear = build(config, at::kDouble), llama = build(tiny("llama"), at::kDouble);
  const at::NoGradGuard no_grad;
  auto a = context_of(1, 9), b = context_of(1, 9);
  EXPECT_TRUE(at::equal(linear->forward(ids_of(1, 9, 1), a), llama->forward(ids_of(1, 9, 1), b)));
}

// Regression: sliding layers were dropped from the exported config without a word, and the export computed something else.
TEST(Export, of_a_llama_with_sliding_layers_is_refused) {
  auto config = tiny("llama");
  EXPECT_THROW(family_named("llama").to_hugging_face(config), base::ConfigError);
  config.layer_types.clear();
  EXPECT_EQ(family_named("llama").to_hugging_face(config).at("model_type"), "llama");
}

// Regression: a phase's RoPE base was given to sliding layers too.
TEST_P(EveryFamily, a_new_rope_base_is_that_of_full_layers_only) {
  auto config = tiny(GetParam());
  config.layer_types = {"sliding"}, config.window = 5;
  const auto model = build(config, at::kDouble);
  const at::NoGradGuard no_grad;
  const auto ids = ids_of(1, 9, 1);
  auto first = context_of(1, 9), second = context_of(1, 9);
  const auto before = model->forward(ids, first);
  model->set_rope_base(1e6);
  EXPECT_TRUE(at::equal(before, model->forward(ids, second)));
}

}  // namespace
}  // namespace ingot::models
