#include "report/checkpoints/section.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "base/random.h"
#include "report/plots/bar_plot.h"

namespace ingot::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

BarPlot plot_of(std::vector<Bar> bars) {
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

TEST(BarPlot, parts_are_stacked_in_the_units_of_the_drawing) {
  // A slot is an eighth of 10,000 units; the bar begins at 14 % of it, is 56 % wide, and the lane beside it 16 %.
  const auto svg = render(plot_of({{.x = {5, 5}, .heights = {1, 4}, .beside_from = 1, .beside_to = 3, .tick = 2, .text = "a<b"},
                                   {.x = {1000, 1005}, .heights = {NAN, 10}}}));
  EXPECT_THAT(svg, HasSubstr("<path class=\"c6\" d=\"M175 10000h700v-1000h-700z\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"c0\" d=\"M175 9000h700v-4000h-700zM1425 10000h700v-10000h-700z\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"c4\" d=\"M875 9000h200v-2000h-200z\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"tick\" d=\"M175 8000h900\"/>"));
  EXPECT_THAT(svg, HasSubstr("<title>a&lt;b</title>"));
  EXPECT_THAT(svg, HasSubstr(">1,000</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("T<<")));
  EXPECT_THAT(svg, Not(HasSubstr("failed")));
}

TEST(BarPlot, failures_are_bands_crosses_and_titles_and_marks_stand_before_their_bar) {
  const auto svg = render(
      plot_of({{.x = {1, 1}, .heights = {1, 1}}, {.x = {2, 2}, .heights = {}, .failed = true, .mark = "loaded", .text = "no <space>"}}));
  EXPECT_THAT(svg, HasSubstr("<path class=\"failed\" d=\"M1250 10000h1250v-10000h-1250z\"/>"));
  EXPECT_THAT(svg, HasSubstr("<g class=\"cross\"><title>no &lt;space&gt;</title><svg x=\"18.75%\""));
  EXPECT_THAT(svg, HasSubstr("<title>loaded</title><line x1=\"12.50%\""));
  EXPECT_THAT(svg, HasSubstr("<span class=\"dot failed\"></span>failed"));
}

TEST(BarPlot, what_leaves_the_frame_is_cut_and_nothing_gives_nothing) {
  EXPECT_THAT(render(plot_of({{.x = {1, 1}, .heights = {1e300, 5}, .tick = 1e9}})), HasSubstr("d=\"M175 10000h700v-10000h-700z\""));
  EXPECT_EQ(render(plot_of({})), "");
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
  // The axis ends at 10 s and 6 %: 1, 4, 1 and 2 s of the slowest rank, and 2 s that no phase explains.
  const auto at = [](double seconds) { return static_cast<int>(std::lround(seconds / 10.6 * 1e4)); };
  const auto box = [&](const char* style, int x, int width, double low, double high) {
    return fmt::format("<path class=\"{}\" d=\"M{} {}h{}v{}h-{}z\"/>", style, x, 10000 - at(low), width, at(low) - at(high), width);
  };
  EXPECT_THAT(html, HasSubstr(box("c6", 175, 700, 0, 1)));
  EXPECT_THAT(html, HasSubstr(box("c0", 175, 700, 1, 5)));
  EXPECT_THAT(html, HasSubstr(box("c5", 175, 700, 5, 6)));
  EXPECT_THAT(html, HasSubstr(box("c2", 175, 700, 6, 8)));
  EXPECT_THAT(html, HasSubstr(box("other", 175, 700, 8, 10)));
  EXPECT_THAT(html, HasSubstr(box("c3", 875, 200, 1, 4))) << "copying, meanwhile";
  EXPECT_THAT(html, HasSubstr(fmt::format("<path class=\"tick\" d=\"M175 {}h900\"/>", 10000 - at(0.5))));
  EXPECT_THAT(html, HasSubstr("step 40: 10.00 s for 7.45 GiB, 0.8000 GB/s\nrank 1, the slowest of 2: plan 1.000 s, copy 3.000 s, hash and "
                              "write 4.000 s (hash 1.500 s), sync 1.000 s\ncommit, with waiting for all ranks, 2.000 s; training waited "
                              "0.5000 s"));
  EXPECT_THAT(html, HasSubstr("<title>rank 0, step of the save 40: 1.000 GB/s</title>"));
  EXPECT_THAT(html, HasSubstr("<title>rank 1, step of the save 40: 0.8000 GB/s</title>"));
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
  EXPECT_THAT(html, HasSubstr("<rect class=\"l9\" x=\"2\" y=\"1\" width=\"1\" height=\"1\"><title>rank 1, step of the save 3: 0.05000"));
  EXPECT_THAT(html, HasSubstr("<rect class=\"l0\" x=\"2\" y=\"2\" width=\"1\" height=\"1\"><title>rank 2, step of the save 3: 1.000"));
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
  EXPECT_THAT(html, HasSubstr("step 3: failed: no &lt;space&gt;"));
  EXPECT_THAT(html, HasSubstr("from from &lt;here&gt;"));
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
  const std::regex box("M(-?[0-9]+) (-?[0-9]+)h(-?[0-9]+)(?:v(-?[0-9]+))?");
  size_t boxes = 0;
  for (std::sregex_iterator found(html.begin(), html.end(), box), end; found != end; ++found, ++boxes) {
    const int x = std::stoi((*found)[1]), y = std::stoi((*found)[2]), width = std::stoi((*found)[3]);
    const int height = (*found)[4].matched ? std::stoi((*found)[4]) : 0;
    for (const int place : {x, y, x + width, y + height}) {
      ASSERT_GE(place, 0) << found->str();
      ASSERT_LE(place, 10000) << found->str();
    }
  }
  EXPECT_GT(boxes, 50u);
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
