#include "eval/ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "report/page/test_html.h"

namespace ingot::eval {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Ladder : public ::testing::Test {
 protected:
  Ladder() : folder_(fs::temp_directory_path() / ("ingot_ladder_" + std::to_string(::getpid()))) { fs::create_directories(folder_); }
  ~Ladder() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  static nlohmann::json results(const std::string& model, double value) {
    return {{"format", "ingot-eval-1"},
            {"model", model},
            {"dtype", "fp32"},
            {"tasks",
             {{{"task", "a<b>"},
               {"items", 40},
               {"shots", 0},
               {"metrics",
                {{"acc", {{"value", value}, {"stderr", 0.05}, {"higher_is_better", true}}},
                 {"perplexity", {{"value", 10 * value}, {"stderr", nullptr}, {"higher_is_better", false}}}}}}}}};
  }
  fs::path folder_;
};

TEST_F(Ladder, shows_each_result_with_its_interval_and_the_best_in_bold) {
  const auto page =
      ladder_page({write("1.json", results("run<script>", 0.5).dump()), write("2.json", results("other", 0.75).dump())}, "now");
  EXPECT_EQ(report::unbalanced(page), "");
  EXPECT_THAT(page, HasSubstr("<h2>a&lt;b&gt;</h2>"));
  EXPECT_THAT(page, HasSubstr("run&lt;script&gt;"));
  EXPECT_THAT(page, HasSubstr("<strong>0.7500</strong></td><td>± 0.09800</td>"));
  EXPECT_THAT(page, HasSubstr("<strong>5.000</strong>")) << "of perplexities the smaller";
  EXPECT_EQ(report::count(page, "<circle"), 4u);
}

TEST_F(Ladder, refuses_what_is_no_result) {
  const auto refusal = [&](const std::string& text) -> std::string {
    try {
      ladder_page({write("r.json", text)}, "now");
    } catch (const base::DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("[]"), HasSubstr("r.json has no results of `ingot eval`; give what --results has written"));
  auto wrong = results("a", 0.5);
  wrong["tasks"][0]["metrics"]["acc"]["value"] = "much";
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("'value' is no number"));
  wrong = results("a", 0.5);
  wrong["tasks"] = 3;
  EXPECT_THAT(refusal(wrong.dump()), HasSubstr("tasks is no list"));
  // Torn and changed files end in an error of ours, or a page.
  const auto whole = results("a", 0.5).dump();
  for (uint64_t i = 0; i < 400; ++i) {
    auto text = whole.substr(0, whole.size() - i % 7 * static_cast<size_t>(i) % whole.size());
    const auto words = base::philox(1, i);
    if (!text.empty()) text[words[0] % text.size()] = static_cast<char>(words[1]);
    refusal(text);
  }
}

}  // namespace
}  // namespace ingot::eval
