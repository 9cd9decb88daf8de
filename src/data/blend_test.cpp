#include "data/blend.h"

#include "data/test_support.h"

namespace ingot::data {
namespace {

using ::testing::ElementsAre;

const std::vector<DataSource> kSources = {{"data/web", 1}, {"data/books.bin", 1}, {"s3://bucket/code", 1}};

Blend parsed(const std::string& text) { return Blend::parse(text, "blend.txt", kSources); }

TEST(Blend, weights_hold_from_the_step_above_them_on) {
  const auto blend =
      parsed("# a comment\n0.75 data/web\r\n  0.25\tdata/./books\n\nstep 20\n3 s3://bucket/code\nstep 30\n0 data/web\n1 data/books\n");
  EXPECT_THAT(blend.at(0), ElementsAre(0.75, 0.25, 0));
  EXPECT_THAT(blend.at(19), ElementsAre(0.75, 0.25, 0));
  EXPECT_THAT(blend.at(20), ElementsAre(0, 0, 3));
  EXPECT_THAT(blend.at(1000), ElementsAre(0, 1, 0));
  EXPECT_THAT(parsed("step 5\n1 data/web").at(4), ElementsAre());
  EXPECT_THAT(parsed("step 5\n1 data/web").at(5), ElementsAre(1, 0, 0));
}

TEST(Blend, what_a_run_did_is_a_blend_again) {
  auto blend = parsed("0.1 data/web\nstep 20\n1e-17 data/web\n0.30000000000000004 data/books\nstep 40\n1 data/web");
  blend.change(30, {0, 0.2, 0.7});
  const auto again = parsed(blend.text(kSources));
  for (const int64_t step : {0, 19, 20, 29, 30, 40, 99}) EXPECT_EQ(again.at(step), blend.at(step)) << step;
  EXPECT_THAT(again.at(40), ElementsAre(0, 0.2, 0.7)) << "what was to come later is not what was done";
}

TEST(Blend, other_texts_are_refused_with_their_line) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "blend.txt:0: there are no weights"},
      {"1 data/web\n0.5 data/wob", "blend.txt:2: data/wob is none of data.sources; did you mean 'data/web'?"},
      {"data/web", "blend.txt:1: \"data/web\" is neither"},
      {"1", "blend.txt:1: \"1\" is neither"},
      {"-1 data/web", "neither"},
      {"nan data/web", "neither"},
      {"inf data/web", "neither"},
      {"1 data/web\n2 data/web", "blend.txt:2: data/web has two lines"},
      {"0 data/web", "no source has a weight above 0"},
      {"step 3\nstep 4\n1 data/web", "blend.txt:2: no source has a weight above 0 from step 3 on"},
      {"step 4\n1 data/web\nstep 4\n1 data/web", "blend.txt:3: step 4 does not come behind step 4"},
      {"step -1\n1 data/web", "number of a step"},
      {"step x\n1 data/web", "number of a step"},
      {"step 99999999999999999999\n1 data/web", "number of a step"}};
  for (const auto& [text, words] : cases) expect_error<base::DataError>([&] { parsed(text); }, {words});
  expect_error<base::DataError>([] { Blend::parse("1 a", "b", {{"a", 1}, {"./a", 1}}); }, {"several"});
}

}  // namespace
}  // namespace ingot::data
