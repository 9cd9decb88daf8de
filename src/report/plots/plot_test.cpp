#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "report/page/test_html.h"
#include "report/plots/heat_map.h"
#include "report/plots/line_plot.h"

namespace ingot::report {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Axis, constants_and_zeros_get_room) {
  EXPECT_LT(fitted(5, 5, false, false, Format::plain).low, 5);
  EXPECT_GT(fitted(0, 0, false, true, Format::plain).high, 0);
  EXPECT_EQ(fitted(0.1, 4, false, false, Format::plain).low, 0) << "nothing below zero for what cannot be negative";
}

TEST(Downsample, keeps_extremes_order_and_gaps) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 54321 ? 1000.0 : i == 54322 ? -1000.0 : i >= 20000 && i < 30000 ? NAN : std::sin(i * 0.001));
  }
  const auto thin = min_max(curve, 0, 99999, 100);
  EXPECT_LE(thin.x.size(), 200u);
  EXPECT_TRUE(std::is_sorted(thin.x.begin(), thin.x.end()));
  const auto high = std::find(thin.y.begin(), thin.y.end(), 1000.0), low = std::find(thin.y.begin(), thin.y.end(), -1000.0);
  ASSERT_NE(high, thin.y.end());
  ASSERT_NE(low, thin.y.end());
  EXPECT_LT(high, low);
  EXPECT_EQ(thin.x[static_cast<size_t>(high - thin.y.begin())], 54321);
  EXPECT_GE(std::count_if(thin.y.begin(), thin.y.end(), [](double y) { return std::isnan(y); }), 8);
  const Curve few{{1, 2, 3}, {4, NAN, 6}};
  EXPECT_EQ(min_max(few, 1, 3, 100).x, few.x);
}

TEST(Downsample, means_and_medians_of_stretches) {
  const Curve curve{{0, 1, 2, 3, 4, 5}, {1, 2, 9, NAN, 10, 20}};
  EXPECT_THAT(means(curve, 0, 5, 2).y, ElementsAre(4, 15));
  EXPECT_THAT(medians(curve, 0, 5, 2).y, ElementsAre(2, 20));
  EXPECT_THAT(means(curve, 0, 5, 2).x, ElementsAre(1, 4.5));
}

std::string line_plot(Curve curve) {
  Plot plot{.title = "T", .unit = "ms", .x_label = "step", .x = {0, 10}, .y = {0, 100, false, Format::count}};
  plot.series.push_back({"a<b", 9, Stroke::dots, std::move(curve)});
  plot.marks = {{5, 1, "</script>"}, {NAN, 0, "nowhere"}};
  return render(plot);
}

TEST(LinePlot, has_axes_series_and_marks_for_the_script) {
  const auto plot = plot_of(line_plot({{0, 5, 10}, {0, 1.23456789, 25}}), "T");
  EXPECT_EQ(plot["kind"], "lines");
  EXPECT_EQ(plot["x"], json({{"label", "step"}, {"format", "plain"}, {"low", 0}, {"high", 10}, {"log", false}}));
  EXPECT_EQ(plot["y"], json({{"label", "ms"}, {"format", "count"}, {"low", 0}, {"high", 100}, {"log", false}}));
  EXPECT_EQ(plot["series"], json::array({{{"name", "a<b"}, {"run", 9}, {"stroke", "dots"}, {"x", {0, 5, 10}}, {"y", {0, 1.23457, 25}}}}));
  EXPECT_EQ(plot["marks"], json::array({{{"x", 5}, {"run", 1}, {"text", "</script>"}}}));
}

TEST(LinePlot, what_json_has_no_number_for_is_a_gap_and_large_steps_keep_every_digit) {
  const auto series = plot_of(line_plot({{0, 1, 2, 3, 123456789}, {NAN, INFINITY, -INFINITY, 1e300, 5e-324}}), "T")["series"][0];
  EXPECT_EQ(series["y"].dump(), "[null,null,null,1e+300,5e-324]");
  EXPECT_EQ(series["x"].dump(), "[0,1,2,3,123456789]");
}

TEST(LinePlot, no_text_can_end_the_script_element) {
  for (const char* text : {"</script><script>alert(1)</script>", "<!--<script>", "]]>", "\xff\"\\\n\xe2\x80\xa8"}) {
    Plot plot{.title = text,
              .unit = text,
              .x_label = text,
              .note = text,
              .series = {{text, 0, Stroke::line, {{1}, {2}}}},
              .marks = {{1, 0, text}},
              .x = {},
              .y = {}};
    const auto html = render(plot);
    EXPECT_EQ(count(html, "<script"), 1u) << text;
    EXPECT_EQ(count(html, "</script"), 1u) << text;
    EXPECT_EQ(count(html, "<!--"), 0u) << text;
    EXPECT_EQ(unbalanced(html), "") << text;
    ASSERT_EQ(plots_of(html).size(), 1u) << text;
  }
  const std::string plain = "</script> \"\\\n é";
  EXPECT_EQ(plot_of(render(Plot{.title = "T", .unit = plain, .x_label = "", .note = "", .series = {}, .marks = {}, .x = {}, .y = {}}),
                    "T")["y"]["label"],
            plain);
}

TEST(LinePlot, readers_without_scripts_have_a_table_of_some_values) {
  Plot plot{.title = "T", .unit = "ms", .x_label = "step", .x = {0, 100}};
  plot.series.push_back({"faint", 0, Stroke::faint, {{1}, {7}}});
  plot.series.push_back({"<a>", 0, Stroke::line, {}});
  plot.series.push_back({"late", 0, Stroke::dots, {{90}, {5}}});
  for (int i = 0; i <= 100; ++i) plot.series[1].curve.x.push_back(i), plot.series[1].curve.y.push_back(i == 100 ? NAN : 2.0 * i);
  const auto html = render(plot);
  EXPECT_THAT(html, HasSubstr("<noscript>"));
  EXPECT_THAT(html, HasSubstr("<th>step, or the last before it</th><th scope=\"col\">&lt;a&gt;</th><th scope=\"col\">late</th>"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">9.000</th><td>18.00</td><td>–</td></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">100.0</th><td>–</td><td>5.000</td></tr>"));
  EXPECT_EQ(count(html, "<tr>"), 13u);
}

TEST(LinePlot, rare_extremes_leave_the_frame_and_are_counted_but_a_trend_is_shown_whole) {
  std::vector<Series> series(1);
  for (int i = 0; i < 1000; ++i) {
    series[0].curve.x.push_back(i);
    series[0].curve.y.push_back(i % 333 == 332 ? 5000 : 100 + i % 10);
  }
  const Axis axis = y_axis(series, {.from_zero = true, .clip = 0.01});
  EXPECT_EQ(axis.low, 0);
  EXPECT_LT(axis.high, 200);
  EXPECT_EQ(clipped_points(series, axis), 3u);
  for (int i = 0; i < 1000; ++i) series[0].curve.y[static_cast<size_t>(i)] = 100 + i;
  EXPECT_EQ(clipped_points(series, y_axis(series, {.clip = 0.01})), 0u);
}

TEST(LinePlot, wide_ranges_are_logarithmic_where_allowed) {
  std::vector<Series> series(1);
  for (int i = 0; i < 100; ++i) {
    series[0].curve.x.push_back(i);
    series[0].curve.y.push_back(std::pow(10.0, i * 0.04));
  }
  EXPECT_TRUE(y_axis(series, {.allow_logarithmic = true}).logarithmic);
  EXPECT_FALSE(y_axis(series, {}).logarithmic);
  series[0].curve.y[50] = 0;
  EXPECT_FALSE(y_axis(series, {.allow_logarithmic = true}).logarithmic) << "zero has no logarithm";
}

TEST(HeatMap, has_its_cells_scale_and_names) {
  HeatMap map{.title = "T<", .x_label = "expert", .y_label = "layer", .rows = {{0, 1}, {NAN, 2.5}}, .low = 0, .high = 2, .unit = "×"};
  auto plot = plot_of(render(map), "T&lt;");
  EXPECT_EQ(plot["kind"], "heat");
  EXPECT_EQ(plot["rows"].dump(), "[[0,1],[null,2.5]]");
  EXPECT_EQ(plot["low_is_strong"], false);
  EXPECT_FALSE(plot.contains("row_names"));
  map.row_spans = {{0, 7}, {8, 8}};
  map.column_spans = {{1000, 1200}, {1300, 1300}};
  map.low_is_strong = true;
  plot = plot_of(render(map), "T&lt;");
  EXPECT_EQ(plot["row_names"], json({"0–7", "8"}));
  EXPECT_EQ(plot["column_names"], json({"1,000–1,200", "1,300"}));
  EXPECT_EQ(plot["low_is_strong"], true);
  EXPECT_THAT(render(map), HasSubstr("<th>layer, expert</th><th scope=\"col\">1,000–1,200</th>")) << "for readers without scripts";
  EXPECT_THAT(render(map), HasSubstr("<tr><th scope=\"row\">8</th><td>–</td><td>2.500</td></tr>"));
  EXPECT_EQ(render(HeatMap{}), "");
}

}  // namespace
}  // namespace ingot::report
