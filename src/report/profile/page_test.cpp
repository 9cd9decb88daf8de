#include "report/profile/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "report/commands.h"
#include "report/page/test_html.h"
#include "report/profile/storage.h"
#include "report/profile/summary.h"
#include "report/profile/test_profile.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

Measured machine_of(const plan::MachineProfile& profile, const std::string& name = "a.json") {
  return {.name = name, .has_profile = true, .profile = profile, .descriptions = {}};
}

void expect_sound(const std::string& page) {
  EXPECT_EQ(unbalanced(page), "");
  for (const char* outside : {"http://", "https://", "src=", "href=", "@import", "url("})
    EXPECT_THAT(markup_of(page), Not(HasSubstr(outside)));
  const auto body = without(without(page, "style"), "script");
  for (const char* bad : {"nan", "inf ", "\"inf", ">inf", "-inf"}) EXPECT_THAT(body, Not(HasSubstr(bad)));
}

TEST(ProfilePage, is_whole_and_shows_every_section) {
  const auto page = make_profile_page({machine_of(profile_of_formulas())}, "2026-05-01 12:00");
  expect_sound(page);
  for (const char* heading : {"What was measured", "GEMMs", "Roofline", "Memory", "Attention", "Kernels", "Within steps", "Collectives",
                              "How to read the numbers"})
    EXPECT_THAT(page, HasSubstr(fmt::format("<h2>{}</h2>", heading)));
  for (const char* fact : {"node7", "CPU of a test", "2.11.0", "build-1", "2026-01-02T03:04:05Z", "ingot bench all", "4, 4, 1"})
    EXPECT_THAT(page, HasSubstr(fact));
  EXPECT_THAT(page, HasSubstr("Steps of small models, fp32"));
  EXPECT_THAT(page, HasSubstr(">matmul</th><td>1.20</td><td>60.00 ms</td><td>50.00 ms</td>"));
  EXPECT_THAT(page, HasSubstr("GEMMs in bf16 up to <b>200.0 GFLOP/s</b>"));
  EXPECT_THAT(page, HasSubstr("memory at <b>20.00 GB/s</b>"));
  EXPECT_EQ(count(page, "class=\"chip\""), 0u) << "one machine needs no names";
}

TEST(ProfilePage, maps_have_a_cell_for_what_was_measured_and_none_for_the_rest) {
  const auto profile = profile_of_formulas();
  const auto page = make_profile_page({machine_of(profile)}, "now");
  EXPECT_EQ(count(page, R"({"kind":"heat")"), 4u) << "two values of m, two dtypes";
  size_t cells = 0;
  std::set<double> rates;
  for (const auto& plot : plots_of(page)) {
    if (plot["kind"] != "heat") continue;
    EXPECT_EQ(plot["unit"], "GFLOP/s");
    EXPECT_EQ(plot["rows"].size(), plot["row_names"].size());
    for (const auto& row : plot["rows"])
      for (const auto& cell : row)
        if (!cell.is_null()) ++cells, rates.insert(cell.get<double>());
  }
  EXPECT_EQ(cells, profile.gemm.size());
  EXPECT_TRUE(rates.contains(100));
  EXPECT_FALSE(rates.contains(0)) << "what was not measured";
}

TEST(ProfilePage, grouped_and_batched_gemms_have_maps_of_their_own) {
  auto profile = profile_of_formulas();
  for (const int64_t n : {64, 128})
    for (const int64_t k : {64, 128}) {
      profile.gemm.push_back({"fp32", "grouped", "forward", 32, n, k, 4e10, 8, 1});
      profile.gemm.push_back({"fp32", "grouped", "forward", 32, n, k, 3e10, 8, 2.5});
      profile.gemm.push_back({"fp32", "batched", "grad_input", 32, n, k, 2e10, 16});
    }
  const auto page = make_profile_page({machine_of(profile)}, "now");
  expect_sound(page);
  EXPECT_EQ(count(page, R"({"kind":"heat")"), 7u);
  for (const char* title : {"grouped forward, 8 groups, m = 32", "grouped forward, 8 groups, load imbalance 2.5, m = 32",
                            "batched grad input, 16 groups, m = 32", "grouped GEMMs", "batched GEMMs"})
    EXPECT_THAT(page, HasSubstr(title));
  EXPECT_THAT(page, HasSubstr("GEMMs in fp32 up to <b>100.0 GFLOP/s</b>"));
  // Without plain ones there is no peak, and the scale ends at the best of what there is.
  std::erase_if(profile.gemm, [](const auto& e) { return e.kind == "plain"; });
  const auto rest = make_profile_page({machine_of(profile)}, "now");
  expect_sound(rest);
  EXPECT_EQ(count(rest, R"({"kind":"heat")"), 3u);
  EXPECT_THAT(rest, HasSubstr("<th scope=\"col\">balance</th>"));
}

TEST(ProfilePage, attention_is_put_beside_the_balance) {
  auto profile = profile_of_formulas();
  auto windowed = profile.attention.front();
  windowed.window = 16;
  profile.attention.push_back(windowed);
  const auto page = make_profile_page({machine_of(profile)}, "now");
  expect_sound(page);
  EXPECT_THAT(page, HasSubstr(R"("text":"balance: 5.000 FLOPs per byte")"));
  EXPECT_THAT(page, HasSubstr(R"("text":"balance: 10.00 FLOPs per byte")"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">bf16 forward, head of 64, 8/8 heads</th><td>39</td>"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">fp32 forward, head of 64, 8/8 heads, window 16</th><td>never</td>"))
      << "4 FLOPs per byte at most";
}

TEST(ProfilePage, the_balance_is_drawn_where_every_point_lies_on_one_side_of_it) {
  for (const auto& [factor, balance] : {std::pair{1e3, "0.005"}, std::pair{1e-3, "5000"}}) {
    auto profile = profile_of_formulas();
    for (auto& e : profile.memory) e.bytes_per_s *= factor;
    EXPECT_THAT(make_profile_page({machine_of(profile)}, "now"), HasSubstr(fmt::format(R"("text":"balance: {})", balance)));
  }
}

TEST(ProfilePage, curves_have_the_values_of_the_profile) {
  const auto page = make_profile_page({machine_of(profile_of_formulas())}, "now");
  const auto triad = series_of(plot_of(page, "Memory bandwidth"), "triad", "dots");
  EXPECT_EQ(triad["y"], nlohmann::json({80, 80, 80, 80, 20, 20})) << "GB/s";
  EXPECT_THAT(page, HasSubstr("triad: 80.00 GB/s with 3 MiB in use, 20.00 GB/s with 12 MiB"));
  EXPECT_THAT(page, HasSubstr(R"({"name":"all reduce, fitted","run":0,"stroke":"dashed")")) << "the fitted line";
  EXPECT_THAT(page, HasSubstr(R"("text":"knee of all reduce")"));
  EXPECT_EQ(count(page, R"("text":"triad leaves a cache")"), 1u);
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">rms_norm</th><td>40 %</td><td>30 %</td>")) << "8 MB in 1 ms, 12 MB in 2 ms of 20 GB/s";
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">router</th><td>–</td><td>–</td>"));
}

TEST(ProfilePage, storage_is_told_of_profiles_that_have_it) {
  auto profile = profile_of_formulas();
  profile.storage = {{"random_read", "ext4", 4096, 2, true, 1e6, 250, 1e-3, 2e-3}};
  EXPECT_THAT(make_profile_page({machine_of(profile)}, "now"), HasSubstr("random_read, 4.0 KiB, 2 writers"));
  const auto rows = storage_rows(profile);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].what, "random_read, 4.0 KiB, 2 writers, past the page cache (ext4)");
  EXPECT_EQ(rows[0].operations_per_s, 250);
  EXPECT_TRUE(storage_rows(profile_of_formulas()).empty());
}

TEST(ProfilePage, two_machines_are_compared) {
  auto other = profile_of_formulas();
  for (auto& e : other.memory) e.bytes_per_s /= 4;
  other.torch = "2.12.0";
  const auto page = make_profile_page({machine_of(profile_of_formulas()), machine_of(other, "b.json")}, "now");
  expect_sound(page);
  EXPECT_EQ(count(page, "class=\"chip\""), 2u);
  EXPECT_THAT(page, HasSubstr("versions of torch differ: 2.11.0 and 2.12.0"));
  EXPECT_THAT(page, HasSubstr("<th scope=\"row\">memory</th><td>30</td><td class=\"far\">0.250</td>"));
  EXPECT_THAT(page, HasSubstr("Memory bandwidth: triad"));
  const auto plot = plot_of(page, "Memory bandwidth: triad");
  EXPECT_EQ(series_of(plot, "a.json", "dots")["y"][0], 80);
  EXPECT_EQ(series_of(plot, "b.json", "dots")["y"][0], 20);
}

TEST(ProfilePage, a_profile_with_nothing_or_one_of_each_gives_a_page) {
  plan::MachineProfile empty;
  empty.host = "node";
  expect_sound(make_profile_page({machine_of(empty)}, "now"));
  expect_sound(make_profile_page({machine_of(empty), machine_of(profile_of_formulas())}, "now"));
  auto one = profile_of_formulas();
  one.gemm.resize(1);
  one.attention.resize(1);
  one.memory.resize(1);
  one.kernels.resize(1);
  one.collectives.resize(1);
  expect_sound(make_profile_page({machine_of(one)}, "now"));
  expect_sound(make_profile_page({machine_of(one), machine_of(one)}, "now"));
}

TEST(ProfilePage, texts_from_files_cannot_become_markup) {
  auto p = profile_of_formulas();
  p.host = "<img src=x onerror=alert(1)>";
  p.commands = {"</td><script>alert(2)</script>"};
  p.kernels[0].name = "<svg onload=alert(3)>";
  p.torch = "\"'><b>";
  const auto page = make_profile_page({machine_of(p, "<i>.json"), machine_of(profile_of_formulas(), "b")}, "<now>");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_EQ(count(page, "<script"), count(page, "<figure") + 2);
  for (const char* markup : {"<img", "<svg onload", "<i>", "<now>", "'><b>"}) EXPECT_THAT(page, Not(HasSubstr(markup)));
}

TEST(ProfilePage, the_largest_and_smallest_numbers_that_a_file_may_have_give_a_page) {
  auto p = profile_of_formulas();
  p.gemm.push_back({"fp32", "plain", "forward", int64_t{1} << 48, int64_t{1} << 48, int64_t{1} << 48, 1e18});
  p.gemm.push_back({"fp32", "plain", "forward", 1, 1, 1, 1e-18});
  p.memory.push_back({"triad", int64_t{1} << 48, 1e-18});
  p.attention.push_back({"fp32", int64_t{1} << 48, int64_t{1} << 48, 1, 1, int64_t{1} << 48, 1e-12, 1e18});
  p.kernels.push_back({"adamw", "bf16", int64_t{1} << 48, int64_t{1} << 48, int64_t{1} << 48, 1e-12, 0});
  p.collectives.push_back({"all_reduce", "fp32", "strided", 1, 1, int64_t{1} << 48, 1e-12});
  expect_sound(make_profile_page({machine_of(p)}, "now"));
  expect_sound(make_profile_page({machine_of(p), machine_of(profile_of_formulas())}, "now"));
}

TEST(ProfileSummary, has_the_pages_numbers) {
  auto other = profile_of_formulas();
  other.gemm[0].flops_per_s /= 8;
  const auto json = profile_summary({machine_of(profile_of_formulas()), machine_of(other, "b.json")});
  EXPECT_EQ(json["machines"][0]["best_flops_per_s"]["bf16"], 2e11);
  EXPECT_EQ(json["machines"][0]["memory_bytes_per_s"], 2e10);
  EXPECT_EQ(json["machines"][0]["collectives"][0]["knee_bytes"], 1 << 18);
  EXPECT_EQ(json["machines"][0]["attention"].size(), 4u);
  EXPECT_EQ(json["differences"][0]["ratio"], 0.125);
  EXPECT_EQ(json["differences"][0]["section"], "GEMMs fp32");
  EXPECT_FALSE(profile_summary({machine_of(other)}).contains("differences"));
}

class ReportOfProfiles : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / fmt::format("ingot_profile_page_{}", ::getpid());
  void SetUp() override {
    fs::create_directories(folder);
    write("a.json", profile_of_formulas().to_json());
  }
  void TearDown() override { fs::remove_all(folder); }
  void write(const char* name, const std::string& text) { std::ofstream(folder / name) << text; }
};

TEST_F(ReportOfProfiles, page_lies_beside_the_profile_or_where_it_is_wanted) {
  EXPECT_EQ(run_report({.inputs = {folder / "a.json"}}), 0);
  EXPECT_THAT(base::read_file(folder / "a.html"), HasSubstr("<h1>Machine: a.json</h1>"));
  write("b.json", profile_of_formulas().to_json());
  EXPECT_EQ(run_report({.inputs = {folder / "a.json", folder / "b.json"}, .output = folder / "page.html"}), 0);
  EXPECT_THAT(base::read_file(folder / "page.html"), HasSubstr("<h1>Machines compared: a.json and b.json</h1>"));
}

TEST_F(ReportOfProfiles, other_kinds_too_many_files_and_a_page_over_its_file_are_wrong_usage) {
  write("p.json", R"({"mode":"measured"})");
  EXPECT_THROW(run_report({.inputs = {folder / "a.json", folder / "p.json"}}), base::UsageError);
  EXPECT_THROW(run_report({.inputs = {folder / "a.json", folder / "a.json", folder / "a.json"}}), base::UsageError);
  EXPECT_THROW(run_report({.inputs = {folder / "a.json"}, .output = folder / "a.json"}), base::UsageError);
  EXPECT_FALSE(fs::exists(folder / "a.html"));
}

}  // namespace
}  // namespace ingot::report
