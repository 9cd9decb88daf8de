// The page of plan moe-width: every choice is there, fronts are drawn from what is marked, names are escaped.
#include "report/experts/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page/test_html.h"

namespace ingot::report {
namespace {

using testing::HasSubstr;
using testing::Not;

ExpertPage page_of() {
  ExpertPage page{.title = "Width <of> experts", .notes = {"a & b"}, .columns = {"tokens/s"}, .points = {}};
  page.points.push_back({.experts = 16,
                         .top_k = 1,
                         .width = 2048,
                         .parameters = 8e9,
                         .tokens_per_s = 100,
                         .decode_s = 2e-3,
                         .prefill_s = 0.1,
                         .is_base = true,
                         .cells = {"100"}});
  page.points.push_back({.experts = 1,
                         .top_k = 1,
                         .width = 2048,
                         .parameters = 1e9,
                         .tokens_per_s = 120,
                         .decode_s = 1e-3,
                         .prefill_s = 0.2,
                         .on_decode_front = true,
                         .cells = {"120"}});
  page.points.push_back({.experts = 8,
                         .top_k = 2,
                         .width = 1024,
                         .parameters = 2e9,
                         .tokens_per_s = 110,
                         .decode_s = 3e-3,
                         .prefill_s = 0.05,
                         .on_prefill_front = true,
                         .cells = {"110"}});
  page.points.push_back({.experts = 128, .top_k = 1, .width = 2048, .cells = {"does not fit"}});
  return page;
}

TEST(ExpertPage, draws_what_fits_and_lists_all) {
  const auto page = make_expert_page(page_of(), "today");
  EXPECT_THAT(page, HasSubstr("Width &lt;of&gt; experts"));
  EXPECT_THAT(page, HasSubstr("a &amp; b"));
  EXPECT_THAT(markup_of(page), Not(HasSubstr("nan")));
  EXPECT_THAT(page, HasSubstr("1 of 128 experts, width 2048</th><td>does not fit"));
  EXPECT_THAT(page, HasSubstr("1 of 16 experts, width 2048, the configuration"));
  EXPECT_EQ(count(page, "<figure"), 2U);
  // Three points in each plot, one of them a second time as the configuration.
  EXPECT_EQ(count(page, R"("stroke":"dots")"), 2 * 4U);
  EXPECT_EQ(count(page, R"("stroke":"holes")"), 2U);
  EXPECT_EQ(count(page, R"("stroke":"dashed")"), 2U);
  EXPECT_EQ(count(page, R"("name":"1 of 128)"), 0U);
}

TEST(ExpertPage, is_a_page_even_if_nothing_fits) {
  auto page = page_of();
  for (auto& point : page.points) point.tokens_per_s = 0;
  EXPECT_EQ(count(make_expert_page(page, "today"), R"("stroke":"dots")"), 0U);
}

}  // namespace
}  // namespace ingot::report
