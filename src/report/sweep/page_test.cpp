// Results of a sweep read back and made into a page.
#include "report/sweep/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/files.h"
#include "report/page/test_html.h"
#include "report/page/test_mutation.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

SweepResults sweep() {
  SweepResults s;
  s.definition = "config = \"c.toml\"\n";
  s.metric = "loss";
  s.settings = {"optimizer.lr", "optimizer.name<script>"};
  s.rungs = {10, 40};
  s.trials = {{"000", {"1e-4", "muon"}}, {"001", {"1e-3", "adamw"}}, {"002", {"1e-2", "muon"}}, {"003", {"1e-1", "</td>"}}};
  const auto result = [&](const char* trial, int64_t rung, TrialStatus status, double metric) {
    s.results.push_back(
        {.trial = trial, .rung = rung, .step = rung == 0 ? 10 : 40, .status = status, .metric = metric, .seconds = 2, .message = {}});
  };
  result("000", 0, TrialStatus::done, 4), result("001", 0, TrialStatus::failed, NAN), result("002", 0, TrialStatus::done, 3);
  result("003", 0, TrialStatus::diverged, NAN), result("001", 0, TrialStatus::done, 3.5);  // tried again
  result("001", 1, TrialStatus::done, 2.5), result("002", 1, TrialStatus::done, 2.75);
  return s;
}

fs::path written(const SweepResults& s, const std::string& more = {}) {
  const fs::path folder =
      fs::path(::testing::TempDir()) / ("ingot_sweep_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
  fs::remove_all(folder);
  base::make_directories(folder);
  auto text = first_line(s) + "\n";
  for (const auto& r : s.results) text += line_of(r) + "\n";
  base::write_file_atomically(folder / "sweep.jsonl", text + more);
  return folder;
}

TEST(SweepResults, are_read_as_they_were_written_and_torn_lines_are_left_out) {
  const auto s = sweep();
  const auto read = read_sweep(written(s, "{\"trial\": \"0"));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->trials, s.trials);
  EXPECT_EQ(read->rungs, s.rungs);
  ASSERT_EQ(read->results.size(), s.results.size());
  EXPECT_EQ(read->at("001", 0)->metric, 3.5);
  EXPECT_EQ(read->at("000", 1), nullptr);
  std::vector<std::string> order;
  for (const auto* r : read->ranking()) order.push_back(r->trial);
  EXPECT_EQ(order, (std::vector<std::string>{"001", "002", "000"}));  // those that came further first
  EXPECT_FALSE(read_sweep(::testing::TempDir()).has_value());
}

TEST(SweepResults, of_damaged_files_are_an_error_and_nothing_else) {
  const auto folder = written(sweep());
  const auto whole = base::read_file(folder / "sweep.jsonl");
  for (uint64_t key = 0; key < 300; ++key) {
    base::write_file_atomically(folder / "sweep.jsonl", mutated_lines(whole, key));
    try {
      if (const auto read = read_sweep(folder)) make_sweep_page(*read, folder, "now");
    } catch (const base::DataError&) {
    }
  }
}

TEST(SweepPage, says_which_run_is_best_and_escapes_what_files_say) {
  const auto s = sweep();
  const auto page = make_sweep_page(s, written(s), "today");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("The best is 001: optimizer.lr = 1e-3"));
  EXPECT_THAT(page, HasSubstr("1 diverged"));
  EXPECT_EQ(count(markup_of(page), "<polyline"), 3u);
  EXPECT_THAT(page, HasSubstr("out at rung 1"));
  EXPECT_EQ(count(markup_of(page), "<script>"), 0u);
  EXPECT_FALSE(plot_of(page, "loss against optimizer.lr").is_null());
}

TEST(SweepPage, of_a_sweep_that_has_just_begun_is_a_table) {
  auto s = sweep();
  s.results.clear();
  const auto page = make_sweep_page(s, written(s), "today");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_EQ(count(page, "waiting"), 4u);
}

}  // namespace
}  // namespace ingot::report
