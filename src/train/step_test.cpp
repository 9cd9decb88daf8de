#include "train/step.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/error.h"
#include "device/test_device.h"
#include "train/checkpointing.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct SmallRun {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;

  explicit SmallRun(int64_t hidden = 16, at::Device device = device::test_device()) {
    models::ModelConfig c;
    c.layers = 2, c.hidden = hidden, c.vocab_size = 32, c.heads = 2, c.kv_heads = 2, c.head_dim = 8, c.experts = 2, c.expert_ffn = 8,
    c.router_hidden = 8;
    c.rope_fraction = 0.5;
    model = models::create_model(c);
    model->allocate(at::kFloat, device);
    model->initialise(3);
    optimizer = std::make_unique<optim::Optimizer>(model->parameters(), optim::OptimizerConfig{});
  }
  TrainingStep step(int64_t microbatch = 0) { return {*model, *optimizer, models::Recompute::none, microbatch}; }
  at::Tensor& value(const std::string& name) { return model->parameters().get(name).value; }
  std::map<std::string, at::Tensor> copy() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& p : model->parameters().all()) all[p->name] = p->value.detach().clone();
    return all;
  }
};

data::Batch batch_of(int64_t rows, int64_t seq) {
  data::Batch b{rows, seq, {}, {}, std::vector<int32_t>(static_cast<size_t>(rows * seq), 0)};
  for (int64_t i = 0; i < rows * seq; ++i) {
    b.inputs.push_back(static_cast<int32_t>(i * 7 % 31));
    b.targets.push_back(i % 5 == 4 ? -100 : static_cast<int32_t>(i * 11 % 31));
  }
  return b;
}

bool equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  return std::all_of(a.begin(), a.end(), [&](const auto& entry) { return at::equal(entry.second, b.at(entry.first)); });
}

TEST(TrainingStep, moves_every_trained_weight_and_counts_every_token_once_per_layer) {
  SmallRun run;
  const auto before = run.copy();
  const auto result = run.step().run(batch_of(3, 10), 1e-2);
  EXPECT_FALSE(result.skipped);
  EXPECT_GT(result.grad_norm, 0);
  EXPECT_FALSE(at::equal(before.at("model.embed_tokens.weight"), run.value("model.embed_tokens.weight")));
  ASSERT_EQ(result.expert_tokens.size(), 2u);
  for (const auto& layer : result.expert_tokens) EXPECT_LE(layer.at(0) + layer.at(1), 30);
}

TEST(TrainingStep, microbatches_change_the_loss_by_rounding_only_however_targets_fall) {
  SmallRun whole, parts;
  const auto batch = batch_of(4, 9);
  const auto a = whole.step().run(batch, 1e-3), b = parts.step(1).run(batch, 1e-3);
  EXPECT_NEAR(a.loss, b.loss, 1e-6);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5);
}

// The oracle: the mean loss of the batch without the other sources' targets, before the step.
TEST(TrainingStep, losses_of_sources_are_those_of_their_rows_alone) {
  for (const int64_t microbatch : {0, 1, 4}) {
    SmallRun run;
    auto step = run.step(microbatch);
    step.tell_sources_apart(4);
    auto batch = batch_of(7, 9);
    batch.sources = {2, 0, 2, 1, 0, 2, 2};
    std::fill_n(batch.targets.begin() + 27, 9, -100);  // all of source 1
    std::vector<double> expected;
    std::vector<int64_t> targets(4);
    for (size_t source = 0; source < 4; ++source) {
      auto alone = batch;
      for (size_t i = 0; i < alone.targets.size(); ++i)
        if (alone.sources[i / 9] != static_cast<int32_t>(source)) alone.targets[i] = -100;
      expected.push_back(step.evaluate(alone, targets[source]));
    }
    const auto result = step.run(batch, 1e-3);
    ASSERT_EQ(result.sources.size(), 4u);
    double sum = 0;
    for (size_t source = 0; source < 4; ++source) {
      EXPECT_EQ(result.sources[source].targets, targets[source]);
      EXPECT_NEAR(result.sources[source].loss, expected[source], 1e-6);
      sum += expected[source] * static_cast<double>(targets[source]);
    }
    EXPECT_EQ(result.sources[1].targets, 0);
    EXPECT_NEAR(sum / static_cast<double>(targets[0] + targets[2]), result.loss, 1e-6);
    step.tell_sources_apart(0);
    EXPECT_TRUE(step.run(batch, 1e-3).sources.empty());
  }
}

TEST(TrainingStep, names_the_weight_that_is_not_finite_and_updates_nothing) {
  SmallRun run;
  run.value("model.layers.1.self_attn.o_proj.weight").detach()[0][0] = kNan;
  const auto before = run.copy();
  const auto result = run.step(1).run(batch_of(2, 6), 1e-2);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.reason, "the weight model.layers.1.self_attn.o_proj.weight");
  EXPECT_TRUE(at::equal(before.at("model.embed_tokens.weight"), run.value("model.embed_tokens.weight")));
  EXPECT_EQ(run.optimizer->steps_done(), 0);
}

TEST(TrainingStep, names_the_first_layer_whose_output_overflows) {
  SmallRun run;
  run.value("model.layers.0.post_mlp_residual_scale.residual_scale").detach().fill_(3e38f);
  run.value("model.layers.0.post_mlp_residual_scale.residual_bias").detach().fill_(3e38f);
  const auto result = run.step(1).run(batch_of(2, 6), 1e-2);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.reason, "the output of layer 0");
}

class Checkpointing : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ingot-step-test-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path save(const SmallRun& run, const Progress& progress, const std::string& config = "") const {
    checkpoint::SaveOptions options;
    options.refuse_nonfinite = true;
    std::shared_ptr<void> keep;
    const auto items = items_of(*run.optimizer, keep);
    if (const auto copies = copy_from(run.model->device(), options)) copies->follow_current_stream();
    return checkpoint::save(folder_, progress.step, items, extras_of(progress, *run.optimizer, config, "{}"), options).path;
  }
  fs::path folder_;
};

TEST_F(Checkpointing, brings_weights_moments_and_place_back_bit_for_bit) {
  SmallRun run;
  for (int i = 0; i < 3; ++i) run.step().run(batch_of(2, 8), 1e-2);
  const auto path = save(run, {.step = 3, .tokens = 48}, "x = 1");
  SmallRun other;
  const checkpoint::TeamReader team_reader(path);
  const auto& reader = team_reader.reader();
  const auto progress = load_run(team_reader, *other.optimizer);
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.tokens, 48);
  EXPECT_EQ(config_of(reader), "x = 1");
  const auto a = run.step().run(batch_of(2, 8), 1e-2), b = other.step().run(batch_of(2, 8), 1e-2);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_TRUE(equal(run.copy(), other.copy()));
}

// The device has not begun what it was told to do before, and is told more while it is copied from.
TEST_F(Checkpointing, copies_from_a_device_what_its_stream_had_to_do_before_the_save) {
  SmallRun run(16, device::emulated_device(0));
  run.step().run(batch_of(2, 8), 1e-2);
  std::map<std::string, at::Tensor> expected;
  for (const auto& slice : run.optimizer->state()) {
    const at::NoGradGuard no_grad;
    expected[slice.name] = slice.flat.cpu() + 1;
    slice.flat.add_(1);
  }
  checkpoint::SaveOptions options;
  int64_t copied_bytes = 0, item_bytes = 0;
  const auto copies = copy_from(run.model->device(), options);
  options.copy = [&copied_bytes, copy = options.copy](std::byte* to, const std::byte* from, int64_t bytes) {
    std::atomic_ref(copied_bytes) += bytes;
    copy(to, from, bytes);
  };
  checkpoint::Saver saver(folder_, options);
  start_save(saver, copies.get(), *run.optimizer, {.step = 1}, extras_of({.step = 1}, *run.optimizer, "", "{}"), true);
  saver.wait_copied();
  for (const auto& slice : run.optimizer->state()) {
    const at::NoGradGuard no_grad;
    slice.flat.zero_();
  }
  saver.wait();
  SmallRun loaded(16, at::kCPU);
  load_run(checkpoint::TeamReader(folder_ / checkpoint::step_name(1)), *loaded.optimizer);
  for (const auto& slice : loaded.optimizer->state()) {
    EXPECT_TRUE(at::equal(slice.flat, expected.at(slice.name))) << slice.name;
    item_bytes += static_cast<int64_t>(slice.flat.nbytes());
  }
  EXPECT_EQ(copied_bytes, item_bytes);
}

TEST_F(Checkpointing, never_writes_a_weight_that_is_not_finite) {
  SmallRun run;
  run.value("model.norm.weight").detach()[2] = std::numeric_limits<float>::infinity();
  try {
    save(run, {});
    ADD_FAILURE() << "it was written";
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.norm.weight has NaN or Inf"));
  }
  EXPECT_TRUE(checkpoint::all(folder_).empty());
}

TEST_F(Checkpointing, a_model_that_does_not_fit_is_left_as_it_was) {
  SmallRun run, wider(24);
  const auto path = save(run, {.step = 1});
  const auto before = wider.copy();
  try {
    require_fit(checkpoint::Reader(path), checkpoint::alone(), *wider.optimizer);
    ADD_FAILURE() << "it was taken";
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("differently shaped"));
    EXPECT_THAT(error.what(), HasSubstr("config.toml"));
  }
  EXPECT_TRUE(equal(before, wider.copy()));
}

}  // namespace
}  // namespace ingot::train
