#include "train/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "data/loader.h"
#include "data/test_support.h"
#include "train/stretches.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;

RunConfig two_phases() {
  RunConfig config;
  config.data.seq_len = 100;
  config.data.sources = {{"a", 1}};
  config.train.batch_size = 4;
  config.train.phases = {
      {.name = "short", .steps = 3},
      {.name = "long", .tokens = 1001, .seq_len = 250, .batch_size = 2, .rope_base = 5e5, .lr = 0.5, .sources = {"0.25 data/b c", "1 d"}}};
  return config;
}

TEST(Phases, without_any_the_whole_run_is_one) {
  RunConfig config;
  config.train.steps = 7;
  const auto phases = lay_out_phases(config);
  ASSERT_EQ(phases.size(), 1u);
  EXPECT_EQ(total_steps(phases), 7);
  EXPECT_EQ(phases[0].peak_lr, config.optimizer.lr);
}

TEST(Phases, follow_one_another_and_round_tokens_up_to_steps) {
  const auto phases = lay_out_phases(two_phases());
  EXPECT_EQ(phases[1].first_step, 3);
  EXPECT_EQ(phases[1].steps, 3);  // 1001 tokens in steps of 500
  EXPECT_EQ(total_steps(phases), 6);
  EXPECT_EQ(&phase_at(phases, 2), &phases[0]);
  EXPECT_EQ(&phase_at(phases, 3), &phases[1]);
  EXPECT_EQ(&phase_at(phases, 6), &phases[1]);
}

TEST(Phases, override_what_they_name_and_inherit_the_rest) {
  const auto config = two_phases();
  const auto phases = lay_out_phases(config);
  EXPECT_EQ(phases[0].rope_base, config.model.rope_base);
  EXPECT_EQ(phases[1].rope_base, 5e5);
  EXPECT_EQ(phases[1].peak_lr, 0.5);
  EXPECT_EQ(phases[1].data.seq_len, 250);
  ASSERT_EQ(phases[1].data.sources.size(), 2u);
  EXPECT_EQ(phases[1].data.sources[0].path, "data/b c");
  EXPECT_EQ(phases[1].data.sources[0].weight, 0.25);
}

TEST(Phases, a_source_without_a_weight_is_refused_with_an_example) {
  for (const std::string source : {"data/web", "x data/web", "0 data/web", "-1 data/web", ""}) {
    auto config = two_phases();
    config.train.phases[0].sources = {source};
    try {
      lay_out_phases(config);
      ADD_FAILURE() << source << " was taken";
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("0.7 data/web"));
    }
  }
}

// Datasets "a" and "b" of known size, and what the phases of a recipe draw from them: ids are positions in their source, those of "b" from
// 100,000.
struct Draws : ::testing::TestWithParam<const char*> {
  data::TemporaryFolder folder;
  RunConfig config;
  static constexpr int64_t kTokensOfA = 24001;

  void SetUp() override {
    std::vector<int> lengths;
    for (int64_t left = kTokensOfA, length = 3; left > 0; left -= length, length = length % 37 + 4)
      lengths.push_back(static_cast<int>(std::min(left, length)));
    data::counting_dataset(folder, "a", lengths);
    data::counting_dataset(folder, "b", std::vector<int>(300, 10), 100'000);
    config.data.packing = GetParam();
    config.data.seq_len = 16;
    config.train.batch_size = 4;
    config.data.sources = {{(folder / "a").string(), 1}};
  }
  std::string source(double weight, const char* name) const { return fmt::format("{} {}", weight, (folder / name).string()); }

  // Inputs of sample `sample` of the phase, without padding.
  static std::vector<int32_t> tokens_of(const data::Loader& loader, int64_t sample) {
    const auto batch = loader.batch(sample, 1);
    std::vector<int32_t> ids;
    for (size_t s = 0; s < batch.inputs.size(); ++s)
      if (batch.inputs[s] != -7) ids.push_back(batch.inputs[s]);
    return ids;
  }
  // By token, how often the phases drew it.
  std::map<int32_t, int> drawn() const {
    std::map<int32_t, int> times;
    for (const auto& phase : lay_out_phases(config)) {
      const data::Loader loader(phase.data, data::Split::train, {.pad_id = -7});
      for (int64_t i = 0; i < phase.steps * phase.batch_size; ++i)
        for (const int32_t id : tokens_of(loader, i)) ++times[id];
    }
    return times;
  }
};

// Regression: a later phase went through the whole source anew, in another order.
TEST_P(Draws, a_later_phase_goes_on_with_what_is_unseen) {
  config.train.phases = {{.name = "one", .steps = 30}, {.name = "two", .steps = 60}, {.name = "three", .steps = 30, .batch_size = 1}};
  const auto times = drawn();
  EXPECT_GT(times.size(), 390 * 16 * 9 / 10);
  for (const auto& [id, count] : times) ASSERT_EQ(count, 1) << "token " << id;
}

TEST_P(Draws, phases_of_one_length_are_the_samples_of_one_phase) {
  config.train.phases = {{.name = "whole", .steps = 300}};
  const auto whole = lay_out_phases(config);
  const data::Loader expected(whole[0].data, data::Split::train, {.pad_id = -7});
  config.train.phases = {{.name = "one", .steps = 7}, {.name = "two", .steps = 193, .batch_size = 3}, {.name = "three", .steps = 400}};
  int64_t before = 0;
  for (const auto& phase : lay_out_phases(config)) {
    const data::Loader loader(phase.data, data::Split::train, {.pad_id = -7});
    for (int64_t i = 0; i < phase.steps * phase.batch_size; ++i, ++before)
      ASSERT_EQ(tokens_of(loader, i), tokens_of(expected, before)) << phase.name << " sample " << i;  // beyond the end of the source, too
  }
}

TEST_P(Draws, another_mixture_goes_on_in_each_of_its_sources) {
  config.train.phases = {{.name = "one", .steps = 40},
                         {.name = "two", .steps = 40, .sources = {source(0.3, "b"), source(0.7, "a")}},
                         {.name = "three", .steps = 30, .sources = {source(0.5, "a"), source(0.5, "b")}}};
  const auto times = drawn();
  for (const auto& [id, count] : times) ASSERT_EQ(count, 1) << "token " << id;
  EXPECT_GT(times.lower_bound(100'000)->first, 0);
}

// With the curriculum of data.sources, whichever phase names the source.
TEST_P(Draws, a_curriculum_goes_on_from_phase_to_phase) {
  config.data.sources[0].curriculum = "length";
  config.train.phases = {{.name = "one", .steps = 30}, {.name = "two", .steps = 60, .sources = {source(2, "a")}}};
  EXPECT_EQ(lay_out_phases(config)[1].data.sources[0].curriculum, "length");
  const auto times = drawn();
  EXPECT_GT(times.size(), 300 * 16 * 9 / 10);
  for (const auto& [id, count] : times) ASSERT_EQ(count, 1) << "token " << id;
  config.train.phases[1].seq_len = 2 * config.data.seq_len;
  EXPECT_THROW(drawn(), base::ConfigError);
}

// Regression: it began with the easy rows again.
TEST_P(Draws, a_phase_behind_reset_dataloader_has_no_curriculum) {
  config.data.sources[0].curriculum = "score";
  config.data.sources[0].curriculum_scores = "scores";
  config.train.phases = {{.name = "one", .steps = 30},
                         {.name = "two", .steps = 30},
                         {.name = "three", .steps = 30, .seq_len = 32, .reset_dataloader = true},
                         {.name = "four", .steps = 30, .sources = {source(1, "a")}}};
  const auto phases = lay_out_phases(config);
  for (size_t p = 0; p < phases.size(); ++p) {
    const auto& of_phase = phases[p].data.sources[0];
    EXPECT_EQ(of_phase.curriculum, p < 2 ? "score" : "none") << phases[p].name;
    EXPECT_EQ(of_phase.curriculum_scores, p < 2 ? "scores" : "") << phases[p].name;
    if (p >= 2) {
      EXPECT_NO_THROW(data::Loader(phases[p].data, data::Split::train)) << phases[p].name;
    }
  }
}

TEST_P(Draws, another_length_draws_no_token_that_was_drawn) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{16, 64, 16}, {48, 16, 40}, {64, 64, 32}}) {
    config.train.phases.clear();
    for (const int64_t length : lengths)
      config.train.phases.push_back({.name = "p", .tokens = kTokensOfA / 4, .seq_len = length, .batch_size = 1});
    const auto times = drawn();
    for (const auto& [id, count] : times) ASSERT_EQ(count, 1) << "token " << id << " lengths " << ::testing::PrintToString(lengths);
    EXPECT_GT(static_cast<int64_t>(times.size()), kTokensOfA * 6 / 10);
  }
}

// What a border between lengths leaves out is at most a window, and the source's next epoch has all of it again.
TEST_P(Draws, a_source_that_is_used_up_begins_again_with_all_of_its_rows) {
  config.train.phases = {{.name = "one", .tokens = kTokensOfA / 2}, {.name = "two", .tokens = 3 * kTokensOfA, .seq_len = 64}};
  const auto phases = lay_out_phases(config);
  const data::Loader loader(phases[1].data, data::Split::train, {.pad_id = -7});
  std::map<int32_t, int> times;
  const int64_t rest = loader.unseen_samples(0);
  EXPECT_GT(rest * 64, kTokensOfA * 4 / 10);
  EXPECT_LT(rest * 64, kTokensOfA * 55 / 100);
  for (int64_t i = rest; i < rest + 2 * loader.samples(); ++i)
    for (const int32_t id : tokens_of(loader, i)) ++times[id];
  EXPECT_GT(static_cast<int64_t>(times.size()), kTokensOfA * 95 / 100);
  for (const auto& [id, count] : times) ASSERT_EQ(count, 2) << "token " << id;
}

TEST_P(Draws, reset_dataloader_begins_anew_in_another_order) {
  config.train.phases = {
      {.name = "one", .steps = 30}, {.name = "two", .steps = 30, .reset_dataloader = true}, {.name = "three", .steps = 30}};
  const auto phases = lay_out_phases(config);
  const auto order = [&](size_t phase, int64_t first) {
    std::vector<std::vector<int32_t>> rows;
    const data::Loader loader(phases[phase].data, data::Split::train, {.pad_id = -7});
    for (int64_t i = 0; i < 120; ++i) rows.push_back(tokens_of(loader, first + i));
    return rows;
  };
  EXPECT_NE(order(1, 0), order(0, 0));
  EXPECT_NE(order(1, 0), order(0, 120)) << "it goes on";
  EXPECT_EQ(order(2, 0), order(1, 120)) << "the phase after it goes on from there";
}

INSTANTIATE_TEST_SUITE_P(Packings, Draws, ::testing::Values("stream", "best_fit"),
                         [](const auto& info) { return std::string(info.param); });

// The oracle: step by step.
// 100 and 900 documents of 10 tokens; validation takes a tenth.
struct Blends : ::testing::Test {
  data::TemporaryFolder folder;
  RunConfig config;
  void SetUp() override {
    data::counting_dataset(folder, "small", std::vector<int>(100, 10));
    data::counting_dataset(folder, "large", std::vector<int>(900, 10));
    config.data.seq_len = 10;
    config.data.validation_fraction = 0.1;
    config.data.sources = {{(folder / "small").string(), 1}, {(folder / "large").string(), 1}};
    config.train.batch_size = 10;
    config.train.steps = 36;  // 360 samples
  }
  std::vector<double> weights() {
    std::vector<double> all;
    for (const auto& source : lay_out_phases_over_data(config).front().data.sources) all.push_back(source.weight);
    return all;
  }
  std::vector<int64_t> drawn() {
    const auto phase = lay_out_phases_over_data(config).front();
    std::vector<int64_t> all;
    for (const auto& source : data::Loader(phase.data, data::Split::train).drawn(phase.samples_before(phase.steps)))
      all.push_back(source.samples);
    return all;
  }
};

TEST_F(Blends, epochs_take_their_share_and_leave_the_rest_to_weights) {
  config.data.sources[0].epochs = 2;  // of 90 rows
  EXPECT_EQ(drawn(), (std::vector<int64_t>{180, 180}));
  config.data.sources.push_back({(folder / "large").string(), 3});
  EXPECT_EQ(drawn(), (std::vector<int64_t>{180, 45, 135}));
  config.data.sources[0].epochs = 4;
  EXPECT_THROW(lay_out_phases_over_data(config), base::ConfigError) << "all 360 samples, and two others want some";
  config.data.sources.resize(2);
  config.data.sources[0].epochs = 1, config.data.sources[1].epochs = 0.5;  // 90 and 405 samples, of 360
  EXPECT_EQ(drawn(), (std::vector<int64_t>{65, 295}));
  const auto before = weights();
  config.train.steps = 72;
  EXPECT_EQ(weights(), before) << "a run that is made longer goes on";
  EXPECT_EQ(lay_out_phases(config).front().data.sources[0].weight, 1) << "for who only wants to know what the phases are";
}

TEST_F(Blends, a_temperature_takes_the_sizes_into_account) {
  EXPECT_EQ(drawn(), (std::vector<int64_t>{180, 180}));
  config.data.temperature = 1;
  EXPECT_EQ(drawn(), (std::vector<int64_t>{36, 324}));
  config.data.temperature = 2;  // 1 : 3
  EXPECT_EQ(drawn(), (std::vector<int64_t>{90, 270}));
  config.data.sources[0].weight = 3;
  EXPECT_EQ(drawn(), (std::vector<int64_t>{180, 180}));
  config.data.sources[1].path = (folder / "nothing").string();
  EXPECT_THROW(lay_out_phases_over_data(config), base::FileError);
}

// Regression: shares were those of rows of seq_len tokens.
TEST_F(Blends, rows_of_documents_take_weights_alone) {
  for (const char* packing : {"documents", "pairs"}) {
    config.data.packing = packing;
    const auto words = {std::string("data.temperature"), std::string("epochs"), fmt::format("data.packing = \"{}\"", packing)};
    EXPECT_EQ(weights(), (std::vector<double>{1, 1}));
    config.data.temperature = 2;
    data::expect_error<base::ConfigError>([&] { weights(); }, words);
    config.data.temperature = 0;
    config.data.sources[0].epochs = 2;
    data::expect_error<base::ConfigError>([&] { weights(); }, words);
    config.data.sources[0].epochs = 0;
  }
}

TEST_F(Blends, phases_write_epochs_before_the_path) {
  config.train.phases = {
      {.name = "one", .steps = 36, .sources = {"2 epochs " + (folder / "small").string(), "1 " + (folder / "large").string()}}};
  EXPECT_EQ(drawn(), (std::vector<int64_t>{180, 180}));
}

TEST(Phases, a_ramp_grows_evenly_to_the_batch) {
  RunConfig config;
  config.data.sources = {{"a", 1}};
  config.data.seq_len = 10;
  config.train.batch_size = 32;
  config.train.phases = {{.name = "ramp", .steps = 40, .ramp_from = 8, .ramp_increment = 8, .ramp_steps = 20}};
  const auto phase = lay_out_phases_over_data(config).front();
  int64_t samples = 0, before = 0;
  std::map<int64_t, int64_t> sizes;
  for (int64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(phase.samples_before(step), samples) << step;
    const int64_t batch = phase.batch_at(step);
    EXPECT_GE(batch, before);
    samples += before = batch;
    ++sizes[batch];
  }
  EXPECT_EQ(sizes, (std::map<int64_t, int64_t>{{8, 7}, {16, 7}, {24, 6}, {32, 20}}));
  // As many tokens as asked for, and no step more; within the ramp, too.
  for (const int64_t tokens : {1, 80, 81, 4000, 4001, 9999}) {
    config.train.phases[0].steps = 0;
    config.train.phases[0].tokens = tokens;
    const auto cut = lay_out_phases_over_data(config).front();
    EXPECT_GE(cut.samples_before(cut.steps) * 10, tokens);
    EXPECT_LT(cut.samples_before(cut.steps - 1) * 10, tokens);
  }
}

TEST(Phases, a_ramp_that_does_not_reach_the_batch_is_refused) {
  RunConfig config;
  config.train.batch_size = 32;
  config.train.phases = {{.name = "ramp", .steps = 40, .ramp_from = 8, .ramp_increment = 7, .ramp_steps = 20}};
  EXPECT_THROW(check(config), base::ConfigError);
  config.train.phases[0].ramp_increment = 4, config.train.phases[0].ramp_steps = 5;
  EXPECT_THROW(check(config), base::ConfigError);
  config.train.phases[0].ramp_steps = 6;
  EXPECT_NO_THROW(check(config));
}

TEST(Stretches, are_phases_of_one_layout_in_a_row) {
  RunConfig config;
  config.data.sources = {{"a", 1}};
  config.checkpoint.every = 0;
  config.train.phases = {{.name = "a", .steps = 3},
                         {.name = "b", .steps = 4},
                         {.name = "c", .steps = 5, .set = {"parallel.context=2", "train.recompute=full"}},
                         {.name = "d", .steps = 6, .set = {"parallel.context=2", "train.recompute=full"}},
                         {.name = "e", .steps = 7}};
  const auto stretches = stretches_of(config);
  ASSERT_EQ(stretches.size(), 3u);
  EXPECT_EQ(stretches[0].end_step, 7);
  EXPECT_EQ(stretches[1].first_step, 7);
  EXPECT_EQ(stretches[1].end_step, 18);
  EXPECT_EQ(stretches[1].config.parallel.context, 2);
  EXPECT_EQ(stretches[2].config.parallel.context, 1);
  EXPECT_FALSE(stretches[1].config.covers(1));
  EXPECT_TRUE(stretches[1].config.covers(3));
  // What they hand over by.
  EXPECT_GT(stretches[0].config.checkpoint.every, 0);
  EXPECT_EQ(stretches[2].config.checkpoint.every, 0);
  for (const char* wrong : {"model.hidden=2", "parallel.contxt=2", "parallel.context", "optimizer.lr=1"}) {
    config.train.phases[2].set = {wrong};
    EXPECT_THROW(stretches_of(config), base::ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace ingot::train
