#include "report/run/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "report/commands.h"
#include "report/page/test_html.h"
#include "report/run/fake_run.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PageTest : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_page_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
};

TEST_F(PageTest, page_of_several_runs_is_whole_and_needs_nothing_from_outside) {
  write_fake_run(
      folder / "nano",
      {.steps = 300, .finished = 300, .moe_layers = 3, .resumed_after = {100}, .save_every = 20, .memory_every = 5, .failed_saves = {60}});
  write_fake_run(folder / "small", {.seed = 2, .steps = 300, .finished = 200, .tokens_per_step = 65536, .prediction_error = 0.3});
  const auto page = make_page(read_runs({folder / "nano", folder / "small"}), "2026-05-01 12:00");
  EXPECT_EQ(unbalanced(page), "");
  for (const char* outside : {"http://", "https://", "src=", "href=", "@import", "url("})
    EXPECT_EQ(markup_of(page).find(outside), std::string::npos) << outside;
  for (const char* part : {"<h3>Loss</h3>", "<h3>Gradient norm</h3>", "<h3>Learning rate</h3>", "<h3>Throughput</h3>", "<h3>Step time</h3>",
                           "<h3>Peak memory</h3>", "<h3>Expert imbalance</h3>", "Busiest expert of each layer, nano",
                           "Predicted beside measured", "recompute not counted", "<h2>Checkpoints</h2>",
                           "<h3>Saves to the folder, nano</h3>", "<h3>Rate of each rank, to the folder, nano</h3>",
                           "<h3>Saves to memory, nano</h3>", "<h3>Loads, nano</h3>", R"("mark":"a checkpoint was loaded before step 120")",
                           "step 60: failed: rank 3: cannot write data_3: No space left on \\u003cdevice>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_NE(page.find(R"("text":"nano: resumed, no step for 5 min 01 s before step 101")"), std::string::npos);
  EXPECT_NE(page.find("class=\"far\">+"), std::string::npos) << "a prediction that is 30 % off is marked";
  EXPECT_NE(page.find("<th scope=\"row\">train.batch_size</th><td>32</td><td>64</td>"), std::string::npos);
  EXPECT_NE(page.find(R"("x":{"label":"tokens")"), std::string::npos) << "runs with different batches are compared by tokens";
  EXPECT_EQ(count(page, R"("stroke":"dashed")"), 4u) << "step time and memory of two runs";
}

TEST_F(PageTest, evaluations_are_plotted_with_their_intervals) {
  write_fake_run(folder / "run", {.steps = 40, .finished = 40, .evaluate_every = 10});
  const auto page = make_page({read_run(folder / "run")}, "now");
  EXPECT_EQ(unbalanced(page), "");
  for (const char* part :
       {"<h2>Evaluations</h2>", "<h3>agreement</h3>", "<h3>&lt;texts&gt;</h3>", "interval, low end", "interval, high end"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(count(page, R"("stroke":"faint")"), 2u) << "the other task has no standard error";
  write_fake_run(folder / "without", {.steps = 20, .finished = 20});
  EXPECT_EQ(make_page({read_run(folder / "without")}, "now").find("<h2>Evaluations"), std::string::npos);
}

TEST_F(PageTest, sources_have_a_plot_and_a_table) {
  write_fake_run(folder / "run", {.steps = 40, .finished = 40, .sources = {"data/<web>", "data/books"}});
  const auto page = make_page({read_run(folder / "run")}, "now");
  EXPECT_EQ(unbalanced(page), "");
  for (const char* part : {"<h2>Sources</h2>", "<h3>Loss of each source</h3>", "<th scope=\"row\">&lt;web&gt;</th>", "<td>33.3 %</td>",
                           "<th scope=\"row\">books</th>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  write_fake_run(folder / "without", {.steps = 20, .finished = 20});
  EXPECT_EQ(make_page({read_run(folder / "without")}, "now").find("<h2>Sources"), std::string::npos);
}

TEST_F(PageTest, a_run_without_checkpoints_has_no_such_section) {
  write_fake_run(folder / "run", {.steps = 20, .finished = 20});
  EXPECT_EQ(make_page({read_run(folder / "run")}, "now").find("Checkpoints</h2>"), std::string::npos);
}

TEST_F(PageTest, names_and_values_from_files_cannot_become_markup) {
  const auto evil = folder / "<img src=x onerror=alert(1)>";
  write_fake_run(evil, {.steps = 20, .finished = 20});
  std::ofstream(evil / "config.toml") << "[model]\nfamily = \"<script>alert(2)</script>\"\n'<b>' = '\"onload=\"x'\n";
  std::ofstream(evil / "run.json")
      << R"({"model":"</td><script>alert(3)</script>","device":"\"><svg onload=alert(4)>","mfu_convention":"<i>"})";
  std::ofstream(evil / "log.txt") << "2026-05-01 12:00:00.000 error </pre><script>alert(5)</script>\n";
  std::ofstream(evil / "metrics.jsonl", std::ios::app) << "<script>alert(6)</script>\n";
  std::ofstream(evil / "checkpoints.jsonl")
      << R"({"kind":"save","where":"<script>","step":5,"ok":false,"failure":"</title><script>alert(7)</script>"})"
      << "\n"
      << R"({"kind":"load","step":5,"path":"\"></title><svg onload=alert(8)>","total_s":1,"ranks":[]})"
      << "\n<script>alert(9)</script>\n";
  const auto page = make_page({read_run(evil)}, "<now>");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_EQ(count(page, "<script"), count(page, "<figure") + 2);
  EXPECT_EQ(count(page, "</script"), count(page, "<figure") + 2);
  for (const char* markup : {"<img", "<svg onload", "<b>'", "<i>", "<now>"}) EXPECT_EQ(page.find(markup), std::string::npos) << markup;
}

TEST_F(PageTest, a_million_steps_of_four_runs_stay_below_two_megabytes_slow) {
  std::string content;
  content.reserve(size_t{100} << 20);
  for (int step = 1; step <= 1000000; ++step) {
    const int noise = static_cast<int>((static_cast<unsigned>(step) * 2654435761u) >> 24);
    fmt::format_to(std::back_inserter(content),
                   "{{\"step\":{},\"loss\":{}.{:03},\"grad_norm\":0.{:03},\"lr\":1e-4,\"step_ms\":{},\"tokens_per_s\":{}}}\n", step,
                   3 + step % 2, noise, noise, 500 + noise, 1000 + noise);
  }
  std::vector<RunData> runs(4);
  runs[0].metrics = read_metrics(content);
  ASSERT_EQ(runs[0].metrics.step.size(), 1000000u);
  for (size_t r = 0; r < runs.size(); ++r) {
    runs[r].name = "run " + std::to_string(r);
    runs[r].metrics = runs[0].metrics;
  }
  const auto page = make_page(runs, "now");
  EXPECT_LT(page.size(), size_t{2} << 20);
}

TEST_F(PageTest, forty_runs_share_the_room) {
  write_fake_run(folder / "run", {.steps = 3000, .finished = 3000, .moe_layers = 2});
  const auto page = make_page(read_runs(std::vector<fs::path>(40, folder / "run")), "now");
  EXPECT_LT(page.size(), size_t{2} << 20);
}

TEST_F(PageTest, one_step_and_constant_values_give_a_page) {
  write_fake_run(folder / "one", {.steps = 1, .finished = 1, .validate_every = 1});
  std::ofstream(folder / "one" / "metrics.jsonl") << "{\"step\":0,\"loss\":0,\"lr\":0,\"grad_norm\":0,\"step_ms\":0}\n";
  EXPECT_EQ(unbalanced(make_page({read_run(folder / "one")}, "now")), "");
}

TEST_F(PageTest, command_writes_the_page_and_refuses_nonsense) {
  write_fake_run(folder / "run", {.steps = 50, .finished = 50});
  EXPECT_EQ(run_report({.inputs = {folder / "run"}}), 0);
  EXPECT_THAT(base::read_file(folder / "run" / "report.html"), HasSubstr("<h1>run</h1>"));
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_report({.inputs = {folder / "run"}, .output = folder / "page.html", .json = true}), 0);
  const auto document = nlohmann::json::parse(::testing::internal::GetCapturedStdout());
  EXPECT_EQ(document["runs"][0]["last_step"], 50);
  EXPECT_THROW(run_report({}), base::UsageError);
  EXPECT_THROW(run_report({.inputs = {folder / "none"}}), base::DataError);
  EXPECT_THROW(run_report({.inputs = {folder / "run"}, .output = folder / "no" / "page.html"}), base::FileError);
}

}  // namespace
}  // namespace ingot::report
