#include "report/checkpoints/section.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "base/random.h"
#include "report/page/test_html.h"
#include "report/plots/bar_plot.h"

namespace ingot::report {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

BarPlot bar_plot(std::vector<Bar> bars) {
  return {.title = "T<",
          .unit = "s",
          .x_label = "step",
          .note = "",
          .parts = {{"plan", "c6"}, {"write", "c0"}},
          .beside = {"copy", "c4"},
          .tick_name = "waited",
          .bars = std::move(bars),
          .y = {0, 10}};
}

TEST(BarPlot, has_the_parts_of_each_bar) {
  const auto html = render(bar_plot({{.x = {5, 5}, .heights = {1, 4}, .beside_from = 1, .beside_to = 3, .tick = 2, .text = "a<b"},
                                     {.x = {1000, 1005}, .heights = {NAN, 10}}}));
  const auto plot = plot_of(html, "T&lt;");
  EXPECT_EQ(plot["kind"], "bars");
  EXPECT_EQ(plot["styles"], json({"c6", "c0"}));
  EXPECT_EQ(plot["beside"], "c4");
  EXPECT_EQ(plot["bars"][0], json({{"name", "5"}, {"heights", {1, 4}}, {"text", "a<b"}, {"beside", {1, 3}}, {"tick", 2}}));
  EXPECT_EQ(plot["bars"][1].dump(), R"({"heights":[null,10],"name":"1,000","text":""})");
  EXPECT_THAT(html, Not(HasSubstr("dot failed")));
}

TEST(BarPlot, failures_have_a_key_and_marks_their_text) {
  const auto html = render(
      bar_plot({{.x = {1, 1}, .heights = {1, 1}}, {.x = {2, 2}, .heights = {}, .failed = true, .mark = "loaded", .text = "no <space>"}}));
  EXPECT_EQ(plot_of(html, "T&lt;")["bars"][1],
            json({{"name", "2"}, {"heights", json::array()}, {"text", "no <space>"}, {"failed", true}, {"mark", "loaded"}}));
  EXPECT_THAT(html, HasSubstr("<span class=\"dot failed\"></span>failed"));
  EXPECT_EQ(render(bar_plot({})), "");
}

std::vector<RunData> runs_of(const std::string& content, const std::string& name = "run") {
  std::vector<RunData> runs(1);
  runs[0].name = name;
  runs[0].checkpoints = read_checkpoints(content);
  return runs;
}

std::string save_line(int64_t step, const std::string& ranks, const std::string& where = "folder") {
  return fmt::format(
             R"({{"kind":"save","where":"{}","step":{},"ok":true,"bytes":8e9,"total_s":10,"stall_s":0.5,"commit_s":2,"ranks":[{}]}})",
             where, step, ranks) +
         "\n";
}

constexpr const char* kFast = R"({"bytes":4e9,"plan_s":1,"copy_s":3,"hash_s":1.5,"write_s":3,"sync_s":1})";
constexpr const char* kSlow = R"({"bytes":4e9,"plan_s":1,"copy_s":3,"hash_s":1.5,"write_s":4,"sync_s":1})";

TEST(CheckpointSection, runs_without_checkpoints_have_none) {
  EXPECT_EQ(checkpoint_section({}), "");
  EXPECT_EQ(checkpoint_section(runs_of("")), "");
  EXPECT_EQ(checkpoint_section(runs_of("broken\n")), "");
}

TEST(CheckpointSection, numbers_of_the_file_are_the_numbers_drawn) {
  const auto html = checkpoint_section(runs_of(save_line(40, std::string(kFast) + "," + kSlow)));
  EXPECT_THAT(html, HasSubstr("<h3>Saves to the folder</h3>"));
  const auto plot = plot_of(html, "Saves to the folder");
  EXPECT_EQ(plot["styles"], json({"c6", "c0", "c5", "c2", "other"}));
  EXPECT_EQ(plot["y"]["label"], "s");
  EXPECT_NEAR(plot["y"]["high"].get<double>(), 10.6, 1e-9);
  const auto& bar = plot["bars"][0];
  EXPECT_EQ(bar["heights"], json({1, 4, 1, 2, 2})) << "of the slowest rank, and 2 s that no phase explains";
  EXPECT_EQ(bar["beside"], json({1, 4})) << "copying, meanwhile";
  EXPECT_EQ(bar["tick"], 0.5);
  EXPECT_EQ(
      bar["text"],
      "step 40: 10.00 s for 7.45 GiB, 0.8000 GB/s\nrank 1, the slowest of 2: plan 1.000 s, copy 3.000 s, hash and write 4.000 s (hash "
      "1.500 s), sync 1.000 s\ncommit, with waiting for all ranks, 2.000 s; training waited 0.5000 s");
  EXPECT_EQ(plot_of(html, "Rate of each rank, to the folder")["rows"], json({{1}, {0.8}}));
}

TEST(CheckpointSection, a_single_rank_has_bars_but_no_map) {
  const auto html = checkpoint_section(runs_of(save_line(40, kFast)));
  EXPECT_THAT(html, HasSubstr("<h3>Saves to the folder</h3>"));
  EXPECT_THAT(html, Not(HasSubstr("Rate of each rank")));
}

TEST(CheckpointSection, a_slow_rank_has_the_strong_colour_and_a_fast_one_the_pale) {
  const std::string fast = R"({"bytes":1e9,"write_s":1})", slow = R"({"bytes":1e9,"write_s":20})";
  std::string content;
  for (int step = 1; step <= 3; ++step) content += save_line(step, fast + "," + slow + "," + fast);
  const auto html = checkpoint_section(runs_of(content));
  const auto map = plot_of(html, "Rate of each rank, to the folder");
  EXPECT_EQ(map["low_is_strong"], true);
  EXPECT_EQ(map["low"], 0);
  EXPECT_EQ(map["high"], 1);
  EXPECT_EQ(map["rows"], json({{1, 1, 1}, {0.05, 0.05, 0.05}, {1, 1, 1}}));
}

TEST(CheckpointSection, the_table_has_folder_and_memory_and_the_last_load) {
  std::string content = save_line(1, kFast) + save_line(2, kFast) + save_line(2, kFast, "memory");
  content += R"({"kind":"save","where":"folder","step":3,"ok":false,"failure":"no <space>","bytes":0,"total_s":0,"ranks":[]})";
  content += "\n";
  content +=
      R"({"kind":"load","step":2,"path":"from <here>","ok":true,"total_s":2,"ranks":[{"wanted_bytes":3e9,"read_bytes":1e9,"received_bytes":2e9},{"wanted_bytes":3e9,"read_bytes":1e9,"received_bytes":2e9}]})";
  const auto html = checkpoint_section(runs_of(content));
  const auto row = [](const char* name, const std::vector<std::string>& cells) {
    auto out = fmt::format("<tr><th scope=\"row\">{}</th>", name);
    for (const auto& cell : cells) out += "<td>" + cell + "</td>";
    return out + "</tr>";
  };
  EXPECT_THAT(html, HasSubstr(row("saves", {"3", "1"})));
  EXPECT_THAT(html, HasSubstr("… failed</th><td class=\"far\">1</td><td>0</td>"));
  EXPECT_THAT(html, HasSubstr(row("bytes, median", {"7.45 GiB", "7.45 GiB"})));
  EXPECT_THAT(html, HasSubstr(row("until complete, median", {"10.00 s", "10.00 s"})));
  EXPECT_THAT(html, HasSubstr(row("training waited, median", {"0.5000 s", "0.5000 s"})));
  EXPECT_THAT(html, HasSubstr(row("rate of all ranks, median", {"0.8000 GB/s", "0.8000 GB/s"})));
  EXPECT_THAT(html, HasSubstr(row("… wanted by all ranks", {"5.59 GiB"})));
  EXPECT_THAT(html, HasSubstr(row("… read from storage", {"1.86 GiB"})));
  EXPECT_THAT(html, HasSubstr(row("… rate of reading", {"1.000 GB/s"})));
  EXPECT_THAT(html, HasSubstr("step 3, folder: <span class=\"far\">no &lt;space&gt;</span>"));
  EXPECT_EQ(plot_of(html, "Saves to the folder")["bars"][2]["text"], "step 3: failed: no <space>\n");
  EXPECT_THAT(plot_of(html, "Loads")["bars"][0]["text"].get<std::string>(), HasSubstr("from from <here>"));
  EXPECT_THAT(html, HasSubstr("<h3>Loads</h3>"));
}

TEST(CheckpointSection, impossible_numbers_leave_no_trace_in_the_drawing) {
  static constexpr const char* kNumbers[] = {"0", "-1", "null", "1e-300", "1e9", "1e300", "1e18", "0.5", "\"x\"", "[]", "{}", "true"};
  std::string content;
  for (uint64_t line = 0; line < 400; ++line) {
    auto number = [&, draw = uint64_t{0}]() mutable {
      return kNumbers[static_cast<size_t>(base::uniform_at(base::stream_key(line, "number"), draw++) * std::size(kNumbers))];
    };
    content += fmt::format(
        R"({{"kind":"{}","where":"folder","step":{},"ok":true,"bytes":{},"total_s":{},"stall_s":{},"commit_s":{},"ranks":[{{"bytes":{},"plan_s":{},"write_s":{},"sync_s":{},"copy_s":{},"read_s":{},"read_bytes":{}}}]}})",
        line % 5 ? "save" : "load", line, number(), number(), number(), number(), number(), number(), number(), number(), number(),
        number(), number());
    content += "\n";
  }
  const auto html = checkpoint_section(runs_of(content));
  EXPECT_FALSE(std::regex_search(html, std::regex("\\b-?(nan|inf)\\b")));
  size_t bars = 0;
  for (const auto& plot : plots_of(html)) {
    if (plot["kind"] != "bars") continue;
    for (const auto& bar : plot["bars"]) {
      ++bars;
      for (const auto& height : bar["heights"]) ASSERT_TRUE(height.is_number() && height >= 0) << bar;
    }
  }
  EXPECT_GT(bars, 50u);
}

TEST(CheckpointSection, many_saves_of_many_ranks_and_runs_stay_small) {
  std::string content;
  for (int step = 1; step <= 2000; ++step) {
    std::string ranks;
    for (uint64_t rank = 0; rank < 300; ++rank)
      ranks += fmt::format("{}{{\"bytes\":1000000000,\"write_s\":{:.3f}}}", ranks.empty() ? "" : ",",
                           0.5 + base::uniform_at(static_cast<uint64_t>(step), rank));
    content += save_line(step, ranks, step % 2 ? "folder" : "memory");
  }
  auto runs = runs_of(content);
  EXPECT_LT(checkpoint_section(runs).size(), size_t{600} << 10);
  runs.resize(40, runs[0]);
  const auto html = checkpoint_section(runs);
  EXPECT_LT(html.size(), size_t{700} << 10);
  EXPECT_THAT(html, HasSubstr("Drawn for the first 4 runs only"));
}

}  // namespace
}  // namespace ingot::report
