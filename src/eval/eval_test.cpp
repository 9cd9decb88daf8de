// Tasks, rows, templates, examples and estimates: what can be wrong before and behind a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "eval/estimate.h"
#include "eval/evaluate.h"
#include "eval/row.h"
#include "eval/shots.h"
#include "eval/task.h"

namespace ingot::eval {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / ("ingot_eval_" + std::to_string(::getpid()))) { fs::create_directories(folder_); }
  ~Files() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  // The message of what is thrown when such a task is made ready.
  template <class Error>
  std::string refusal(const std::string& task, const std::string& rows = R"({"question": "q", "answers": ["a", "b"], "gold": 0})") const {
    write("rows.jsonl", rows);
    try {
      prepare(read_task(write("task.toml", task)), {});
    } catch (const Error& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("another kind of error: ") + error.what();
    }
    return "nothing was wrong";
  }
  const std::string choice_ =
      "kind = \"multiple_choice\"\ndata = \"rows.jsonl\"\nprompt = \"question\"\nchoices = [\"answers\"]\nanswer = \"gold\"\n";

  fs::path folder_;
};

TEST_F(Files, wrong_tasks_say_what_is_right) {
  using base::ConfigError;
  EXPECT_THAT(refusal<ConfigError>(choice_), "nothing was wrong");
  EXPECT_THAT(refusal<ConfigError>("data = \"rows.jsonl\""), HasSubstr("kind is missing; it is one of multiple_choice"));
  EXPECT_THAT(refusal<ConfigError>("kind = \"multiple_choise\""), HasSubstr("multiple_choice"));
  EXPECT_THAT(refusal<ConfigError>("kind = \"multiple_choice\"\ndata = \"rows.jsonl\""),
              HasSubstr("needs prompt, such as prompt = \"question\""));
  EXPECT_THAT(refusal<ConfigError>("promt = \"question\"\n" + choice_), HasSubstr("prompt"));
  EXPECT_THAT(refusal<ConfigError>("metrics = [\"accuracy\"]\n" + choice_),
              HasSubstr("'accuracy' is no metric of kind 'multiple_choice', which has acc"));
  EXPECT_THAT(refusal<ConfigError>("shots = 3\n" + choice_), "nothing was wrong") << "it is drawn later";
  EXPECT_THAT(
      refusal<ConfigError>(
          "kind = \"multiple_choice\"\ndata = \"rows.jsonl\"\nprompt = \"{{ question \"\nchoices = [\"answers\"]\nanswer = \"gold\""),
      HasSubstr("prompt is no template"));
  EXPECT_THAT(refusal<ConfigError>("not toml at all"), HasSubstr("task.toml"));
  EXPECT_THAT(refusal<ConfigError>("kind = \"perplexity\"\ndata = \"rows.jsonl\"\ntarget = \"question\"\nshots = 2"),
              HasSubstr("has no examples"));
  EXPECT_THAT(refusal<base::FileError>("kind = \"perplexity\"\ndata = \"none.jsonl\"\ntarget = \"question\""), HasSubstr("none.jsonl"));
}

TEST_F(Files, a_task_in_json_is_that_in_toml) {
  const auto json =
      read_task(write("task.json", R"({"kind": "generate", "data": "rows.jsonl", "prompt": "a \"b\"\n{{ c }} \u00e9", "target": "t",
                                                     "until": ["\n", "\t."], "strip": true, "temperature": 1e-1, "shots": 3})"));
  const auto toml = read_task(write("task.toml",
                                    "kind = \"generate\"\ndata = \"rows.jsonl\"\nprompt = \"a \\\"b\\\"\\n{{ c }} é\"\ntarget = \"t\"\n"
                                    "until = [\"\\n\", \"\\t.\"]\nstrip = true\ntemperature = 0.1\nshots = 3\n"));
  EXPECT_EQ(json.prompt, "a \"b\"\n{{ c }} é");
  EXPECT_EQ(json.prompt, toml.prompt);
  EXPECT_EQ(json.until, toml.until);
  EXPECT_EQ(json.strip, toml.strip);
  EXPECT_EQ(json.temperature, toml.temperature);
  EXPECT_EQ(json.shots, toml.shots);
  EXPECT_EQ(json.name, "task");
  const auto wrong = [&](const std::string& text) {
    try {
      read_task(write("task.json", text));
    } catch (const base::ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was wrong");
  };
  EXPECT_THAT(wrong("{\"kind\": \"generate\","), HasSubstr("task.json: a task is a JSON object"));
  EXPECT_THAT(wrong("[1]"), HasSubstr("a task is a JSON object"));
  EXPECT_THAT(wrong(R"({"kind": "generate", "promt": "q"})"), HasSubstr("prompt"));
  EXPECT_THAT(wrong(R"({"kind": "generate", "shots": "many"})"), HasSubstr("shots"));
  EXPECT_THAT(wrong(R"({"kind": "generate", "until": null})"), HasSubstr("until must be a text, a number, true, false or a list of them"));
  EXPECT_THAT(wrong(R"({"kind": "generate", "until": ["a", ["b"]]})"), HasSubstr("until"));
  const size_t depth = 1'000'000;  // what walks it by calls runs out of stack
  EXPECT_THAT(wrong("{\"kind\": \"generate\", \"until\": " + std::string(depth, '[') + std::string(depth, ']') + "}"),
              HasSubstr("until must be a text"));
}

TEST_F(Files, wrong_rows_are_named) {
  using base::DataError;
  const auto of = [&](const std::string& rows) { return refusal<DataError>(choice_, rows); };
  EXPECT_THAT(of(""), HasSubstr("has no rows"));
  EXPECT_THAT(of("[1, 2]"), HasSubstr("rows.jsonl:1 is no JSON object"));
  EXPECT_THAT(of("{\"question\": \"q\""), HasSubstr("rows.jsonl:1"));
  const std::string good = R"({"question": "q", "answers": ["a", "b"], "gold": 1})"
                           "\n";
  EXPECT_THAT(of(good + R"({"question": "q", "answers": ["a", "b"], "gold": 2})"),
              HasSubstr("rows.jsonl:2: the right answer is 2; it must be 0 to 1"));
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", "b"], "gold": -1})"), HasSubstr("must be 0 to 1"));
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", "b"], "gold": 1.0})"), HasSubstr("must be 0 to 1"));
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", "b"], "gold": "c"})"), HasSubstr("or one of the answers"));
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", "b"], "gold": "b"})"), "nothing was wrong");
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", "b"], "gold": "1"})"), "nothing was wrong");
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a"], "gold": 0})"), HasSubstr("is none; give two or more"));
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", ""], "gold": 0})"), HasSubstr("an answer is empty"));
  EXPECT_THAT(of(R"({"question": "q", "answers": ["a", 3], "gold": 0})"), HasSubstr("where a text should be"));
  EXPECT_THAT(of(R"({"question": "q", "answers": "a", "gold": 0})"), HasSubstr("not a list of texts"));
  EXPECT_THAT(of(R"({"question": "q", "answer": ["a", "b"], "gold": 0})"),
              HasSubstr("\"answers\" is no field of the row, which has question, answer, gold"));
}

TEST_F(Files, templates_are_jinjas_as_the_harness_has_it) {
  const auto rows = read_rows(write("rows.jsonl", R"({"name": "Ada", "all": ["x", "y"], "number": 3, "text": " {{name}} "})"));
  const auto text = [&](const std::string& source) { return Template(source, "prompt").text(rows[0]); };
  // As jinja2 3.1 renders them with keep_trailing_newline and StrictUndefined.
  EXPECT_EQ(text("name"), "Ada");
  EXPECT_EQ(text("number"), "3");
  EXPECT_EQ(text("text"), " {{name}} ") << "a field is no template";
  EXPECT_EQ(text("{{name}}\n"), "Ada\n");
  EXPECT_EQ(text("a\n  {% if number > 2 %}\nb{% endif %}\n\n"), "a\n  \nb\n\n");
  EXPECT_EQ(text("{% for x in all %}{{x}}{% if not loop.last %}, {% endif %}{% endfor %}"), "x, y");
  EXPECT_EQ(text("{{ name.upper() }}{# a remark #}\n"), "ADA\n");
  for (const auto* wrong : {"{{nam}}", "{% for x in nam %}{% endfor %}", "nam"}) try {
      text(wrong);
      ADD_FAILURE() << wrong;
    } catch (const base::DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("has name, all, number, text"));
    }
}

// Numbers of CPython 3.11: random.Random(seed).getrandbits(32), and .sample(range(size), count).
TEST(PythonRandom, draws_what_python_draws) {
  PythonRandom random(1234);
  EXPECT_EQ(random.word(), 4150886329u);
  EXPECT_EQ(random.word(), 3342196574u);
  PythonRandom wide((uint64_t{1} << 40) + 5);
  EXPECT_EQ(wide.word(), 2166296868u);
  PythonRandom long_one(0);
  for (int i = 0; i < 1000; ++i) long_one.word();
  EXPECT_EQ(long_one.word(), 126175447u);
  PythonRandom samples(1234);
  EXPECT_THAT(samples.sample(10, 4), ElementsAre(7, 1, 0, 9));
  EXPECT_THAT(samples.sample(1000, 3), ElementsAre(932, 965, 961));
  EXPECT_THAT(samples.sample(300, 20), ElementsAre(298, 17, 42, 50, 181, 121, 8, 15, 177, 247, 237, 76, 46, 93, 58, 7, 257, 249, 127, 33));
  EXPECT_THAT(samples.sample(200, 20),
              ElementsAre(170, 138, 119, 17, 153, 172, 22, 131, 148, 11, 69, 142, 16, 165, 77, 123, 90, 68, 63, 167));
  EXPECT_THAT(samples.sample(1, 1), ElementsAre(0));
}

TEST_F(Files, examples_leave_the_question_out) {
  std::string lines;
  for (const int i : {0, 1, 1, 2, 3}) lines += fmt::format("{{\"q\": {}}}\n", i);
  const auto rows = read_rows(write("rows.jsonl", lines));
  for (const bool takes_first : {false, true}) {
    Shots shots(rows, 3, takes_first, 1);
    for (int round = 0; round < 20; ++round)
      for (const auto& question : rows) {
        const auto chosen = shots.next(question, true);
        EXPECT_EQ(chosen.size(), 3u);
        for (const auto* one : chosen) EXPECT_NE(one->fields, question.fields);
      }
    EXPECT_THROW(Shots(rows, 5, takes_first, 1).next(rows[0], true), base::ConfigError);
    EXPECT_EQ(Shots(rows, 5, takes_first, 1).next(rows[0], false).size(), 5u);
  }
}

// By numpy: mean, std(ddof=1) / sqrt(n); of quotients the linearised error.
TEST(Estimate, has_the_sample_standard_error) {
  const std::vector<Share> right = {{1}, {0}, {1}, {1}, {0}, {1}, {1}};
  const auto acc = estimate(right, Scale::plain);
  EXPECT_NEAR(acc.value, 0.7142857142857143, 1e-12);
  EXPECT_NEAR(acc.error.value(), 0.18442777839082938, 1e-12);
  const std::vector<Share> texts = {{-10, 4}, {-7, 5}, {-20, 11}};
  const auto bits = estimate(texts, Scale::bits);
  EXPECT_NEAR(bits.value, 37.0 / 20 / std::log(2), 1e-12);
  EXPECT_NEAR(estimate(texts, Scale::perplexity).value, std::exp(37.0 / 20), 1e-12);
  const double squares = 2.6 * 2.6 + 2.25 * 2.25 + 0.35 * 0.35;
  EXPECT_NEAR(bits.error.value(), std::sqrt(1.5 * squares) / 20 / std::log(2), 1e-12);
  EXPECT_FALSE(estimate(std::vector<Share>{{1}}, Scale::plain).error.has_value());
}

// Against all subsets, counted.
TEST(PassAt, is_the_share_of_subsets_with_a_right_program) {
  for (int n = 1; n <= 8; ++n)
    for (int c = 0; c <= n; ++c)
      for (int k = 1; k <= n; ++k) {
        int all = 0, found = 0;
        for (unsigned set = 0; set < 1u << n; ++set)
          if (std::popcount(set) == k) ++all, found += (set & ((1u << c) - 1)) != 0;
        EXPECT_NEAR(pass_at(n, c, k), static_cast<double>(found) / all, 1e-12) << n << " " << c << " " << k;
      }
}

TEST(Texts, are_counted_and_stripped_as_python_does) {
  EXPECT_EQ(characters_of("naïve 日本"), 8);
  EXPECT_EQ(words_of("a  b\n c"), 3);
  EXPECT_EQ(words_of(" a "), 3) << "re.split gives empty words at the ends";
  EXPECT_EQ(words_of(""), 1);
  EXPECT_EQ(stripped_right("a b \t\n\u00a0\u3000"), "a b");
  EXPECT_EQ(stripped(" \x1f a\u2003"), "a");
  EXPECT_EQ(stripped(" \n "), "");
}

}  // namespace
}  // namespace ingot::eval
