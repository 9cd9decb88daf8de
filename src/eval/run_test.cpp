// What tasks do with a model, and what runs beside it: tokens of pairs and windows, prompts that are made, programs that are run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "eval/encode.h"
#include "eval/evaluate.h"
#include "eval/haystack.h"
#include "eval/run_program.h"
#include "eval/test_bytes.h"
#include "models/family.h"
#include "serve/engine/plain_text.h"

namespace ingot::eval {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Encoder, moves_white_space_at_the_end_of_a_context_to_its_continuation) {
  const Bytes tokenizer;
  const Encoder encoder(tokenizer, 100);
  const auto moved = encoder.pair("x ", "a");
  EXPECT_THAT(moved.context, ElementsAre('x'));
  EXPECT_THAT(moved.continuation, ElementsAre(299)) << "one token across the border";
  const auto none = encoder.pair("", "ab");
  EXPECT_THAT(none.context, ElementsAre(300));
  EXPECT_THAT(none.continuation, ElementsAre('a', 'b'));
  const auto white = encoder.pair(" \n", "b");
  EXPECT_THAT(white.context, ElementsAre(300));
  EXPECT_THAT(white.continuation, ElementsAre(' ', '\n', 'b'));
  EXPECT_THROW(encoder.pair("x", ""), base::DataError);
}

TEST(Encoder, adds_what_the_tokenizer_adds_once) {
  const Bytes tokenizer(/*adds_bos=*/true);
  const Encoder encoder(tokenizer, 100);
  EXPECT_THAT(encoder.pair("x", " b").context, ElementsAre(300, 'x'));
  EXPECT_THAT(encoder.pair("x", " b").continuation, ElementsAre(' ', 'b'));
  EXPECT_EQ(encoder.encode("<300>x").size(), 6u) << "a text that begins with bos gets none";
}

// Pairs as lm_eval.utils.get_rolling_token_windows and make_disjoint_window 0.4.13 gave them for 10 tokens, with 4 and with 20.
TEST(Encoder, covers_a_text_by_disjoint_windows) {
  const Bytes tokenizer;
  const Encoder encoder(tokenizer, 4);
  const auto windows = encoder.windows("0123456789", 4);
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_THAT(windows[0].context, ElementsAre(300));
  EXPECT_THAT(windows[0].continuation, ElementsAre('0', '1', '2', '3'));
  EXPECT_THAT(windows[1].context, ElementsAre('3'));
  EXPECT_THAT(windows[1].continuation, ElementsAre('4', '5', '6', '7'));
  EXPECT_THAT(windows[2].context, ElementsAre('5', '6', '7'));
  EXPECT_THAT(windows[2].continuation, ElementsAre('8', '9'));
  EXPECT_EQ(encoder.windows("0123456789", 20).size(), 1u);
  EXPECT_TRUE(encoder.windows("", 4).empty());
}

TEST(Encoder, cuts_contexts_from_the_left) {
  const Bytes tokenizer;
  const Encoder encoder(tokenizer, 4);
  Pair pair{{1, 2, 3, 4}, {5, 6}};  // the model sees all but the last
  EXPECT_TRUE(encoder.cut(pair));
  EXPECT_THAT(pair.context, ElementsAre(2, 3, 4));
  EXPECT_FALSE(encoder.cut(pair));
  Pair longest{{1, 2}, {3, 4, 5, 6}};
  EXPECT_TRUE(encoder.cut(longest));
  EXPECT_THAT(longest.context, ElementsAre(2));
  Pair too_long{{1}, {2, 3, 4, 5, 6}};
  EXPECT_THROW(encoder.cut(too_long), base::DataError);
}

TEST(Haystack, fills_its_length_and_hides_what_is_asked_for) {
  const auto tokens_of = [](const std::string& text) { return static_cast<int64_t>(text.size()); };
  for (const auto* kind : {"needle", "multi_needle", "variable_tracking", "common_words"})
    for (const int64_t tokens : {900, 4000}) {
      const HaystackOptions options{.kind = kind, .tokens = tokens, .seed = 7};
      const auto made = make_haystack(options, tokens_of);
      EXPECT_LE(tokens_of(made.prompt), tokens) << kind;
      EXPECT_GT(tokens_of(made.prompt), tokens - 80) << kind;
      EXPECT_EQ(made.prompt, make_haystack(options, tokens_of).prompt) << kind;
      auto other = options;
      other.seed = 8;
      EXPECT_NE(made.prompt, make_haystack(other, tokens_of).prompt) << kind;
      for (const auto& answer : made.answers) EXPECT_THAT(made.prompt, HasSubstr(answer));
      EXPECT_THROW(make_haystack({.kind = kind, .tokens = 20}, tokens_of), base::ConfigError);
    }
  double before = -1;
  for (const double depth : {0.0, 0.5, 1.0}) {
    const auto made = make_haystack({.tokens = 4000, .depth = depth, .seed = 7}, tokens_of);
    const auto place = static_cast<double>(made.prompt.find(made.answers[0])) / static_cast<double>(made.prompt.size());
    EXPECT_NEAR(place, depth, 0.06);
    EXPECT_GT(place, before);
    before = place;
  }
}

TEST(Haystack, says_the_right_words_most_often) {
  const auto made = make_haystack({.kind = "common_words", .tokens = 2000, .seed = 3},
                                  [](const std::string& text) { return static_cast<int64_t>(text.size()); });
  std::map<std::string, int> times;
  std::istringstream words(made.prompt.substr(0, made.prompt.find("\nWhich")));
  for (std::string word; words >> word;) ++times[word];
  ASSERT_EQ(made.answers.size(), 3u);
  for (const auto& answer : made.answers) EXPECT_EQ(times[answer], 8);
  EXPECT_EQ(std::count_if(times.begin(), times.end(), [](const auto& word) { return word.second == 8; }), 3);
}

TEST(RunProgram, passes_what_ends_well_in_time_and_nothing_else) {
  const auto run = [](const std::string& text, ProgramLimits limits = {}) { return run_program({"sh"}, text, limits); };
  EXPECT_TRUE(run("exit 0").has_passed);
  EXPECT_EQ(run("exit 3").why, "status 3");
  EXPECT_THAT(run("echo wrong >&2; exit 1").said, HasSubstr("wrong"));
  const auto endless = run("while :; do :; done", {.seconds = 0.5});
  EXPECT_FALSE(endless.has_passed);
  EXPECT_EQ(endless.why, "0.5 s were over");
  EXPECT_EQ(run("test -z \"$INGOT_SECRET\" && test \"$PWD\" = \"$HOME\" && cat program >/dev/null").why, "") << "a folder of its own";
  EXPECT_FALSE(run("head -c 40000000 /dev/zero >big").has_passed) << "files are bounded";
  EXPECT_FALSE(run("x=$(head -c 200000000 /dev/zero | tr '\\0' x); test ${#x} = 200000000", {.memory_mib = 64}).has_passed);
  EXPECT_THROW(run_program({"no-such-interpreter"}, "", {}), base::FileError);
}

TEST(RunProgram, leaves_nothing_behind) {
  ::setenv("INGOT_SECRET", "x", 1);
  const auto mark = fs::temp_directory_path() / ("ingot_left_" + std::to_string(::getpid()));
  const auto result =
      run_program({"sh"}, "test -z \"$INGOT_SECRET\" || exit 9\n(trap '' TERM; sleep 1; echo left >" + mark.string() + ") &\nexit 0", {});
  EXPECT_TRUE(result.has_passed) << result.why;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(fs::exists(mark)) << "a process of the program has lived on";
  fs::remove(mark);
  ::unsetenv("INGOT_SECRET");
}

TEST(RunProgram, has_no_network_where_it_says_so) {
  const auto result = run_program({"sh"}, "test \"$(grep -c : /proc/net/dev)\" = 1 && ! grep -q 'eth\\|ens' /proc/net/dev", {});
  if (!result.is_isolated) GTEST_SKIP() << "this system gives no namespaces";
  EXPECT_TRUE(result.has_passed) << result.why;
}

class Tasks : public ::testing::Test {
 protected:
  Tasks() : folder_(fs::temp_directory_path() / ("ingot_tasks_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    auto config = models::small_model("llama");
    config.vocab_size = 302, config.max_positions = 40;
    model_ = models::create_model(config);
    model_->allocate(at::kDouble);
    model_->initialise(3);
  }
  ~Tasks() override { fs::remove_all(folder_); }

  TaskResult run(const std::string& task, const std::string& rows, Options options = {}) {
    std::ofstream(folder_ / "rows.jsonl") << rows;
    std::ofstream(folder_ / "task.toml") << task;
    std::vector<std::unique_ptr<Prepared>> prepared;
    prepared.push_back(prepare(read_task(folder_ / "task.toml"), options));
    return evaluate(prepared, *model_, tokenizer_, options)[0];
  }

  fs::path folder_;
  Bytes tokenizer_;
  std::unique_ptr<models::Model> model_;
};

TEST_F(Tasks, writing_is_greedy_and_ends_at_its_text) {
  const auto ids = tokenizer_.encode("Say:");
  const auto all = serve::plain_text(*model_, std::vector<int64_t>(ids.begin(), ids.end()), 12, 301, {});
  const auto whole = tokenizer_.decode(std::vector<int32_t>(all.begin(), all.end()), false);
  const std::string task =
      "kind = \"generate\"\ndata = \"rows.jsonl\"\nprompt = \"q\"\ntarget = \"a\"\nmost_tokens = 12\nuntil = [\"\\u0000\\u0000\\u0000\"]\n";
  const nlohmann::json row = {{"q", "Say:"}, {"a", whole}};
  const auto text = row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto result = run(task, text + "\n" + R"({"q": "Say:", "a": "something else"})");
  EXPECT_EQ(result.items, 2);
  EXPECT_EQ(result.each[0].details["text"], result.each[1].details["text"]);
  EXPECT_LE(result.counts.at("written_tokens"), 24);
}

TEST_F(Tasks, seeds_give_means_and_prompts_are_cut) {
  std::string rows;
  for (int i = 0; i < 8; ++i)
    rows += fmt::format("{{\"q\": \"question {}?\", \"c\": [\"yes\", \"no\", \"perhaps\"], \"g\": {}}}\n", i, i % 3);
  const std::string task =
      "kind = \"multiple_choice\"\ndata = \"rows.jsonl\"\nprompt = \"q\"\nchoices = [\"c\"]\nanswer = \"g\"\nshots = 2\nsource = \"{{ g "
      "}}\"\n";
  Options options;
  options.seeds = {1, 2, 3};
  const auto result = run(task, rows, options);
  EXPECT_EQ(result.items, 8);
  ASSERT_EQ(result.by_seed.size(), 3u);
  double mean = 0;
  for (const auto& [seed, estimates] : result.by_seed) mean += estimates[0].value / 3;
  EXPECT_NEAR(result.estimates[0].value, mean, 1e-12);
  EXPECT_EQ(result.groups.size(), 3u);
  EXPECT_EQ(result.counts.at("cut_contexts"), 3 * 8 * 3) << "two examples are longer than 40 tokens";
  EXPECT_EQ(result.each.size(), 24u);
  options.limit = 3;
  EXPECT_EQ(run(task, rows, options).items, 3);
  options.context = 1000;
  EXPECT_THROW(run(task, rows, options), base::UsageError);
}

TEST_F(Tasks, code_is_run_only_when_asked_for) {
  const std::string task =
      "kind = \"code\"\ndata = \"rows.jsonl\"\nprompt = \"q\"\nprogram = \"exit {{status}} #{{completion|replace('\\\\n', ' "
      "')}}\"\ninterpreter = \"sh\"\n"
      "most_tokens = 2\nsamples = 3\ntemperature = 1\npass_at = [1, 2]\n";
  const std::string rows = "{\"q\": \"x\", \"status\": 0}\n{\"q\": \"y\", \"status\": 1}\n";
  try {
    run(task, rows);
    ADD_FAILURE();
  } catch (const base::UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("pass --run-code"));
  }
  Options options;
  options.runs_code = true;
  const auto result = run(task, rows, options);
  EXPECT_THAT(result.metrics, ElementsAre("pass@1", "pass@2"));
  EXPECT_EQ(result.estimates[0].value, 0.5);
  EXPECT_EQ(result.counts.at("programs"), 6);
}

}  // namespace
}  // namespace ingot::eval
