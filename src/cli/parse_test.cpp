// What the command line says of words that nobody knows (docs: an error names the nearest known one and where help is), and that every verb
// fills its own values.
#include <gmock/gmock.h>

#include <sstream>

#include "cli/verb.h"

namespace ingot::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

std::optional<int> parsed(const std::string& line, Call& call) {
  std::istringstream words(line);
  std::vector<std::string> all;
  for (std::string word; words >> word;) all.push_back(word);
  std::vector<const char*> arguments;
  for (const auto& word : all) arguments.push_back(word.c_str());
  return parse(static_cast<int>(arguments.size()), arguments.data(), call);
}

// The status and what was said of a call that is answered at once.
std::string refusal(const std::string& line) {
  Call call;
  CaptureStderr();
  const auto status = parsed(line, call);
  auto text = GetCapturedStderr();
  EXPECT_EQ(status, 2) << line;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  return text;
}

// `ingot train --modle x` said "unknown option '--modle'" and no more.
TEST(UnknownOption, names_the_nearest_of_the_verb_else_how_settings_are_given_else_another_verbs) {
  EXPECT_EQ(refusal("ingot train --resum x"),
            "ingot: unknown option '--resum'; did you mean '--resume'? 'ingot train --help' says what there is.\n");
  EXPECT_EQ(refusal("ingot train --stepps 3"),
            "ingot: unknown option '--stepps'; settings are given as --set NAME=VALUE, and 'ingot train "
            "--settings' names them. 'ingot train --help' says what there is.\n");
  EXPECT_EQ(refusal("ingot doctor --modle x"),
            "ingot: unknown option '--modle'; did you mean '--model' of ingot generate? 'ingot doctor --help' says what there is.\n");
  EXPECT_THAT(refusal("ingot doctor --completely-else"),
              AllOf(HasSubstr("the nearest that ingot doctor has is '--"), HasSubstr("'ingot doctor --help'")));
  EXPECT_THAT(refusal("ingot train --runn-dir=x c.toml"), AllOf(HasSubstr("'--runn-dir'"), HasSubstr("'--run-dir'")));
}

TEST(UnknownOption, a_setting_is_told_how_settings_are_given) {
  EXPECT_THAT(refusal("ingot train c.toml --train.steps 5"),
              AllOf(HasSubstr("--set train.steps=VALUE"), HasSubstr("'ingot train --help'")));
}

TEST(UnknownOption, does_not_name_what_is_for_the_program_itself) {
  EXPECT_THAT(refusal("ingot bench all --as-rnk x"), ::testing::Not(HasSubstr("as-rank")));
}

TEST(UnknownOption, comes_before_what_is_missing) {
  EXPECT_THAT(refusal("ingot generate --promt x"), AllOf(HasSubstr("'--promt'"), HasSubstr("'--prompt'")));
  EXPECT_THAT(refusal("ingot --jsn"), AllOf(HasSubstr("'--jsn'"), HasSubstr("'ingot --help'")));
}

TEST(UnknownVerb, names_the_nearest) {
  EXPECT_EQ(refusal("ingot trian c.toml"), "ingot: unknown verb 'trian'; did you mean 'train'? 'ingot --help' says what there is.\n");
  EXPECT_THAT(refusal("ingot plan serch c.toml"), AllOf(HasSubstr("did you mean 'search'?"), HasSubstr("'ingot plan --help'")));
  EXPECT_THAT(refusal("ingot fly"), HasSubstr("the nearest known is '"));
  EXPECT_THAT(refusal("ingot checkpoint inspcet x --extra y"), HasSubstr("'inspect'"));
}

TEST(UnknownArgument, is_named_where_a_verb_takes_no_more) {
  EXPECT_THAT(refusal("ingot train a.toml b.toml"), AllOf(HasSubstr("'b.toml'"), HasSubstr("'ingot train --help'")));
}

TEST(WrongUsage, says_what_is_missing_or_impossible_and_where_help_is) {
  EXPECT_THAT(refusal("ingot"), HasSubstr("'ingot --help'"));
  EXPECT_THAT(refusal("ingot checkpoint"), HasSubstr("'ingot checkpoint --help'"));
  EXPECT_THAT(refusal("ingot generate"), AllOf(HasSubstr("--model"), HasSubstr("'ingot generate --help'")));
  // The words behind -- were taken for unknown ones when a value before them was impossible.
  EXPECT_THAT(refusal("ingot launch -n 0 -- true --help"), AllOf(HasSubstr("--ranks"), HasSubstr("'ingot launch --help'")));
  EXPECT_THAT(refusal("ingot generate --model m --top-p 2"), AllOf(HasSubstr("--top-p"), HasSubstr("'ingot generate --help'")));
}

TEST(Parse, says_which_verb_was_called_and_whether_for_programs) {
  for (const auto& [line, verb, action] : {std::tuple{"ingot train c.toml --json", "train", "train"},
                                           {"ingot bench gemm --quick --json", "bench", "gemm"},
                                           {"ingot bench --json storage", "bench_storage", "storage"},
                                           {"ingot plan moe-width --hidden 2048 --json", "plan_moe_width", "moe-width"},
                                           {"ingot plan time c.toml --json", "plan", "time"},
                                           {"ingot plan law runs --flops 1e21,1e22 --json", "plan_law", "law"},
                                           {"ingot checkpoint export-hf d -o e --json", "hugging_face", "export-hf"},
                                           {"ingot checkpoint diff a b --json", "checkpoint", "diff"},
                                           {"ingot data import-blend --data-path 30 a 70 b --json", "data", "import-blend"},
                                           {"ingot verify op muon --fixture f --json", "verify", "op"}}) {
    Call call;
    EXPECT_EQ(parsed(line, call), std::nullopt) << line;
    EXPECT_EQ(call.verb, verb) << line;
    EXPECT_EQ(call.action, action) << line;
    EXPECT_TRUE(call.json) << line;
    EXPECT_NE(call.values, nullptr) << line;
  }
}

TEST(Parse, help_of_every_verb_is_printed_without_running_it) {
  for (const char* line : {"ingot --help", "ingot plan --help", "ingot bench all --help", "ingot data tokenize --help"}) {
    Call call;
    CaptureStdout();
    EXPECT_EQ(parsed(line, call), 0) << line;
    EXPECT_THAT(GetCapturedStdout(), HasSubstr("--help")) << line;
  }
}

}  // namespace
}  // namespace ingot::cli
