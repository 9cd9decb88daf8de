#include <malloc.h>

#include <map>
#include <random>
#include <set>

#include "base/process.h"
#include "data/prefetcher.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::ConfigError;
using base::DataError;

bool equal(const Batch& a, const Batch& b) {
  return a.batch == b.batch && a.seq == b.seq && a.inputs == b.inputs && a.targets == b.targets && a.document_starts == b.document_starts;
}

struct TwoSources : ::testing::Test {
  TemporaryFolder folder;
  DataConfig config;
  void SetUp() override {
    counting_dataset(folder, "a", {40, 60, 10, 91});  // 201 tokens: 20 rows of 10
    counting_dataset(folder, "b", {31});              // 3 rows
    config.sources = {{(folder / "a").string(), 3}, {(folder / "b").string(), 1}};
    config.seq_len = 10;
    config.seed = 7;
  }
};

TEST_F(TwoSources, a_batch_is_the_same_whenever_it_is_asked_for_and_however_it_is_cut) {
  const Loader loader(config, Split::train), other(config, Split::train);
  const Batch all = loader.batch(0, 100);
  for (int64_t size : {1, 3, 16}) {
    for (int64_t first = 96; first >= 0; first -= size) {
      const int64_t count = std::min(size, 100 - first);
      const Batch part = other.batch(first, count);
      for (int64_t i = 0; i < count * 10; ++i) {
        ASSERT_EQ(part.inputs[static_cast<size_t>(i)], all.inputs[static_cast<size_t>(first * 10 + i)]);
        ASSERT_EQ(part.targets[static_cast<size_t>(i)], all.targets[static_cast<size_t>(first * 10 + i)]);
        ASSERT_EQ(part.document_starts[static_cast<size_t>(i)], all.document_starts[static_cast<size_t>(first * 10 + i)]);
      }
    }
  }
}

TEST_F(TwoSources, an_epoch_visits_every_row_once_and_the_next_one_in_another_order) {
  config.sources.resize(1);
  const Loader loader(config, Split::train);
  EXPECT_EQ(loader.samples(), 20);
  std::vector<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> firsts;
    const Batch batch = loader.batch(epoch * 20, 20);
    for (size_t r = 0; r < 20; ++r) firsts.push_back(batch.inputs[r * 10]);
    EXPECT_EQ(std::set<int32_t>(firsts.begin(), firsts.end()).size(), 20u);
    orders.push_back(firsts);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  config.seed = 8;
  EXPECT_FALSE(equal(Loader(config, Split::train).batch(0, 20), loader.batch(0, 20)));
}

TEST_F(TwoSources, state_counts_what_each_source_gave_and_survives_json) {
  const Loader loader(config, Split::train);
  const auto state = LoaderState::from_json(loader.state(5, 80).to_json());
  EXPECT_EQ(state.step, 5);
  EXPECT_EQ(state.samples, 80);
  ASSERT_EQ(state.sources.size(), 2u);
  EXPECT_EQ(state.sources[0].samples, 60);
  EXPECT_EQ(state.sources[1].samples, 20);
  loader.check_resumable(state);
  // Best-fit rows were others before they had a version.
  auto old =
      LoaderState::from_json(R"({"step":5,"samples":80,"seed":7,"seq_len":10,"packing":"best_fit","reset_documents":true,"sources":[]})");
  config.packing = "best_fit";
  expect_error<DataError>([&] { Loader(config, Split::train).check_resumable(old); }, {"version of the rows", "was 1 and is 2"});
  EXPECT_THROW(LoaderState::from_json("{}"), DataError);
  EXPECT_THROW(LoaderState::from_json("[1"), DataError);
}

// Runs that stop at any step and go on with another number of ranks: what all of them consumed, and what is still to come, is what one
// rank consumes that never stops; nothing is lost, nothing comes twice.
TEST_F(TwoSources, samples_are_conserved_when_ranks_come_and_go) {
  constexpr int64_t kSamples = 120;
  const Batch alone = Loader(config, Split::train).batch(0, kSamples);
  std::mt19937 random(5);
  const auto any = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int run = 0; run < 50; ++run) {
    std::vector<int> times(kSamples, 0);
    std::vector<int32_t> inputs(alone.inputs.size(), -1);
    std::string state = LoaderState{}.to_json();
    int64_t step = 0, samples = 0;
    for (bool is_first = true; samples < kSamples; is_first = false) {
      const Loader loader(config, Split::train);  // of processes that start
      if (!is_first) {
        const auto resumed = LoaderState::from_json(state);
        loader.check_resumable(resumed);
        ASSERT_EQ(resumed.samples, samples);
        ASSERT_EQ(resumed.step, step);
      }
      const int64_t ranks = any(1, 7), batch = any(1, 12);
      for (int64_t steps = any(1, 6); steps > 0 && samples < kSamples; --steps, ++step) {
        const int64_t count = std::min(batch, kSamples - samples);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const auto [first, own] = share_of(samples, count, rank, ranks);
          if (own == 0) continue;
          const Batch part = loader.batch(first, own);
          std::copy(part.inputs.begin(), part.inputs.end(), inputs.begin() + first * 10);
          for (int64_t i = first; i < first + own; ++i) ++times[static_cast<size_t>(i)];
        }
        samples += count;
      }
      state = loader.state(step, samples).to_json();
    }
    EXPECT_THAT(times, ::testing::Each(1));
    EXPECT_EQ(inputs, alone.inputs);
  }
}

TEST_F(TwoSources, resuming_on_other_data_is_refused_and_says_what_changed) {
  const auto state = Loader(config, Split::train).state(5, 80);
  auto changed = config;
  changed.seed = 9;
  expect_error<DataError>([&] { Loader(changed, Split::train).check_resumable(state); }, {"data.seed was 7 and is 9"});
  changed = config;
  changed.packing = "best_fit";
  expect_error<DataError>([&] { Loader(changed, Split::train).check_resumable(state); }, {"data.packing"});
  counting_dataset(folder, "b", {41});
  expect_error<DataError>([&] { Loader(config, Split::train).check_resumable(state); }, {"tokens of", "/b", "31", "41"});
}

TEST_F(TwoSources, resuming_where_the_phases_before_drew_something_else_is_refused) {
  config.sources[0].drawn = {{10, 7}};
  const Loader loader(config, Split::train);
  const auto state = LoaderState::from_json(loader.state(5, 80).to_json());
  loader.check_resumable(state);
  EXPECT_EQ(loader.unseen_samples(0), 13);
  auto changed = config;
  changed.sources[0].drawn = {{10, 8}};
  expect_error<DataError>([&] { Loader(changed, Split::train).check_resumable(state); }, {"begins in", "/a", "was 7 and is 8"});
  changed = config;
  changed.sources[0].unit_tokens = 20;
  expect_error<DataError>([&] { Loader(changed, Split::train).check_resumable(state); }, {"the unit", "/a", "reset_dataloader"});
}

TEST_F(TwoSources, validation_fraction_divides_every_source_without_overlap) {
  config.validation_fraction = 0.3;
  config.seq_len = 5;
  const Loader train(config, Split::train), validation(config, Split::validation);
  EXPECT_EQ(train.tokens() + validation.tokens(), 232);
  std::map<int, std::set<int32_t>> trained, validated;  // by source; positions as inputs or targets
  const auto note = [](const Batch& batch, std::map<int, std::set<int32_t>>& seen) {
    for (const auto* ids : {&batch.inputs, &batch.targets}) {
      for (const int32_t id : *ids) {
        if (id != kIgnoredTarget) seen[0].insert(id);
      }
    }
  };
  // One source at a time, since ids are positions in their own source.
  for (const auto& source : config.sources) {
    DataConfig one = config;
    one.sources = {source};
    const Loader left(one, Split::train), right(one, Split::validation);
    trained.clear();
    validated.clear();
    note(left.batch(0, left.samples()), trained);
    note(right.batch(0, right.samples()), validated);
    EXPECT_LT(*trained[0].rbegin(), *validated[0].begin());
  }
  // Source a has borders at 100 and 110, source b none: 0.7 of them is 140 and 21, and 110 is within half of the 61 wished for.
  EXPECT_EQ(train.tokens(), 110 + 21);
}

TEST_F(TwoSources, validation_goes_through_the_files_in_order_and_begins_again) {
  config.validation = {(folder / "b").string(), (folder / "a").string()};
  const Loader loader(config, Split::validation);
  EXPECT_EQ(loader.samples(), 23);
  const Batch batch = loader.batch(0, 24);
  EXPECT_EQ(batch.inputs[0], 0);
  EXPECT_EQ(batch.inputs[20], 20);
  EXPECT_EQ(batch.inputs[30], 0);   // row 0 of a
  EXPECT_EQ(batch.inputs[40], 10);  // row 1
  EXPECT_EQ(batch.inputs[230], 0);  // row 0 of b again
  config.validation.clear();
  expect_error<ConfigError>([&] { Loader(config, Split::validation); }, {"data.validation_fraction"});
}

TEST_F(TwoSources, ids_beyond_the_vocabulary_name_the_source) {
  const Loader loader(config, Split::train, {.vocab_size = 150});
  expect_error<DataError>([&] { loader.batch(0, 60); }, {"/a", "ends at 149", "another tokenizer"});
}

TEST_F(TwoSources, prefetched_batches_are_exactly_the_loaders) {
  const Loader loader(config, Split::train);
  Prefetcher prefetcher(loader, 3, 8);
  int64_t first = 0;
  for (int step = 0; step < 40; ++step, first += 8) ASSERT_TRUE(equal(prefetcher.get(first, 4), loader.batch(first, 4))) << "step " << step;
  for (int step = 0; step < 20; ++step, first += 2) ASSERT_TRUE(equal(prefetcher.get(first, 2), loader.batch(first, 2)));
  for (int64_t jump : {5, 1000, 3, 3, 5}) ASSERT_TRUE(equal(prefetcher.get(jump, 2), loader.batch(jump, 2)));
  Prefetcher none(loader, 0, 8);
  EXPECT_TRUE(equal(none.get(16, 8), loader.batch(16, 8)));
}

TEST_F(TwoSources, prefetcher_reports_the_error_of_the_batch_that_has_it) {
  const Loader loader(config, Split::train, {.vocab_size = 150});
  Prefetcher prefetcher(loader, 2, 1);
  int64_t failures = 0;
  for (int64_t first = 0; first < 40; ++first) {
    bool direct_fails = false;
    try {
      loader.batch(first, 1);
    } catch (const DataError&) {
      direct_fails = true;
    }
    if (direct_fails) {
      EXPECT_THROW(prefetcher.get(first, 1), DataError);
      ++failures;
    } else {
      EXPECT_NO_THROW(prefetcher.get(first, 1));
    }
  }
  EXPECT_GT(failures, 0);
}

TEST(Loader, what_was_read_does_not_stay_in_the_process) {
  const TemporaryFolder folder;
  DataConfig config;
  config.sources = {{counting_dataset(folder, "large", std::vector<int>(64, 128 << 10)).string(), 1}};  // 32 MiB
  config.seq_len = 1024;
  const Loader loader(config, Split::train);
  Batch batch;
  loader.fill(0, 64, batch);
  const int64_t before = base::resident_bytes();
  for (int64_t sample = 64; sample + 64 <= loader.samples(); sample += 64) loader.fill(sample, 64, batch);
  EXPECT_LT(base::resident_bytes() - before, 4 << 20);
}

// Regression: each source kept as much as one alone.
TEST(Loader, sources_share_the_memory_for_packed_chunks) {
  constexpr int64_t kBound = int64_t{64} << 20;
  constexpr int kSources = 16, kDocuments = 700'000;
  const TemporaryFolder folder;
  const auto path = counting_dataset(folder, "d", std::vector<int>(kDocuments, 3)).string();
  DataConfig config;
  config.packing = "best_fit";
  config.seq_len = 64;
  for (int s = 0; s < kSources; ++s) {
    config.sources.push_back({fmt::format("{}{}", path, s), 1});
    for (const char* ending : {".bin", ".idx"}) fs::create_hard_link(path + ending, config.sources.back().path + ending);
  }
  const Loader loader(config, Split::train);
  const auto used = [] { return static_cast<int64_t>(mallinfo2().uordblks); };
  const int64_t before = used();
  if (before == 0) GTEST_SKIP() << "not this allocator";
  for (size_t s = 0; s < kSources; ++s)
    for (int64_t row = 0; row < loader.packing(s).rows(); row += loader.packing(s).unit_rows())
      static_cast<void>(loader.packing(s).pieces(row));
  EXPECT_LT(used() - before, kBound + kBound / 16) << "of documents whose pieces take " << kSources * kDocuments * 8 << " bytes";
  EXPECT_GT(used() - before, kBound / 2);
}

TEST(DataConfig, settings_read_from_toml_and_refuse_unknown_names) {
  DataConfig config;
  base::SettingsTable table;
  declare_settings(table, config);
  table.load_toml(
      "[data]\nseq_len = 128\npacking = 'best_fit'\nvalidation = ['v']\n[[data.sources]]\npath = 'x'\nweight = 2.5\n[[data.sources]]\npath "
      "= 'y'\n",
      "c.toml");
  EXPECT_EQ(config.seq_len, 128);
  ASSERT_EQ(config.sources.size(), 2u);
  EXPECT_EQ(config.sources[0].weight, 2.5);
  EXPECT_EQ(config.sources[1].path, "y");
  EXPECT_THROW(table.load_toml("[data]\nseqlen = 1\n", "c.toml"), ConfigError);
  EXPECT_THROW(check(DataConfig{}), ConfigError);
}

// However often the weights change, each source gives the rows of its order one after another.
TEST_F(TwoSources, weights_that_change_repeat_and_leave_out_no_row) {
  counting_dataset(folder, "c", {31}, 1000);
  config.sources[1] = {(folder / "c").string(), 0};
  std::mt19937_64 draw(11);
  for (int history = 0; history < 20; ++history) {
    Loader loader(config, Split::train);
    const auto unchanged = loader.batch(0, 300);
    std::vector<int64_t> changes = {0};
    std::vector<std::vector<double>> weights = {{3, 0}};
    for (int change = 0; change < 4; ++change) {
      changes.push_back(changes.back() + static_cast<int64_t>(draw() % 60));
      weights.push_back({static_cast<double>(draw() % 4), 1 + static_cast<double>(draw() % 4)});
      loader.change_weights(changes.back(), weights.back());
      EXPECT_EQ(loader.weights(), weights.back());
    }
    const auto batch = loader.batch(0, 300);
    std::vector<std::vector<int32_t>> rows(2);
    std::vector<int64_t> of_last(2, 0);
    for (int64_t sample = 0; sample < 300; ++sample) {
      const auto first = batch.inputs[static_cast<size_t>(sample * 10)];
      const size_t source = first >= 1000 ? 1 : 0;
      rows[source].push_back(first);
      if (sample >= changes.back()) ++of_last[source];
      if (sample < changes[1]) {
        ASSERT_EQ(first, unchanged.inputs[static_cast<size_t>(sample * 10)]);
      }
    }
    EXPECT_EQ(rows[0].size() + rows[1].size(), 300u);
    const auto drawn = loader.drawn(300);
    EXPECT_EQ(drawn[0].samples, static_cast<int64_t>(rows[0].size()));
    EXPECT_EQ(drawn[1].samples, static_cast<int64_t>(rows[1].size()));
    EXPECT_EQ(drawn[0].rows, 20);
    for (size_t source = 0; source < 2; ++source) {
      auto alone = config;
      alone.sources[0].weight = source == 0 ? 1 : 0, alone.sources[1].weight = source == 0 ? 0 : 1;
      const auto order = Loader(alone, Split::train).batch(0, static_cast<int64_t>(rows[source].size()));
      for (size_t i = 0; i < rows[source].size(); ++i) ASSERT_EQ(rows[source][i], order.inputs[i * 10]) << history << " " << i;
    }
    const double total = weights.back()[0] + weights.back()[1];
    for (size_t source = 0; source < 2; ++source)
      EXPECT_NEAR(static_cast<double>(of_last[source]), static_cast<double>(300 - changes.back()) * weights.back()[source] / total, 1);

    Loader resumed(config, Split::train);
    const auto state = LoaderState::from_json(loader.state(30, 250).to_json());
    resumed.restore_changes(state);
    resumed.check_resumable(state);
    EXPECT_TRUE(equal(resumed.batch(0, 300), batch));
  }
}

TEST_F(TwoSources, weights_change_forwards_only) {
  Loader loader(config, Split::train);
  EXPECT_TRUE(loader.state(1, 10).changes.empty());
  loader.change_weights(50, {1, 1});
  loader.change_weights(50, {0, 1});
  EXPECT_EQ(loader.state(1, 10).changes.size(), 2u);
  expect_error<DataError>([&] { loader.change_weights(49, {1, 1}); }, {"sample 50"});
  expect_error<DataError>([&] { loader.change_weights(60, {1}); }, {"1 weights for 2 sources"});
  expect_error<ConfigError>([&] { loader.change_weights(60, {0, 0}); }, {});
  EXPECT_EQ(loader.weights(), (std::vector<double>{0, 1}));
}

}  // namespace
}  // namespace ingot::data
