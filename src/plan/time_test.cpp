// Step times on machines whose rates are round numbers, so that each part can be worked out by hand.
#include "plan/time.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "layers/cost.h"
#include "optim/newton_schulz.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

constexpr double kGemm = 1e11, kInstant = 1e18;

RunShape shape(const std::string& optimizer = "adamw") {
  RunShape run{.batch = 4, .seq = 64};
  run.optimizer.name = optimizer;
  return run;
}

TEST(StepTimeModel, gemms_and_head_take_three_times_their_forward_flops) {
  const auto model = models::create_model(small_model("llama"));
  const auto time = predict_step_time(*model, shape(), round_machine(kGemm, kInstant));
  const double tokens = 4 * 64, block = 96 * (128 + 64 + 64) + 128 * 96 + 3 * 96 * 256;
  EXPECT_NEAR(time.gemm_s, 3 * 2 * tokens * 3 * block / kGemm, 1e-9);
  EXPECT_NEAR(time.head_s, 3 * 2 * tokens * 96 * 320 / kGemm, 1e-9);
  const double pairs = 4 * 64 * 65 / 2.0;
  EXPECT_NEAR(time.attention_s, 3 * (1 + 2) * 4 * pairs * 128 / kGemm, 1e-9);  // three layers; backward at half the rate
  EXPECT_EQ(time.recompute_s, 0);
}

// A cluster has no measured cross-entropy: it went without time.
TEST(StepTimeModel, cross_entropy_moves_its_logits_where_it_was_not_measured) {
  const auto model = models::create_model(small_model("llama"));
  auto machine = round_machine(kInstant, 1e9);
  std::erase_if(machine.kernels, [](const auto& e) { return e.name == "cross_entropy"; });
  // fp32: read and written, and a label and a loss for each token
  EXPECT_NEAR(predict_step_time(*model, shape(), machine).head_s, 4 * 64 * (320 * 8 + 12) / 1e9, 4 * 64 * 320 * 8 / 1e9 * 0.1);
}

TEST(StepTimeModel, folded_ranks_visit_all_weights_with_their_tokens) {
  for (const int ranks : {2, 4}) {
    const auto model = models::create_model(small_model("llama"), folded_layout(ranks));
    const auto time = predict_step_time(*model, shape(), round_machine(kGemm, kInstant));
    // Backward makes q, k, v, gate and up once more, and the loss all logits.
    const double tokens = 4 * 64.0 / ranks, again = 96 * (128 + 64 + 64) + 2 * 96 * 256, once = 128 * 96 + 256 * 96;
    EXPECT_NEAR(time.gemm_s, 3 * 2 * tokens * (4 * again + 3 * once) / kGemm, 1e-9);
    EXPECT_NEAR(time.head_s, 4 * 2 * tokens * 96 * 320 / kGemm, 1e-9);
    const double pairs = 4 * 64 * 65 / 2.0 / ranks;
    EXPECT_NEAR(time.attention_s, 3 * (1 + 2) * 4 * pairs * 128 / kGemm, 1e-9);
    EXPECT_EQ(time.recompute_s, 0);
  }
}

// Ranks that share experts have fewer of them, with as many more rows each.
TEST(StepTimeModel, shared_experts_get_the_rows_of_all_ranks) {
  parallel::Layout layout;
  layout.experts.size = 2;
  const auto config = small_model("zaya1");
  const auto gemms = [&](const parallel::Layout& of, double expert_load = 1) {
    RunShape run{.batch = 4, .seq = 64};
    run.expert_load = expert_load;
    const auto part = models::create_model(config, of);
    std::pair<int64_t, int64_t> found{0, 0};  // calls and rows of the experts' first matmul
    const auto pass = trace_pass(*part, run.pass_of(*part));
    for (const auto& op : pass.block(1).forward.operations)
      if (const auto s = matmul_sizes(op); s && s->n == 2 * config.expert_ffn) found.first += op.calls, found.second += op.calls * s->m;
    return found;
  };
  const int64_t tokens = 4 * 64;
  EXPECT_EQ(gemms({}), std::pair(config.experts, tokens));
  EXPECT_EQ(gemms(layout), std::pair(config.experts / 2, tokens));
  EXPECT_EQ(gemms(layout, 1.5), std::pair(config.experts / 2, tokens * 3 / 2)) << "of the busiest rank";
  EXPECT_EQ(gemms(layout, 7), std::pair(config.experts / 2, tokens * 2)) << "all there are";
  EXPECT_EQ(gemms({}, 7), std::pair(config.experts, tokens)) << "nobody shares";
}

TEST(StepTimeModel, folded_ranks_share_all_flops_evenly) {
  for (const auto* family : {"llama", "zaya1"}) {
    for (const int ranks : {2, 4}) {
      auto config = small_model(family);
      config.kv_heads = 4;
      const auto whole = models::create_model(config), part = models::create_model(config, folded_layout(ranks));
      const auto flops = [](const models::Model& of, int64_t layer) {
        return trace_pass(of, {.batch = 3, .seq = 64, .learns = false}).block(layer).forward.flops();
      };
      for (int64_t layer = 0; layer < 2; ++layer)
        EXPECT_NEAR(flops(*part, layer) * ranks / flops(*whole, layer), 1, 0.05) << family << " " << ranks;
    }
  }
}

TEST(StepTimeModel, experts_share_the_tokens) {
  auto config = small_model("zaya1");
  const auto few = predict_step_time(*models::create_model(config), shape(), round_machine(kGemm, kInstant));
  config.experts = 8;
  const auto many = predict_step_time(*models::create_model(config), shape(), round_machine(kGemm, kInstant));
  EXPECT_NEAR(many.gemm_s, few.gemm_s, 1e-9);  // the same FLOPs at a rate that does not depend on the shape
}

TEST(StepTimeModel, microbatches_repeat_everything_but_the_update) {
  const auto model = models::create_model(small_model("zaya1"));
  auto run = shape();
  const auto machine = round_machine(kGemm, 1e10);
  const auto whole = predict_step_time(*model, run, machine);
  run.microbatch = 2;
  const auto halves = predict_step_time(*model, run, machine);
  EXPECT_NEAR(halves.gemm_s, whole.gemm_s, 1e-9);
  EXPECT_NEAR(halves.optimizer_s, whole.optimizer_s, 1e-12);
}

TEST(StepTimeModel, stages_of_a_pipeline_wait_for_each_other) {
  const auto model = models::create_model(small_model("llama"));
  auto run = shape();
  const auto alone = predict_step_time(*model, run, round_machine(kGemm, kInstant));
  run.bubble = 0.2;
  const auto stage = predict_step_time(*model, run, round_machine(kGemm, kInstant));
  EXPECT_NEAR(stage.passes_s() / (stage.passes_s() + stage.waiting_s), 0.8, 1e-12);
  EXPECT_NEAR(stage.total_s(), alone.total_s() + stage.waiting_s, 1e-12);
}

TEST(StepTimeModel, work_takes_what_it_took_within_steps) {
  const auto model = models::create_model(small_model("llama"));
  auto run = shape("muon");
  auto machine = round_machine(kGemm, 1e10);
  const auto raw = predict_step_time(*model, run, machine);
  machine.within_steps = {{"fp32", "matmul", 3, 2},
                          {"fp32", "head", 1, 1},
                          {"fp32", "norms", 2, 1},
                          {"fp32", "unattributed", 0.6, 0},
                          {"fp32", "communication", 4, 1}};
  const auto time = predict_step_time(*model, run, machine);
  EXPECT_NEAR(time.gemm_s, 1.5 * raw.gemm_s, 1e-12);
  EXPECT_NEAR(time.head_s, raw.head_s, 1e-12);
  EXPECT_NEAR(time.kinds.at(WorkKind::norms), 2 * raw.kinds.at(WorkKind::norms), 1e-12);
  EXPECT_NEAR(time.kinds.at(WorkKind::activations), raw.kinds.at(WorkKind::activations), 1e-12);
  EXPECT_NEAR(time.between_s, 0.1 * (time.passes_s() + time.optimizer_s), 1e-12);
  EXPECT_EQ(time.uneven_s, 0) << "alone nobody is waited for";
  run.world = 2;
  const auto side_by_side = predict_step_time(*model, run, machine);
  EXPECT_NEAR(side_by_side.uneven_s, 3 / 6.6 * (time.passes_s() + time.optimizer_s + time.between_s), 1e-12);
}

TEST(StepTimeModel, ranks_that_share_a_core_take_turns) {
  const auto model = models::create_model(small_model("llama"));
  auto run = shape("muon");
  run.bubble = 0.6;
  const auto alone = predict_step_time(*model, run, round_machine(kGemm, 1e10));
  EXPECT_NEAR(alone.waiting_s, 1.5 * alone.passes_s(), 1e-12);
  run.ranks_per_core = 2;
  const auto shared = predict_step_time(*model, run, round_machine(kGemm, 1e10));
  EXPECT_NEAR(shared.passes_s(), 2 * alone.passes_s(), 1e-12);
  EXPECT_NEAR(shared.optimizer_s, 2 * alone.optimizer_s, 1e-12);
  EXPECT_NEAR(shared.waiting_s, 0.5 * alone.passes_s(), 1e-12) << "the other rank's passes fill the rest";
  run.bubble = 0.25;
  EXPECT_EQ(predict_step_time(*model, run, round_machine(kGemm, 1e10)).waiting_s, 0);
}

TEST(StepTimeModel, recomputation_adds_the_forward_pass_of_what_is_repeated) {
  const auto model = models::create_model(small_model("llama"));
  auto run = shape();
  const auto machine = round_machine(kGemm, kInstant);
  run.recompute = models::Recompute::selective;
  const double tokens = 4 * 64;
  EXPECT_NEAR(predict_step_time(*model, run, machine).recompute_s, 2 * tokens * 3 * (3 * 96 * 256) / kGemm, 1e-9);
  run.recompute = models::Recompute::full;
  const double block = 96 * (128 + 64 + 64) + 128 * 96 + 3 * 96 * 256, pairs = 4 * 64 * 65 / 2.0;
  EXPECT_NEAR(predict_step_time(*model, run, machine).recompute_s, 3 * (2 * tokens * block + 4 * pairs * 128) / kGemm, 1e-9);
}

TEST(StepTimeModel, kernels_take_their_measured_time_or_else_their_bytes) {
  const auto model = models::create_model(small_model("llama"));
  auto machine = round_machine(kInstant, kInstant);
  EXPECT_LT(predict_step_time(*model, shape(), machine).kernels_s, 1e-6);
  machine.kernels.push_back({"swiglu", "fp32", 4 * 64, 256, 1, 1e-3, 3e-3});
  EXPECT_NEAR(predict_step_time(*model, shape(), machine).kernels_s, 3 * 4e-3, 1e-6);  // once in each of three layers
}

TEST(StepTimeModel, folded_ranks_update_their_parts) {
  const auto config = small_model("llama");
  auto machine = round_machine(kInstant, kInstant);
  machine.kernels.push_back({"adamw", "fp32", 1000, 1, 1, 1e-3, 0});
  auto run = shape();
  const double vectors = 7 * 96, cut = static_cast<double>(models::create_model(config)->parameters().weight_elements()) - vectors;
  const auto part = models::create_model(config, folded_layout(2));
  EXPECT_NEAR(predict_step_time(*part, run, machine).optimizer_s, (cut / 2 + vectors) * 1e-6, 1e-9);
  run.zero = 1;
  run.replicas = 3;
  EXPECT_NEAR(predict_step_time(*part, run, machine).optimizer_s, (cut / 2 / 3 + vectors / 6) * 1e-6, 1e-9);
}

TEST(StepTimeModel, folded_ranks_orthogonalise_all_matrices_or_their_share) {
  auto config = small_model("llama");
  config.heads = config.kv_heads = 4;
  config.head_dim = 24;
  config.ffn = 96;  // all matrices are 96 x 96
  auto machine = round_machine(kInstant, kInstant);
  machine.kernels.push_back({"adamw", "fp32", 1000, 1, 1, 1e-9, 0});
  machine.kernels.push_back({"muon", "fp32", 96, 96, 1, 1e-3, 0});
  const auto part = models::create_model(config, folded_layout(2));
  auto run = shape("muon");
  run.optimizer.spread_orthogonalisation = false;
  EXPECT_NEAR(predict_step_time(*part, run, machine).optimizer_s, 3 * 7 * 1e-3, 1e-6);
  run.optimizer.spread_orthogonalisation = true;
  EXPECT_NEAR(predict_step_time(*part, run, machine).optimizer_s, 3 * 7 * 1e-3 / 2, 1e-6);
}

TEST(StepTimeModel, the_update_is_timed_by_matrix_and_by_element) {
  const auto model = models::create_model(small_model("llama"));
  auto machine = round_machine(kInstant, kInstant);
  machine.kernels.push_back({"adamw", "fp32", 1000, 1, 1, 1e-3, 0});
  const auto elements = static_cast<double>(model->parameters().weight_elements());
  EXPECT_NEAR(predict_step_time(*model, shape(), machine).optimizer_s, elements * 1e-6, 1e-9);
  machine.kernels.push_back({"muon", "fp32", 96, 256, 4, 4e-3, 0});
  auto only_one_shape = small_model("llama");
  only_one_shape.heads = only_one_shape.kv_heads = 3;  // q, k, v and o are 96 x 96
  const auto square = models::create_model(only_one_shape);
  using optim::Iterates, optim::newton_schulz_flops;
  EXPECT_EQ(newton_schulz_flops(96, 256, 5, Iterates::own), 4.0 * 96 * 96 * 256 + 17 * 2.0 * 96 * 96 * 96);
  EXPECT_EQ(newton_schulz_flops(96, 96, 5, Iterates::own), 5 * 6.0 * 96 * 96 * 96);
  const auto iterates = optim::fastest_iterates(/*on_cpu=*/true);
  const double rest = 320 * 96 + 7 * 96, flops = newton_schulz_flops(96, 256, 5, iterates),
               square_flops = newton_schulz_flops(96, 96, 5, iterates);
  EXPECT_NEAR(predict_step_time(*square, shape("muon"), machine).optimizer_s, rest * 1e-6 + 3 * (3 + 4 * square_flops / flops) * 1e-3,
              1e-6);
}

TEST(StepTimeModel, a_precision_that_was_not_measured_is_refused_by_name) {
  const auto model = models::create_model(small_model("llama"));
  auto run = shape();
  run.precision = "fp64";
  try {
    predict_step_time(*model, run, round_machine(1e11, 1e10));
    FAIL();
  } catch (const base::ProfileError& error) {
    EXPECT_NE(std::string(error.what()).find("no fp64 measurements"), std::string::npos);
  }
}

TEST(StepTimeModel, attention_sees_no_further_than_documents) {
  const auto model = models::create_model(small_model("llama"));
  auto run = shape();
  const auto attention_s = [&] { return predict_step_time(*model, run, round_machine(kGemm, kInstant)).attention_s; };
  const double whole_s = attention_s();
  run.documents = {run.seq, run.seq};
  EXPECT_NEAR(attention_s(), whole_s, 1e-12 * whole_s);
  // Two halves have 2 (s/2) (s/2 + 1) / 2 pairs of s (s + 1) / 2, at the rate of rows of half the length.
  run.documents = {run.seq / 2, run.seq / 2};
  auto halves = run;
  halves.documents.clear();
  halves.seq /= 2, halves.batch *= 2;
  EXPECT_NEAR(attention_s(), predict_step_time(*model, halves, round_machine(kGemm, kInstant)).attention_s, 1e-9 * whole_s);
  EXPECT_LT(attention_s(), 0.9 * whole_s);
  parallel::Layout layout;
  layout.sequence.size = 2;
  const auto part = models::create_model(small_model("llama"), layout);
  const double with_s = predict_step_time(*part, run, round_machine(kGemm, kInstant)).attention_s;
  run.documents.clear();
  EXPECT_EQ(predict_step_time(*part, run, round_machine(kGemm, kInstant)).attention_s, with_s);
}

}  // namespace
}  // namespace ingot::plan
