#include "eval/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace ingot::eval {
namespace {

using data::chat::ChatTemplate;

const char* const kPlain =
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}{% if add_generation_prompt %}[assistant|{% endif %}";
const std::vector<Example> kExamples = {{"1+1?", "2"}, {"2+2?", "4"}};

std::string prompt(bool has_turns, const std::string& system, const std::string& description) {
  const ChatTemplate plain(kPlain, nlohmann::ordered_json::object());
  return Chat(plain, has_turns, system).prompt(description, kExamples, "3+3?", " ", "\n\n").text;
}

TEST(Chat, examples_are_in_one_message_with_the_question_or_turns_of_their_own) {
  EXPECT_EQ(prompt(false, "", ""), "[user|1+1? 2\n\n2+2? 4\n\n3+3?][assistant|");
  EXPECT_EQ(prompt(true, "", ""), "[user|1+1?][assistant|2][user|2+2?][assistant|4][user|3+3?][assistant|");
}

// What maybe_delimit of lm_eval/api/utils.py says of the same texts.
TEST(Chat, the_systems_message_is_the_text_given_and_the_tasks_description) {
  const auto system_of = [](const std::string& system, const std::string& description) {
    const auto text = prompt(true, system, description);
    return text.substr(0, text.find(']') + 1);
  };
  EXPECT_EQ(system_of("Be brief.", ""), "[system|Be brief.]");
  EXPECT_EQ(system_of("", "Sums.\n"), "[system|Sums.\n]");
  EXPECT_EQ(system_of("Be brief.", "Sums."), "[system|Be brief.\n\nSums.]");
  EXPECT_EQ(system_of("Be brief.\n", "Sums."), "[system|Be brief.\nSums.]");
  EXPECT_EQ(system_of("Be brief.", " Sums."), "[system|Be brief. Sums.]");
  EXPECT_EQ(system_of("Be brief.", "\n"), "[system|Be brief.\n]");
  EXPECT_EQ(system_of("Be brief.", "Sums. \xE3\x80\x80"), "[system|Be brief.\n\nSums. \xE3\x80\x80]");
}

TEST(Chat, a_template_that_refuses_the_system_gets_the_rest) {
  const std::string refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}";
  const ChatTemplate picky(refuses + kPlain, nlohmann::ordered_json::object());
  const auto without = Chat(picky, true, "Be brief.").prompt("", {}, "3+3?", " ", "\n\n");
  EXPECT_TRUE(without.is_without_system);
  EXPECT_EQ(without.text, "[user|3+3?][assistant|");
  EXPECT_FALSE(Chat(picky, true, "").prompt("", {}, "3+3?", " ", "\n\n").is_without_system);
  const ChatTemplate never("{{ raise_exception('not today') }}", nlohmann::ordered_json::object());
  for (const char* system : {"", "Be brief."}) try {
      Chat(never, true, system).prompt("", {}, "3+3?", " ", "\n\n");
      ADD_FAILURE();
    } catch (const base::DataError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("not today"));
    }
}

}  // namespace
}  // namespace ingot::eval
