#include "report/parallel/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "report/commands.h"
#include "report/page/test_html.h"
#include "report/parallel/group.h"
#include "report/parallel/test_parallel.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

ParallelFile file_of(const std::string& name, const std::string& mode = "modelled") {
  return parse_parallel(schedule::to_json(parallel_sweep(), mode, "8 devices"), name);
}

TEST(ParallelPage, is_whole_and_needs_nothing_from_outside) {
  const auto page = make_parallel_page({file_of("a.json", "measured"), file_of("b.json")}, "2026-05-01 12:00");
  EXPECT_EQ(unbalanced(page), "");
  for (const char* outside : {"http://", "https://", "src=", "href=", "@import", "url("})
    EXPECT_THAT(markup_of(page), Not(HasSubstr(outside)));
  EXPECT_THAT(page, HasSubstr("<h2>a.json: measured on 8 devices</h2>"));
  EXPECT_THAT(page, HasSubstr("<h2>b.json: modelled for 8 devices</h2>"));
  EXPECT_EQ(count(page, "<figure"), 2u * 2 * 4) << "four plots of each layer of each file";
  EXPECT_EQ(count(page, "class=\"chip\""), 3u) << "methods are named once";
}

TEST(ParallelPage, every_plot_has_every_method_with_the_numbers_of_the_file) {
  const auto file = file_of("a.json");
  const auto page = make_parallel_page({file}, "now");
  const auto names = method_names({file});
  ASSERT_EQ(names.size(), 3u);
  const auto plots = plots_of(page);
  ASSERT_EQ(plots.size(), 8u);
  size_t next = 0;
  for (const auto& group : groups_of(file, names)) {
    for (const char* title : {"Time", "Exposed communication", "Received per rank", "Peak memory per rank"}) {
      const auto& plot = plots[next++];
      EXPECT_EQ(plot["title"], title);
      EXPECT_EQ(plot["x"]["log"], true);
      const auto unit = plot["y"]["label"];
      const double factor = unit == "GiB" ? 0x1p-30 : unit == "MiB" ? 0x1p-20 : 1;
      for (size_t method = 0; method < names.size(); ++method) {
        const auto dots = series_of(plot, names[method], "dots");
        EXPECT_EQ(dots["run"], method);
        EXPECT_EQ(dots["x"], nlohmann::json({8192, 16384, 65536}));
        for (size_t i = 0; i < group.seqs.size(); ++i) {
          const auto* r = group.find(method, group.seqs[i]);
          ASSERT_EQ(dots["y"][i].is_null(), !r) << title;
          if (!r) continue;
          const std::map<std::string, double> values = {{"Time", r->time_ms},
                                                        {"Exposed communication", r->exposed_ms},
                                                        {"Received per rank", static_cast<double>(schedule::received_bytes(r->ops))},
                                                        {"Peak memory per rank", static_cast<double>(r->peak_bytes)}};
          EXPECT_NEAR(dots["y"][i].get<double>(), values.at(title) * factor, 1e-5 * values.at(title) * factor);
          EXPECT_THAT(page, HasSubstr(fmt::format(" data-v=\"{}\"", r->time_ms))) << "the table's cell";
        }
      }
    }
  }
}

TEST(ParallelPage, what_does_not_fit_is_dashed_hollow_and_never_the_best) {
  auto file = file_of("a.json");
  const auto page = make_parallel_page({file}, "now");
  for (const auto& plot : plots_of(page)) {
    const auto dashed = series_of(plot, "sp, more than the device has", "dashed")["y"], holes = series_of(plot, "sp", "holes")["y"];
    EXPECT_EQ((std::vector{dashed[0].is_null(), dashed[1].is_null(), dashed[2].is_null()}), (std::vector{true, false, false}));
    EXPECT_EQ((std::vector{holes[0].is_null(), holes[1].is_null(), holes[2].is_null()}), (std::vector{true, true, false}));
    EXPECT_TRUE(series_of(plot, "sp", "line")["y"][2].is_null());
    for (const auto& y : series_of(plot, "tp", "holes")["y"]) EXPECT_TRUE(y.is_null()) << "of sp only";
  }
  EXPECT_EQ(count(page, "title=\"more than the memory of a device\""), 2u);
  for (auto& result : file.sweep.results)
    if (result.method == "sp") result.time_ms = 0.001953125;
  EXPECT_EQ(count(make_parallel_page({file}, "now"), "class=\"best\" data-v=\"0.001953125\""), 4u) << "two lengths of two layers";
  for (auto& result : file.sweep.results) result.fits = true;
  EXPECT_EQ(count(make_parallel_page({file}, "now"), "class=\"dashed"), 0u);
}

TEST(ParallelPage, operations_crossovers_and_refusals_are_told) {
  const auto page = make_parallel_page({file_of("a.json")}, "now");
  EXPECT_THAT(page, HasSubstr("<h2>Operations of a rank at 64K tokens</h2>"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"col\">received</th><th scope=\"col\">all gather</th><th scope=\"col\">all reduce</th>"));
  EXPECT_THAT(page, HasSubstr(">103</td><td title=\"64 B sent, 64 B received\">203</td>"));
  EXPECT_THAT(page, HasSubstr("attention, forward and backward, 8 ranks: from 32K tokens on <b>sp</b> needs less time than <b>tp</b>"));
  EXPECT_THAT(page, HasSubstr("from 40.5K tokens on <b>sp</b> receives fewer bytes than <b>tp</b>"));
  EXPECT_THAT(page, HasSubstr("from 9,001 tokens on <b>tp2+sp4</b> needs less memory than <b>tp</b>"));
  EXPECT_THAT(page, HasSubstr("<summary>1 combination not modelled</summary>"));
  EXPECT_THAT(page, HasSubstr("tp2+sp4, 8 ranks, 16K tokens: heads = 6 is not a multiple of 4"));
}

TEST(ParallelPage, one_length_and_zeros_give_a_page) {
  auto file = file_of("a.json");
  file.sweep.results.resize(1);
  file.sweep.crossovers.clear();
  file.sweep.refusals.clear();
  auto& result = file.sweep.results[0];
  result.time_ms = result.exposed_ms = 0;
  result.peak_bytes = 0;
  result.ops.clear();
  const auto page = make_parallel_page({file}, "now");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(markup_of(page), Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("inf")));
}

TEST(ParallelPage, texts_from_files_cannot_become_markup) {
  auto sweep = parallel_sweep();
  sweep.refusals[0].method = "<img src=x>";
  sweep.refusals[0].reason = "</ul><script>alert(1)</script>";
  const auto page =
      make_parallel_page({parse_parallel(schedule::to_json(sweep, "measured", "\"><svg onload=alert(2)>"), "<b>.json")}, "<now>");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_EQ(count(page, "<script"), count(page, "<figure") + 2);
  for (const char* markup : {"<img", "<svg onload", "<b>.json", "<now>"}) EXPECT_THAT(page, Not(HasSubstr(markup)));
}

TEST(ParallelPage, a_ninth_method_has_square_points) {
  schedule::SweepResult sweep;
  for (const auto method : schedule::all_methods()) {
    auto result = parallel_sweep().results[0];
    result.method = schedule::name_of(method);
    sweep.results.push_back(result);
  }
  const auto page = make_parallel_page({parse_parallel(schedule::to_json(sweep, "modelled", "8 devices"), "a.json")}, "now");
  EXPECT_THAT(page, HasSubstr("<span class=\"dot c7\"></span>"));
  EXPECT_THAT(page, HasSubstr("<span class=\"dot c0 square\"></span>"));
  EXPECT_EQ(series_of(plot_of(page, "Time"), schedule::name_of(schedule::all_methods()[8]), "dots")["run"], 8)
      << "the script's eighth has them";
}

class ReportOfParallel : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / fmt::format("ingot_parallel_page_{}", ::getpid());
  void SetUp() override {
    fs::create_directories(folder / "run");
    std::ofstream(folder / "a.json") << schedule::to_json(parallel_sweep(), "modelled", "8 devices");
  }
  void TearDown() override { fs::remove_all(folder); }

  std::string usage_error(const ReportOptions& options) {
    try {
      run_report(options);
    } catch (const base::UsageError& wrong) {
      return wrong.what();
    }
    return "";
  }
};

TEST_F(ReportOfParallel, page_lies_beside_the_first_file_or_where_it_is_wanted) {
  EXPECT_EQ(run_report({.inputs = {folder / "a.json"}}), 0);
  EXPECT_THAT(base::read_file(folder / "a.html"), HasSubstr("<h1>Parallel methods: a.json</h1>"));
  EXPECT_THAT(base::read_file(folder / "a.html"), HasSubstr("<h2>Modelled for 8 devices</h2>"));
  fs::copy_file(folder / "a.json", folder / "b.json");
  EXPECT_EQ(run_report({.inputs = {folder / "a.json", folder / "b.json"}, .output = folder / "page.html"}), 0);
  EXPECT_THAT(base::read_file(folder / "page.html"), HasSubstr("<h1>Parallel methods: a.json, b.json</h1>"));
}

TEST_F(ReportOfParallel, folders_beside_files_and_a_page_over_its_file_are_wrong_usage) {
  EXPECT_THAT(usage_error({.inputs = {folder / "run", folder / "a.json"}}), HasSubstr("a page of one kind at a time"));
  EXPECT_THAT(usage_error({.inputs = {folder / "a.json"}, .output = folder / "a.json"}), HasSubstr("-o PAGE.html"));
  EXPECT_THAT(usage_error({.inputs = {folder / "a.json"}, .json = true}), HasSubstr("is JSON already"));
}

TEST_F(ReportOfParallel, nothing_is_written_when_one_file_is_broken) {
  std::ofstream(folder / "b.json") << "{\"mode\":\"measured\"";
  EXPECT_THROW(run_report({.inputs = {folder / "a.json", folder / "b.json"}}), base::DataError);
  EXPECT_FALSE(fs::exists(folder / "a.html"));
  EXPECT_THROW(run_report({.inputs = {folder / "none.json"}}), base::FileError);
}

}  // namespace
}  // namespace ingot::report
