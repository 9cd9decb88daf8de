// Passes traced on a few blocks against passes traced whole, against whole steps, and against what they must do by hand.
#include "plan/trace/pass_trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mesh/mesh.h"
#include "plan/memory.h"
#include "plan/test_support.h"
#include "plan/trace/step_trace.h"
#include "train/parallel_model.h"

namespace ingot::plan {
namespace {

models::ModelConfig model_of(const std::string& family, int64_t layers) {
  auto c = small_model(family);
  c.layers = layers;
  c.layer_pattern = "LLN";
  c.gate_rank = 4;
  return c;
}

StageSpan all_of(const models::ModelConfig& c) {
  StageSpan span;
  for (int64_t layer = 0; layer < c.layers; ++layer) span.layers.push_back(layer);
  return span;
}

double flops_of(const PassTrace& pass, const StageSpan& span) {
  double sum = 0;
  const auto add = [&](const BlockPass& block) { sum += block.forward.flops() + block.backward.flops(); };
  add(pass.embedding), add(pass.head);
  for (const int64_t layer : span.layers) add(pass.block(layer));
  return sum;
}

struct Case {
  std::string family, precision;
  models::Recompute recompute;
  bool offloads = false;
};

int64_t roundings_of(const PassTrace& pass, const StageSpan& span) {
  int64_t count = 0;
  pass.visit(span, [&](const BlockPass& block) {
    for (const auto* segment : {&block.forward, &block.backward})
      for (const auto& operation : segment->operations)
        if (operation.name == "round_to_fp8") count += operation.calls;
  });
  return count;
}

class PassOfAFewBlocks : public testing::TestWithParam<Case> {};

// One block that differs makes the model's pattern as long as the model: all blocks are traced.
TEST_P(PassOfAFewBlocks, says_what_a_deep_model_does) {
  const auto& [family, precision, recompute, offloads] = GetParam();
  constexpr int64_t kLayers = 11;
  const auto few = model_of(family, kLayers);
  auto whole = few;
  whole.layer_types.assign(kLayers, "full");
  whole.layer_types.back() = "sliding";
  whole.window = 1 << 20;  // beyond the row
  const PassShape shape{.batch = 2, .seq = 64, .precision = precision, .recompute = recompute, .offloads_activations = offloads};
  const auto of_few = trace_pass(*models::create_model(few), shape), of_all = trace_pass(*models::create_model(whole), shape);
  ASSERT_LT(of_few.blocks.size(), static_cast<size_t>(kLayers));
  ASSERT_EQ(of_all.blocks.size(), static_cast<size_t>(kLayers));
  const auto span = all_of(few);
  constexpr double kMask = 2 * 64 * 4;  // of the layer that differs
  EXPECT_NEAR(static_cast<double>(of_few.peak_bytes(span)), static_cast<double>(of_all.peak_bytes(span)), kMask);
  EXPECT_NEAR(static_cast<double>(of_few.kept_bytes(span)), static_cast<double>(of_all.kept_bytes(span)), kMask);
  EXPECT_DOUBLE_EQ(flops_of(of_few, span), flops_of(of_all, span));
  EXPECT_EQ(roundings_of(of_few, span), roundings_of(of_all, span));
  EXPECT_EQ(roundings_of(of_few, span) > 0, layers::precision_named(precision).quantization.has_value());
}

TEST_P(PassOfAFewBlocks, leaves_nothing_behind_but_gradients) {
  const auto& [family, precision, recompute, offloads] = GetParam();
  const auto config = model_of(family, 5);
  const auto model = models::create_model(config);
  const auto pass =
      trace_pass(*model, {.batch = 2, .seq = 64, .precision = precision, .recompute = recompute, .offloads_activations = offloads});
  int64_t level =
      pass.embedding.forward.kept_bytes + pass.head.forward.kept_bytes + pass.head.backward.kept_bytes + pass.embedding.backward.kept_bytes;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    level += pass.block(layer).forward.kept_bytes + pass.block(layer).backward.kept_bytes;
  // Ids, targets and routers' counts are the caller's; gradients of vectors and convolutions pass through autograd.
  int64_t small_bytes = 0;
  for (const auto& p : model->parameters().all())
    if (p->kind == layers::Parameter::Kind::vector || p->kind == layers::Parameter::Kind::convolution) small_bytes += 8 * p->elements();
  EXPECT_GE(level, 0);
  EXPECT_LT(level, (int64_t{1} << 16) + small_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    , PassOfAFewBlocks,
    testing::Values(Case{"llama", "fp32", models::Recompute::none}, Case{"llama", "bf16", models::Recompute::full},
                    Case{"zaya1", "fp32", models::Recompute::none}, Case{"zaya1", "bf16", models::Recompute::selective},
                    Case{"linear_llama", "fp32", models::Recompute::none}, Case{"linear_llama", "fp64", models::Recompute::full},
                    Case{"olmoe", "fp32", models::Recompute::none}, Case{"llama", "mxfp8", models::Recompute::none},
                    Case{"zaya1", "fp8", models::Recompute::full}, Case{"llama", "bf16", models::Recompute::full, true},
                    Case{"zaya1", "fp32", models::Recompute::full, true}),
    [](const auto& info) {
      return fmt::format("{}_{}_{}{}", info.param.family, info.param.precision, static_cast<int>(info.param.recompute),
                         info.param.offloads ? "_offloaded" : "");
    });

// One rank's whole step, traced without any composition.
struct StepCase {
  std::string family, precision, optimizer;
  int64_t microbatch = 0;
};

class PassInAStep : public testing::TestWithParam<StepCase> {};

TEST_P(PassInAStep, needs_the_memory_that_the_step_does) {
  const auto& c = GetParam();
  train::RunConfig config;
  config.model = model_of(c.family, 5);
  config.optimizer.name = c.optimizer;
  config.train.precision = c.precision;
  config.train.batch_size = 8, config.train.microbatch_size = c.microbatch, config.train.steps = 2;
  config.data.seq_len = 128;
  config.data.reset_documents = false;
  const auto step = trace_step({.config = config, .target = device::Target::cpu});
  RunShape run{.batch = 8, .microbatch = c.microbatch, .seq = 128, .precision = c.precision};
  run.optimizer = config.optimizer;
  run.threads = 1;
  run.is_here = false;  // without the allocator's reserve
  const auto memory = predict_memory(*models::create_model(config.model), run, 0);
  const double predicted = static_cast<double>(memory.total_bytes()), counted = static_cast<double>(step.trace.peak_bytes);
  EXPECT_NEAR(predicted / counted, 1, 0.01) << memory.total_bytes() << " predicted, " << step.trace.peak_bytes << " counted";
}

INSTANTIATE_TEST_SUITE_P(, PassInAStep,
                         testing::Values(StepCase{"llama", "fp32", "adamw"}, StepCase{"llama", "bf16", "adamw", 2},
                                         StepCase{"llama", "fp32", "muon"}, StepCase{"zaya1", "fp32", "adamw"},
                                         StepCase{"zaya1", "bf16", "muon", 4}, StepCase{"linear_llama", "fp32", "adamw", 2}),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}_{}", info.param.family, info.param.precision, info.param.optimizer,
                                              info.param.microbatch);
                         });

// Along the axes that cut a block a step sends what its passes do.
TEST(PassOverRanks, sends_what_the_step_sends) {
  for (const auto& [axis, family] :
       {std::pair{"tensor", "llama"}, {"tensor", "zaya1"}, {"context", "llama"}, {"context", "linear_llama"}}) {
    train::RunConfig config;
    config.model = model_of(family, 5);
    (axis == std::string("tensor") ? config.parallel.tensor : config.parallel.context) = 2;
    if (family == std::string("linear_llama")) config.parallel.context_order = "contiguous";
    config.parallel.data = 1;
    config.optimizer.name = "adamw";
    config.train.batch_size = 4, config.train.microbatch_size = 2, config.train.steps = 2;
    config.data.seq_len = 128;
    config.data.reset_documents = false;
    const int rank = family == std::string("linear_llama") ? 1 : 0;
    const auto step = trace_step({.config = config, .rank = rank, .world = 2, .target = device::Target::cpu});
    int64_t sent = 0;
    for (const auto& c : step.trace.communications)
      if (c.axis == axis && step.part_of(c.scope) != StepPart::optimizer && c.bytes > 64)
        if (step.trace.enclosing(c.scope, "forward") >= 0 || step.trace.is_backward(c.scope)) sent += c.sent_bytes;
    const mesh::Mesh mesh(config.parallel, rank, 2);
    const auto part = models::create_model(config.model, train::layout_of(mesh, config.parallel, config.model));
    const auto pass = trace_pass(*part, {.batch = 2, .seq = 128});
    int64_t of_pass = 0;
    const auto add = [&](const BlockPass& block) {
      for (const auto* segment : {&block.forward, &block.backward})
        for (const auto& c : segment->communications) of_pass += c.bytes > 64 ? c.sent_bytes : 0;
    };
    add(pass.embedding), add(pass.head);
    for (int64_t layer = 0; layer < config.model.layers; ++layer) add(pass.block(layer));
    EXPECT_EQ(2 * of_pass, sent) << axis << " " << family;
  }
}

TEST(PassOverRanks, gives_every_rank_of_a_pipeline_its_layers) {
  const auto config = model_of("llama", 6);
  parallel::Layout layout;
  layout.stage = {.rank = 1, .size = 3, .pieces = {{0, 2}, {2, 4}, {4, 6}}};
  const auto span = span_of(*models::create_model(config, layout));
  EXPECT_EQ(span.layers, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(span.has_embedding || span.has_head);
  const auto pass = trace_pass(*models::create_model(config), {.batch = 2, .seq = 64});
  // Besides what its blocks keep, what the stage before sent: 2 x 64 tokens of hidden 96 in fp32.
  EXPECT_EQ(pass.kept_bytes(span), 2 * pass.block(2).forward.kept_bytes + 2 * 64 * 96 * 4);
}

TEST(PassTraces, are_made_once) {
  PassTraces traces;
  const auto one = models::create_model(model_of("llama", 9)), deeper = models::create_model(model_of("llama", 12));
  const PassShape shape{.batch = 2, .seq = 64};
  const auto* first = &traces.of(*one, shape);
  EXPECT_EQ(first, &traces.of(*deeper, shape)) << "the same blocks, more of them";
  EXPECT_NE(first, &traces.of(*one, {.batch = 4, .seq = 64}));
  auto wider = model_of("llama", 9);
  wider.ffn *= 2;
  EXPECT_NE(first, &traces.of(*models::create_model(wider), shape));
}

}  // namespace
}  // namespace ingot::plan
