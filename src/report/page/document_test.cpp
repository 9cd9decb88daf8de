// What is inside of every page, whatever it is about.
#include "report/page/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page/assets.h"
#include "report/page/test_html.h"

namespace ingot::report {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Document, has_its_scripts_whole_and_allows_no_request) {
  const auto page = document("<t>", "<now>", "<p>body</p>");
  EXPECT_EQ(unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"));
  EXPECT_THAT(page, HasSubstr("<title>&lt;t&gt; – ingot report</title>"));
  EXPECT_THAT(page, HasSubstr("Plots need JavaScript"));
  EXPECT_EQ(count(page, "</script"), 2u) << "no script ends before its end";
  EXPECT_EQ(count(page, "<!--"), 0u);
  EXPECT_EQ(count(page, "sourceMappingURL"), 0u);
  EXPECT_THAT(page, HasSubstr(std::string(kPlotScript)));
}

TEST(Document, the_library_comes_with_its_licence_and_makes_no_code_from_text) {
  EXPECT_THAT(std::string(kDygraphs), StartsWith("/*! @license"));
  for (const char* maker : {"eval(", "new Function", "document.write"}) EXPECT_EQ(kDygraphs.find(maker), std::string_view::npos) << maker;
  for (const char* maker : {"innerHTML", "insertAdjacentHTML", "outerHTML", "eval(", "new Function"})
    EXPECT_EQ(kPlotScript.find(maker), std::string_view::npos) << maker;
}

}  // namespace
}  // namespace ingot::report
