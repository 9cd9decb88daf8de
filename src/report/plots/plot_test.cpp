#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "report/plots/heat_map.h"
#include "report/plots/svg_plot.h"

namespace ingot::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> labels(const Axis& axis, int wanted) {
  std::vector<std::string> out;
  for (const auto& tick : ticks(axis, wanted)) out.push_back(tick.label);
  return out;
}

TEST(Axis, ticks_are_round_numbers_with_one_unit) {
  EXPECT_THAT(labels({0, 1}, 5), ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(labels({2.9, 11.2}, 5), ElementsAre("4", "6", "8", "10"));
  EXPECT_THAT(labels({0, 20000, false, Format::count}, 5), ElementsAre("0", "5 k", "10 k", "15 k", "20 k"));
  EXPECT_THAT(labels({0, 1.2e6, false, Format::count}, 5), ElementsAre("0", "0.5 M", "1.0 M"));
  EXPECT_THAT(labels({0, 2000, false, Format::count}, 5), ElementsAre("0", "500", "1,000", "1,500", "2,000"));
  EXPECT_THAT(labels({0, 3e-4, false, Format::exponent}, 4), ElementsAre("0", "1e-4", "2e-4", "3e-4"));
  EXPECT_THAT(labels({0.01, 100, true}, 5), ElementsAre("0.01", "0.1", "1", "10", "100"));
  EXPECT_THAT(labels({0.5, 40, true}, 5), ElementsAre("0.5", "1", "2", "5", "10", "20"));
}

TEST(Axis, ticks_lie_inside_and_are_few_for_any_range) {
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    const double low = 10 * base::normal_at(1, trial) * std::pow(10.0, 20 * base::uniform_at(2, trial) - 10);
    const double span = (std::abs(low) + 1e-12) * std::pow(10.0, 8 * base::uniform_at(3, trial) - 4);
    const Axis axis = fitted(low, low + span, trial % 2 == 1 && low > 0, false, Format::plain);
    const auto marks = ticks(axis, 5);
    ASSERT_LE(marks.size(), 20u) << low << " " << span;
    for (const auto& tick : marks) {
      ASSERT_GE(axis.place(tick.value), -1e-6);
      ASSERT_LE(axis.place(tick.value), 1 + 1e-6);
      ASSERT_FALSE(tick.label.empty());
    }
  }
}

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

Plot plot_of(Curve curve, Stroke stroke = Stroke::line) {
  Plot plot{.title = "T", .unit = "ms", .x_label = "step", .x = {0, 10}, .y = {0, 100}};
  plot.series.push_back({"a<b", 9, stroke, std::move(curve)});
  return plot;
}

TEST(SvgPlot, points_are_placed_in_the_units_of_the_drawing) {
  const auto svg = render(plot_of({{0, 5, 10}, {0, 100, 25}}));
  EXPECT_THAT(svg, HasSubstr("d=\"M0,10000 5000,0 10000,7500\""));
  EXPECT_THAT(svg, HasSubstr("class=\"line c1 square r9\"")) << "the tenth run takes the second colour again, and square points";
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_EQ(svg.find("a<b"), std::string::npos);
}

TEST(SvgPlot, gaps_part_the_line_and_lonely_points_stay_visible) {
  EXPECT_THAT(render(plot_of({{0, 2, 4, 6, 8, 10}, {0, 50, NAN, 50, NAN, 0}})),
              HasSubstr("d=\"M0,10000 2000,5000M6000,5000h0M10000,10000h0\""));
  EXPECT_THAT(render(plot_of({{0, 5, 10}, {50, 50, 50}})), HasSubstr("d=\"M0,5000 10000,5000\""));
  EXPECT_THAT(render(plot_of({{0, 5}, {50, 50}}, Stroke::dots)), HasSubstr("d=\"M0,5000h0M5000,5000h0\""));
}

TEST(SvgPlot, holes_lie_on_the_dots_of_their_own_series) {
  // A hole of the first series made the dot of the second, at the same place, look hollow.
  auto plot = plot_of({{0, 5}, {50, 50}}, Stroke::dots);
  plot.series.push_back({"a<b", 9, Stroke::holes, {{0, 5}, {NAN, 50}}});
  plot.series.push_back({"later", 1, Stroke::dots, {{0, 5}, {50, 50}}});
  const auto svg = render(plot);
  EXPECT_THAT(svg, HasSubstr("class=\"holes c1 square r9\" data-n=\"a&lt;b\" d=\"M5000,5000h0\""));
  EXPECT_LT(svg.find("class=\"holes"), svg.find("data-n=\"later\""));
}

TEST(SvgPlot, plots_with_values_at_given_places_say_where_and_which) {
  auto plot = plot_of({{1, 10}, {2, NAN}}, Stroke::dots);
  plot.x = {1, 10, true};
  plot.x_ticks = {{1, "one"}, {10, "<ten>"}};
  plot.points = {1, 10};
  plot.factor = 0.5;
  plot.series[0].values = {"4", "-"};
  const auto svg = render(plot);
  EXPECT_THAT(svg, HasSubstr(" data-at=\"1 10\" data-xlog=\"1\" data-factor=\"0.5\">"));
  EXPECT_THAT(svg, HasSubstr(" data-v=\"4 -\""));
  EXPECT_THAT(svg, HasSubstr(">&lt;ten&gt;</text>"));
}

TEST(SvgPlot, rare_extremes_leave_the_frame_and_are_counted_but_a_trend_is_shown_whole) {
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

TEST(SvgPlot, wide_ranges_are_logarithmic_where_allowed) {
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

TEST(HeatMap, small_ones_name_each_cell_and_large_ones_share_paths) {
  const HeatMap small{.title = "T", .x_label = "expert", .y_label = "layer", .rows = {{0, 1}, {NAN, 2}}, .low = 0, .high = 2, .unit = "×"};
  const auto svg = render(small);
  EXPECT_THAT(svg, HasSubstr("<rect class=\"l9\" x=\"1\" y=\"1\" width=\"1\" height=\"1\"><title>layer 1, expert 1: 2.000 ×</title>"));
  EXPECT_EQ(svg.find("layer 1, expert 0"), std::string::npos) << "a missing value is no cell";
  HeatMap large = small;
  large.rows = std::vector<std::vector<double>>(10, std::vector<double>(100, 2.0));
  const auto paths = render(large);
  EXPECT_THAT(paths, HasSubstr("M0 9h100v1h-100z"));
  EXPECT_THAT(paths, HasSubstr("data-levels=\"999"));
  EXPECT_EQ(render(HeatMap{}), "");
}

TEST(HeatMap, values_far_beyond_the_scale_take_the_colour_at_its_end) {
  // Casting a place that no int holds was undefined.
  const auto svg = render({.title = "T", .x_label = "x", .y_label = "y", .rows = {{-1e60, 1e60}}, .low = 0, .high = 1, .unit = ""});
  EXPECT_THAT(svg, HasSubstr("<rect class=\"l0\" x=\"0\""));
  EXPECT_THAT(svg, HasSubstr("<rect class=\"l9\" x=\"1\""));
}

TEST(HeatMap, spans_name_rows_and_columns_and_low_values_may_be_the_strong_ones) {
  HeatMap map{.title = "T",
              .x_label = "step",
              .y_label = "rank",
              .rows = {{0, 1}, {0.5, 1}},
              .low = 0,
              .high = 1,
              .unit = "GB/s",
              .row_spans = {{0, 7}, {8, 8}},
              .column_spans = {{1000, 1200}, {1300, 1300}},
              .low_is_strong = true};
  const auto svg = render(map);
  EXPECT_THAT(svg, HasSubstr("<rect class=\"l9\" x=\"0\" y=\"0\" width=\"1\" height=\"1\"><title>rank 0–7, step 1,000–1,200: 0 GB/s"));
  EXPECT_THAT(svg, HasSubstr("<rect class=\"l0\" x=\"1\" y=\"1\" width=\"1\" height=\"1\"><title>rank 8, step 1,300: 1.000 GB/s"));
  EXPECT_THAT(svg, HasSubstr(">1,300</text>"));
  map.rows.resize(700, {0, 1});
  map.row_spans.resize(700);
  const auto large = render(map);
  EXPECT_THAT(large, HasSubstr("data-rn=\"0–7|8|0|"));
  EXPECT_THAT(large, HasSubstr("data-cn=\"1,000–1,200|1,300\""));
  EXPECT_THAT(large, HasSubstr("data-levels=\"0959")) << "the script reads values, not colours";
}

}  // namespace
}  // namespace ingot::report
