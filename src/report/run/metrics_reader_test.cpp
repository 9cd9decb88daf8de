#include "report/run/metrics_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "report/page/test_mutation.h"
#include "train/metrics/step_record.h"

namespace ingot::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MetricsReader, reads_back_what_the_trainer_writes) {
  train::StepRecord record{.step = 3, .steps = 9, .tokens = 4096, .loss = 2.5, .grad_norm = 0.5, .lr = 1e-4, .step_ms = 100};
  record.memory_peak_bytes = int64_t{1} << 40;
  record.validation_loss = 2.75;
  record.expert_load = train::expert_load_of({{10, 30}, {20, 20}});
  record.skipped = true;
  record.evaluations = {{"items", 4, {{"acc", 0.5, 0.25, true}, {"acc_norm", 0.75, 0.2, true}}},
                        {"b", 2, {{"loss", NAN, {}, false}, {"x", 1, {}, true}}}};
  const auto metrics = read_metrics(train::to_json(record).dump() + "\n");
  EXPECT_THAT(metrics.step, ElementsAre(3));
  EXPECT_THAT(metrics[Field::steps], ElementsAre(9));
  EXPECT_THAT(metrics[Field::tokens], ElementsAre(4096));
  EXPECT_THAT(metrics[Field::loss], ElementsAre(2.5));
  EXPECT_THAT(metrics[Field::lr], ElementsAre(1e-4));
  EXPECT_THAT(metrics[Field::memory_peak_bytes], ElementsAre(0x1p40));
  EXPECT_THAT(metrics[Field::validation_loss], ElementsAre(2.75));
  EXPECT_THAT(metrics[Field::expert_imbalance], ElementsAre(1.5));
  ASSERT_EQ(metrics.load.size(), 1u);
  EXPECT_THAT(metrics.load[0].layers, ElementsAre(1.5f, 1.0f));
  EXPECT_THAT(metrics.expert_tokens, ElementsAre(ElementsAre(10, 30), ElementsAre(20, 20)));
  EXPECT_EQ(metrics.lines.skipped, 1);
  ASSERT_EQ(metrics.evaluations.size(), 2u);
  EXPECT_EQ(metrics.evaluations[0].task + " " + metrics.evaluations[0].metric, "items acc");
  EXPECT_THAT(metrics.evaluations[0].step, ElementsAre(3));
  EXPECT_THAT(metrics.evaluations[0].value, ElementsAre(0.5));
  EXPECT_THAT(metrics.evaluations[0].error, ElementsAre(0.25));
  EXPECT_EQ(metrics.evaluations[1].metric, "loss") << "the first stands for the task, also where it is no number";
  EXPECT_TRUE(std::isnan(metrics.evaluations[1].value[0]));
}

TEST(MetricsReader, evaluations_that_are_done_again_replace_the_first) {
  const auto metrics =
      read_metrics(R"({"step":2,"evaluations":{"a":{"items":1,"acc":0.5}}})"
                   "\n"
                   R"({"step":4,"evaluations":{"a":{"items":1,"acc":0.6,"acc_stderr":0.1,"x":{"y":7}},"b":3,"c":[{"acc":1}]}})"
                   "\n"
                   R"({"step":3})"
                   "\n"
                   R"({"step":4,"evaluations":{"a":{"items":1,"acc":0.7}},"checkpoints":[{"a":{"b":{"acc":9}}}]})");
  ASSERT_EQ(metrics.evaluations.size(), 1u);
  EXPECT_THAT(metrics.evaluations[0].step, ElementsAre(2, 4));
  EXPECT_THAT(metrics.evaluations[0].value, ElementsAre(0.5, 0.7));
}

TEST(MetricsReader, losses_of_sources_are_means_by_tokens_over_stretches_of_bounded_number) {
  std::string text;
  for (int step = 1; step <= 5000; ++step)
    text += fmt::format(
                R"({{"step":{},"source_loss":{{"d/a":{{"loss":{},"tokens":{}}}{}}}}})", step, step % 2 == 0 ? 1 : 4, step % 2 == 0 ? 2 : 1,
                step > 2500 ? R"(,"d/b":{"loss":7,"tokens":5,"x":{"loss":9}},"d/c":{"loss":null,"tokens":3},"d/d":3,"d/e":[1])" : "") +
            "\n";
  const auto metrics = read_metrics(text);
  EXPECT_EQ(metrics.lines.unreadable, 0);
  EXPECT_THAT(metrics.sources, ElementsAre("d/a", "d/b"));
  ASSERT_LE(metrics.source_loss.size(), 2 * kMaxStretches);
  ASSERT_GE(metrics.source_loss.size(), kMaxStretches / 2);
  EXPECT_NEAR(metrics.source_loss[0].loss(0), 2, 1e-12) << "4 nats of one token, 1 of each of two";
  EXPECT_TRUE(std::isnan(metrics.source_loss[0].loss(1)));
  EXPECT_EQ(metrics.source_loss.back().loss(1), 7);
  double tokens = 0;
  for (const auto& stretch : metrics.source_loss) tokens += stretch.tokens[0];
  EXPECT_EQ(tokens, 7500);
}

TEST(MetricsReader, losses_of_sources_that_are_done_again_replace_the_first) {
  const auto metrics = read_metrics(R"({"step":1,"source_loss":{"a":{"loss":3,"tokens":1}}})"
                                    "\n"
                                    R"({"step":2,"source_loss":{"a":{"loss":9,"tokens":1}}})"
                                    "\n"
                                    R"({"step":2,"source_loss":{"a":{"loss":2,"tokens":4}}})");
  ASSERT_EQ(metrics.source_loss.size(), 2u);
  EXPECT_EQ(metrics.source_loss[1].loss(0), 2);
}

TEST(MetricsReader, expert_load_may_also_be_the_bare_ratio_or_the_bare_matrix) {
  const auto metrics = read_metrics("{\"step\":1,\"expert_load\":1.75}\n{\"step\":2,\"expert_load\":[[1,3],[2,2]],\"loss\":4}\n");
  EXPECT_THAT(metrics[Field::expert_imbalance], ElementsAre(1.75, 1.5));
  EXPECT_EQ(metrics[Field::loss][1], 4);
  EXPECT_THAT(metrics.load.back().layers, ElementsAre(1.5f, 1.0f));
}

TEST(MetricsReader, fields_of_the_same_name_elsewhere_in_a_line_do_not_count) {
  const auto metrics = read_metrics(
      R"({"x":{"loss":9,"max":9},"y":[1,{"step":7,"loss":8},[2]],"step":1,"loss":2,"expert_load":{"max":6,"mean":3,"z":{"max":1}}})");
  EXPECT_THAT(metrics.step, ElementsAre(1));
  EXPECT_THAT(metrics[Field::loss], ElementsAre(2));
  EXPECT_THAT(metrics[Field::expert_imbalance], ElementsAre(2));
}

TEST(MetricsReader, broken_lines_are_counted_and_the_rest_is_kept) {
  const auto metrics = read_metrics(
      "{\"step\":1,\"loss\":3}\n\n  \nnot "
      "json\n[1,2]\n7\ntrue\n{\"loss\":3}\n{\"step\":-1}\n{\"step\":1.5}\n{\"step\":1e300}\n{\"step\":\"2\"}\n"
      "{\"step\":2,\"loss\":null,\"nonfinite\":{\"loss\":\"nan\"}}\n{\"step\":3,\"loss\":1e308}\n{\"step\":4,\"lo");
  EXPECT_THAT(metrics.step, ElementsAre(1, 2, 3));
  EXPECT_EQ(metrics.lines.total, 15);
  EXPECT_EQ(metrics.lines.empty, 2);
  EXPECT_EQ(metrics.lines.unreadable, 10);
  EXPECT_EQ(metrics.lines.nonfinite, 1);
  EXPECT_TRUE(std::isnan(metrics[Field::loss][1]));
  EXPECT_TRUE(std::isnan(metrics[Field::loss][2])) << "a value that no plot can hold";
}

TEST(MetricsReader, going_back_supersedes_the_later_steps_and_marks_a_restart) {
  const auto metrics = read_metrics("{\"step\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":3}\n{\"step\":2,\"loss\":7}\n{\"step\":3}\n");
  EXPECT_THAT(metrics.step, ElementsAre(1, 2, 3));
  EXPECT_EQ(metrics[Field::loss][1], 7);
  EXPECT_EQ(metrics.lines.redone, 2);
  ASSERT_EQ(metrics.restarts.size(), 1u);
  EXPECT_EQ(metrics.restarts[0].step, 2);
  EXPECT_EQ(metrics.restarts[0].row, 1u);
  EXPECT_THAT(metrics.restarts[0].what, HasSubstr("went back from step 3"));
}

TEST(MetricsReader, resumed_lines_and_long_pauses_are_restarts) {
  const auto metrics = read_metrics(
      "{\"step\":1,\"time_s\":1000,\"step_ms\":500}\n{\"step\":2,\"time_s\":1010,\"step_ms\":500}\n{\"step\":3,\"time_s\":1300,\"step_ms\":"
      "500}\n"
      "{\"step\":4,\"time_s\":1310,\"step_ms\":500,\"resumed\":true}\n");
  ASSERT_EQ(metrics.restarts.size(), 2u);
  EXPECT_EQ(metrics.restarts[0].what, "no step for 4 min 50 s");
  EXPECT_EQ(metrics.restarts[1].what, "resumed");
}

TEST(MetricsReader, load_of_a_long_run_keeps_its_mean_in_bounded_space) {
  std::string content;
  double sum = 0;
  for (int step = 1; step <= 20000; ++step) {
    const double ratio = 1 + step % 7;
    sum += ratio;
    content += fmt::format("{{\"step\":{},\"expert_load\":{{\"layers\":[{},2]}}}}\n", step, ratio);
  }
  const auto metrics = read_metrics(content);
  EXPECT_LE(metrics.load.size(), 2 * kMaxStretches);
  EXPECT_GE(metrics.load.size(), kMaxStretches / 2);
  double lines = 0, mean = 0;
  for (const auto& stretch : metrics.load) {
    lines += static_cast<double>(stretch.lines);
    mean += static_cast<double>(stretch.lines) * stretch.layers[0];
    EXPECT_EQ(stretch.layers[1], 2);
  }
  EXPECT_EQ(lines, 20000);
  EXPECT_NEAR(mean / lines, sum / 20000, 1e-3);
  EXPECT_EQ(metrics.load.back().last_step, 20000);
}

TEST(MetricsReader, pieces_of_any_size_give_the_same_as_the_whole) {
  const std::string content = "{\"step\":1,\"loss\":3}\n\nbroken\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1}";
  for (size_t size = 1; size <= content.size(); ++size) {
    MetricsReader reader(static_cast<int64_t>(content.size()));
    for (size_t begin = 0; begin < content.size(); begin += size) reader.feed(std::string_view(content).substr(begin, size));
    const auto metrics = reader.finish();
    ASSERT_THAT(metrics[Field::loss], ElementsAre(3, 2, 1));
    ASSERT_EQ(metrics.lines.total, 5);
    ASSERT_EQ(metrics.lines.unreadable, 1);
  }
}

TEST(MetricsReader, hostile_lines_neither_crash_nor_allocate_without_end) {
  EXPECT_EQ(read_metrics("").lines.total, 0);
  EXPECT_EQ(read_metrics(std::string(1 << 20, '[')).lines.unreadable, 1);
  EXPECT_EQ(read_metrics("{\"step\":1,\"a\":" + std::string(1 << 20, '[')).lines.unreadable, 1);
  EXPECT_EQ(read_metrics(std::string(5 << 20, ' ') + "x").lines.unreadable, 1);
  std::string wide = "{\"step\":1,\"expert_load\":[";
  for (int i = 0; i < 5000; ++i) wide += "[1],";
  wide += "[1]]}";
  EXPECT_LE(read_metrics(wide).expert_tokens.size(), 1024u);
  // Load shapes that change from line to line.
  const auto changing =
      read_metrics("{\"step\":1,\"expert_load\":[[1,2],[3]]}\n{\"step\":2,\"expert_load\":[[]]}\n{\"step\":3,\"expert_load\":[[0,0]]}\n");
  EXPECT_EQ(changing.step.size(), 3u);
}

TEST(MetricsReader, mutated_files_never_crash_the_reader) {
  std::string seed;
  for (int64_t step = 1; step <= 12; ++step) {
    train::StepRecord record{.step = step, .steps = 12, .tokens = step, .loss = 3, .resumed = step == 5};
    record.expert_load = train::expert_load_of({{step, 2}, {3, 4}});
    seed += train::to_json(record).dump() + "\n";
  }
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    const auto mutated = mutated_lines(seed, base::stream_key(trial, "mutation"));
    const auto metrics = read_metrics(mutated);
    ASSERT_LE(metrics.step.size(), static_cast<size_t>(metrics.lines.total));
    for (const auto& column : metrics.columns) ASSERT_EQ(column.size(), metrics.step.size());
    ASSERT_TRUE(std::is_sorted(metrics.step.begin(), metrics.step.end(), std::less_equal<>())) << "trial " << trial;
    for (const auto& restart : metrics.restarts) ASSERT_LT(restart.row, metrics.step.size());
  }
}

}  // namespace
}  // namespace ingot::report
