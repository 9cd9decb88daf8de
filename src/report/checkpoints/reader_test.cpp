#include "report/checkpoints/reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "report/page/test_mutation.h"
#include "train/metrics/checkpoint_record.h"

namespace ingot::report {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;

checkpoint::SaveOutcome outcome_of(int64_t step, const std::vector<double>& write_s) {
  checkpoint::SaveOutcome out;
  out.report.step = step;
  out.report.path = "checkpoints/step";
  out.report.data_bytes = 4000000000;
  for (const double seconds : write_s) {
    auto& rank = out.report.ranks.emplace_back();
    rank = {.plan_s = 0.25, .copy_s = 0.5, .stall_s = 0.125, .hash_s = 0.375, .write_s = seconds, .sync_s = 1};
    rank.bytes = 2000000000;
  }
  out.report.phases = out.report.ranks.front();
  out.report.phases.commit_s = 0.75;
  out.report.phases.total_s = 8;
  return out;
}

std::string line_of(const nlohmann::ordered_json& json) { return json.dump() + "\n"; }

// A save as short as it can be: each rank's rate is `gb_per_s`.
std::string save_line(int64_t step, const std::vector<double>& gb_per_s, double total_s = 2) {
  std::string ranks;
  for (const double rate : gb_per_s)
    ranks += fmt::format("{}{{\"bytes\":1e9,\"write_s\":{},\"sync_s\":0}}", ranks.empty() ? "" : ",", 1 / rate);
  return fmt::format(R"({{"kind":"save","where":"folder","step":{},"ok":true,"bytes":4e9,"total_s":{},"stall_s":0.5,"ranks":[{}]}})", step,
                     total_s, ranks) +
         "\n";
}

TEST(CheckpointsReader, reads_back_what_the_trainer_writes) {
  auto failed = outcome_of(30, {1, 1});
  failed.failure = "no space";
  checkpoint::LoadReport load;
  load.phases = {.plan_s = 0.1, .read_s = 0.2, .exchange_s = 0.3, .total_s = 0.7};
  load.phases.wanted_bytes = 100;
  load.phases.read_bytes = 60;
  load.phases.received_bytes = 40;
  load.ranks = {load.phases, load.phases};
  load.ranks[1].read_s = 0.5;
  const auto read =
      read_checkpoints(line_of(train::to_json(outcome_of(10, {1, 3}), "folder")) + line_of(train::to_json(outcome_of(20, {1}), "memory")) +
                       line_of(train::to_json(failed, "folder")) + line_of(train::load_json("from", 10, load)));
  EXPECT_EQ(read.lines, 4);
  EXPECT_EQ(read.unreadable, 0);
  EXPECT_EQ(read.odd, 0);
  EXPECT_EQ(read.folder.saves, 2);
  EXPECT_EQ(read.folder.failed, 1);
  EXPECT_EQ(read.memory.saves, 1);
  ASSERT_EQ(read.folder.stretches.size(), 2u);
  const auto& save = read.folder.stretches[0].slowest;
  EXPECT_EQ(save.step, 10);
  EXPECT_EQ(save.slowest_rank, 1);
  EXPECT_EQ(save.ranks, 2);
  EXPECT_EQ(save.plan_s, 0.25);
  EXPECT_EQ(save.copy_s, 0.5);
  EXPECT_EQ(save.hash_s, 0.375);
  EXPECT_EQ(save.write_s, 3);
  EXPECT_EQ(save.sync_s, 1);
  EXPECT_EQ(save.commit_s, 0.75);
  EXPECT_THAT(read.folder.stretches[0].gb_per_s, ElementsAre(FloatEq(1), FloatEq(0.5)));
  EXPECT_THAT(read.folder.total_s, ElementsAre(8)) << "a save that failed has no place among the times";
  EXPECT_THAT(read.folder.stall_s, ElementsAre(0.125));
  EXPECT_THAT(read.folder.gb_per_s, ElementsAre(0.5));
  EXPECT_EQ(read.folder.stretches[1].failure, "no space");
  ASSERT_EQ(read.failed_saves.size(), 1u);
  EXPECT_EQ(read.failed_saves[0].step, 30);
  ASSERT_EQ(read.loads.size(), 1u);
  EXPECT_EQ(read.loads[0].from, "from");
  EXPECT_EQ(read.loads[0].slowest_rank, 1);
  EXPECT_EQ(read.loads[0].read_s, 0.5);
  EXPECT_EQ(read.loads[0].wanted_bytes, 200);
  EXPECT_EQ(read.loads[0].read_bytes, 120);
  EXPECT_EQ(read.loads[0].received_bytes, 80);
}

TEST(CheckpointsReader, a_load_marks_the_save_after_it) {
  const auto read = read_checkpoints(save_line(1, {1}) + R"({"kind":"load","step":1,"ok":true,"total_s":1,"ranks":[{}]})" + "\n" +
                                     save_line(2, {1}) + save_line(3, {1}));
  std::vector<bool> after;
  for (const auto& stretch : read.folder.stretches) after.push_back(stretch.after_load);
  EXPECT_THAT(after, ElementsAre(false, true, false));
}

TEST(CheckpointsReader, lines_from_before_there_were_saves_to_memory_went_to_the_folder) {
  const auto read = read_checkpoints(R"({"kind":"save","step":1,"ok":true,"total_s":1,"stall_s":0,"ranks":[{}]})");
  EXPECT_EQ(read.folder.saves, 1);
  EXPECT_EQ(read.odd, 0);
}

TEST(CheckpointsReader, broken_lines_are_counted_and_the_rest_is_kept) {
  const auto read =
      read_checkpoints(save_line(1, {1}) +
                       "\nnot json\n[1]\n7\n{}\n{\"kind\":\"save\"}\n{\"kind\":\"kill\",\"step\":1}\n"
                       "{\"kind\":\"save\",\"step\":-1}\n{\"kind\":\"save\",\"step\":1.5}\n{\"kind\":\"save\",\"step\":1e300}\n"
                       "{\"kind\":\"save\",\"step\":\"1\"}\n{\"kind\":7,\"step\":1}\n{\"kind\":\"load\",\"step\":1e999}\n" +
                       save_line(2, {2}) + "{\"kind\":\"save\",\"st");
  EXPECT_EQ(read.lines, 16);
  EXPECT_EQ(read.unreadable, 14);
  EXPECT_EQ(read.folder.saves, 2);
  EXPECT_EQ(read.odd, 0);
}

TEST(CheckpointsReader, values_that_nothing_measured_can_have_are_left_out_and_counted) {
  for (const char* value : {"null", "-1", "1e10", "1e300", "\"2\"", "true", "[2]", "{\"total_s\":2}"}) {
    auto text = save_line(1, {1});
    const auto at = text.find("\"total_s\":2");
    text.replace(at, 11, fmt::format("\"total_s\":{}", value));
    const auto read = read_checkpoints(text);
    EXPECT_EQ(read.odd, 1) << value;
    EXPECT_EQ(read.unreadable, 0) << value;
    ASSERT_EQ(read.folder.total_s.size(), 1u) << value;
    EXPECT_TRUE(std::isnan(read.folder.total_s[0])) << value;
    EXPECT_EQ(read.folder.stall_s[0], 0.5) << value;
  }
}

TEST(CheckpointsReader, entries_of_ranks_that_are_none_leave_the_others_their_number) {
  const auto read = read_checkpoints(
      R"({"kind":"save","step":1,"ok":true,"total_s":1,"stall_s":0,"ranks":[null,{"bytes":1e9,"write_s":2,"x":{"write_s":9},"y":[7,{"bytes":1}]},[{"bytes":5,"write_s":1}],{"bytes":1e9,"write_s":"1"},{"bytes":3e9,"write_s":1}]})");
  ASSERT_EQ(read.folder.stretches.size(), 1u);
  const auto& rates = read.folder.stretches[0].gb_per_s;
  ASSERT_EQ(rates.size(), 5u);
  EXPECT_FLOAT_EQ(rates[1], 0.5);
  EXPECT_FLOAT_EQ(rates[4], 3);
  for (const size_t none : {0u, 2u, 3u}) EXPECT_TRUE(std::isnan(rates[none])) << none;
  EXPECT_EQ(read.folder.stretches[0].slowest.slowest_rank, 1);
  EXPECT_EQ(read.odd, 1);
}

TEST(CheckpointsReader, many_saves_and_ranks_share_cells_that_keep_the_worst) {
  std::string content;
  constexpr int kSaves = 1000;
  for (int step = 1; step <= kSaves; ++step) {
    // The number of ranks changes on the way, as after a restart with more of them.
    std::vector<double> rates(step < 300 ? 100 : 1000, 4.0);
    if (step == 500) rates[777] = 0.25;
    content += save_line(step, rates, step == 123 ? 99 : 2);
  }
  const auto read = read_checkpoints(content);
  const auto& history = read.folder;
  EXPECT_EQ(history.saves, kSaves);
  EXPECT_EQ(history.ranks, 1000);
  EXPECT_EQ(history.ranks_per_row, 16);
  EXPECT_LE(history.stretches.size(), kMaxSaveStretches);
  EXPECT_GE(history.stretches.size(), kMaxSaveStretches / 2);
  int64_t saves = 0, slow_cells = 0;
  double worst_s = 0;
  for (const auto& stretch : history.stretches) {
    saves += stretch.saves;
    worst_s = std::max(worst_s, stretch.slowest.total_s);
    ASSERT_LE(stretch.gb_per_s.size(), kMaxRankRows);
    for (size_t row = 0; row < stretch.gb_per_s.size(); ++row) {
      if (stretch.gb_per_s[row] > 1) continue;
      ++slow_cells;
      EXPECT_EQ(row, 777u / 16);
      EXPECT_LE(stretch.first_step, 500);
      EXPECT_GE(stretch.last_step, 500);
    }
  }
  EXPECT_EQ(saves, kSaves);
  EXPECT_EQ(slow_cells, 1);
  EXPECT_EQ(worst_s, 99);
  const auto few = history.joined(30);
  EXPECT_LE(few.size(), 30u);
  saves = 0;
  for (const auto& stretch : few) saves += stretch.saves;
  EXPECT_EQ(saves, kSaves);
}

TEST(CheckpointsReader, a_hundred_thousand_lines_and_ten_thousand_ranks_stay_small) {
  std::string content;
  for (int step = 1; step <= 100000; ++step) content += save_line(step, {1, 2});
  for (int step = 0; step < 3; ++step) content += save_line(100001 + step, std::vector<double>(10000, 1));
  for (int i = 0; i < 500; ++i) content += R"({"kind":"load","step":1,"path":"p","total_s":1,"ranks":[]})" + std::string("\n");
  for (int i = 0; i < 500; ++i) content += R"({"kind":"save","step":1,"ok":false,"failure":"f","ranks":[]})" + std::string("\n");
  const auto read = read_checkpoints(content);
  EXPECT_EQ(read.folder.saves, 100503);
  EXPECT_EQ(read.folder.failed, 500);
  EXPECT_LE(read.folder.stretches.size(), kMaxSaveStretches);
  for (const auto& stretch : read.folder.stretches) EXPECT_LE(stretch.gb_per_s.size(), kMaxRankRows);
  EXPECT_EQ(read.load_count, 500);
  EXPECT_EQ(read.loads.size(), kMaxLoads);
  EXPECT_EQ(read.failed_saves.size(), kMaxFailedSaves);
}

TEST(CheckpointsReader, hostile_lines_neither_crash_nor_allocate_without_end) {
  EXPECT_TRUE(read_checkpoints("").empty());
  EXPECT_EQ(read_checkpoints(std::string(1 << 20, '[')).unreadable, 1);
  EXPECT_EQ(read_checkpoints("{\"kind\":\"save\",\"ranks\":" + std::string(1 << 20, '[')).unreadable, 1);
  EXPECT_EQ(read_checkpoints(std::string(17 << 20, ' ') + "x").unreadable, 1);
  std::string many = R"({"kind":"save","step":1,"total_s":1,"stall_s":0,"ranks":[{"bytes":1)";
  for (int rank = 0; rank < 100000; ++rank) many += "},{\"write_s\":3";
  const auto read = read_checkpoints(many + "}]}");
  EXPECT_EQ(read.odd, 1);
  EXPECT_EQ(read.folder.ranks, 65536);
  const std::string long_text(100000, 'x');
  EXPECT_LT(read_checkpoints(R"({"kind":"save","step":1,"ok":false,"failure":")" + long_text + "\"}").failed_saves[0].failure.size(),
            1000u);
}

TEST(CheckpointsReader, pieces_of_any_size_give_the_same_as_the_whole) {
  const std::string content = save_line(1, {1}) + "\nbroken\n" + save_line(2, {0.5});
  for (size_t size = 1; size <= content.size(); ++size) {
    CheckpointsReader reader;
    for (size_t begin = 0; begin < content.size(); begin += size) reader.feed(std::string_view(content).substr(begin, size));
    const auto read = reader.finish();
    ASSERT_EQ(read.folder.saves, 2);
    ASSERT_EQ(read.unreadable, 2);
    ASSERT_FLOAT_EQ(read.folder.stretches[1].gb_per_s[0], 0.5);
  }
}

TEST(CheckpointsReader, mutated_files_never_crash_the_reader) {
  std::string seed;
  for (int64_t step = 1; step <= 6; ++step) seed += line_of(train::to_json(outcome_of(step, {1, 2}), step % 2 ? "folder" : "memory"));
  seed += R"({"kind":"load","step":1,"path":"p","ok":true,"total_s":1,"ranks":[{"read_s":1,"read_bytes":7}]})";
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    const auto mutated = mutated_lines(seed, base::stream_key(trial, "mutation of checkpoints"));
    const auto read = read_checkpoints(mutated);
    ASSERT_EQ(read.lines, read.unreadable + read.folder.saves + read.memory.saves + read.load_count) << "trial " << trial;
    for (const auto* history : {&read.folder, &read.memory}) {
      for (const auto* column : {&history->total_s, &history->stall_s, &history->bytes}) {
        ASSERT_EQ(column->size(), static_cast<size_t>(history->saves - history->failed));
        ASSERT_THAT(*column, Each(::testing::Truly([](double value) { return std::isnan(value) || (value >= 0 && value <= 1e18); })));
      }
    }
  }
}

}  // namespace
}  // namespace ingot::report
