#include "report/page/html.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ingot::report {
namespace {

TEST(Html, escapes_what_would_be_markup_and_replaces_what_is_no_text) {
  EXPECT_EQ(escape("<b a=\"x\" c='y'>&amp;"), "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(escape("Käse 東京 🧱"), "Käse 東京 🧱");
  EXPECT_EQ(escape(std::string_view("a\0b", 3)),
            "a\xef\xbf\xbd"
            "b");
  // A stray continuation byte, an overlong "/", a surrogate, a cut-off sequence: one replacement per byte.
  EXPECT_EQ(escape("\x80"), "\xef\xbf\xbd");
  EXPECT_EQ(escape("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(escape("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(escape("\xf0\x9f\xa7"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Html, long_texts_are_cut_between_characters) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("aéé", 2), "a…");
}

TEST(Html, numbers_have_four_digits_and_no_needless_exponent) {
  EXPECT_EQ(number(3.21456), "3.215");
  EXPECT_EQ(number(0.0123456), "0.01235");
  EXPECT_EQ(number(3e-4), "3.00e-04");
  EXPECT_EQ(number(1234567), "1,234,567");
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(NAN), "–");
  EXPECT_EQ(grouped(INT64_MIN), "-9,223,372,036,854,775,808");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(signed_percent(-0.0583), "−5.8 %");
  EXPECT_EQ(signed_percent(12.5), "+1250 %");
}

}  // namespace
}  // namespace ingot::report
