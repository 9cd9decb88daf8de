// Chat templates: what they print, which of it are answers, and what they refuse. tests/python/chat_templates_test.py holds them against
// transformers.
#include "data/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ingot::data::chat {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const Json kMessages = {{{"role", "system"}, {"content", "Be brief."}},
                        {{"role", "user"}, {"content", "Hi"}},
                        {{"role", "assistant"}, {"content", "Hello!"}},
                        {{"role", "user"}, {"content", "Bye"}},
                        {{"role", "assistant"}, {"content", "So long."}}};
const char* const kPlain =
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m.content | trim + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

std::string rendered(const std::string& source, const Json& variables = Json::object()) {
  return ChatTemplate(source, Json::object()).render(Json::array(), false, variables).text;
}

std::string refusal_of(const std::string& source, const Json& variables = Json::object()) {
  try {
    return "accepted: " + rendered(source, variables);
  } catch (const base::DataError& error) {
    return error.what();
  }
}

TEST(ChatTemplate, prints_as_jinja_with_trimmed_blocks) {
  EXPECT_EQ(rendered("{% if true %}\n  a\n  {% endif %}\nb\n"), "  a\nb");
  EXPECT_EQ(rendered("a  {%- if true -%}  b  {%- endif %}  c"), "ab  c");
  EXPECT_EQ(rendered("{# no #}\nx {{ 1 }}\n\ny"), "x 1\n\ny");
  EXPECT_EQ(rendered("{{ [1, 'a', none, true, 1.0, {'k': 'it\\'s'}] }}"), "[1, 'a', None, True, 1.0, {'k': \"it's\"}]");
  EXPECT_EQ(rendered("{{ {'a': [1, {}], 'b': '\u00e4\\n'} | tojson }}"), "{\"a\": [1, {}], \"b\": \"\u00e4\\n\"}");
  EXPECT_EQ(rendered("{{ {'a': [1]} | tojson(indent=2) }}"), "{\n  \"a\": [\n    1\n  ]\n}");
  EXPECT_EQ(rendered("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 1 }} {{ 'a' ~ 1 }}"), "3 -4 2 3.5 7 a1");
  EXPECT_EQ(rendered("{{ 'abc'[::-1] }}{{ [1,2,3][1:] }}{{ [1,2,3][:-1] }}{{ 'x'.upper() }}"), "cba[2, 3][1, 2]X");
  EXPECT_EQ(rendered("{{ x is defined }} {{ x.y is defined if x is defined else 'no' }} {{ (x or 'z') }}"), "False no z");
}

TEST(ChatTemplate, loops_have_their_own_scope_and_namespaces_do_not) {
  EXPECT_EQ(
      rendered("{% set x = 0 %}{% set ns = namespace(n=0) %}{% for i in range(4) if i is even %}{% set x = i %}{% set ns.n = ns.n + i %}"
               "{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %} {{ x }} {{ ns.n }}"),
      "1/2,2/2 0 2");
  EXPECT_EQ(rendered("{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{% endfor %}{% for i in [] %}{% else %}none{% endfor %}"),
            "x1y2none");
  EXPECT_EQ(
      rendered("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
      "02");
  EXPECT_EQ(rendered("{% macro f(a, b='!') %}<{{ a }}{{ b }}>{% endmacro %}{{ f(1) }}{{ f(2, b='?') }}{% set t %}in{% endset %}{{ t }}"),
            "<1!><2?>in");
}

TEST(ChatTemplate, tells_answers_by_prefixes_and_by_marks) {
  const auto answers = [](const std::vector<ChatTemplate::Part>& parts) {
    std::vector<std::string> all;
    for (const auto& part : parts)
      if (part.is_answer) all.push_back(part.text);
    return all;
  };
  const ChatTemplate plain(kPlain, Json::object());
  EXPECT_EQ(answers(plain.parts_of(kMessages)), (std::vector<std::string>{"Hello!<|end|>\n", "So long.<|end|>\n"}));
  const ChatTemplate marked(
      "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}",
      Json::object());
  EXPECT_EQ(answers(marked.parts_of(kMessages)), (std::vector<std::string>{"Hello!</s>", "So long.</s>"}));
  std::string whole;
  for (const auto& part : marked.parts_of(kMessages)) whole += part.text;
  EXPECT_EQ(whole, marked.render(kMessages, false).text);
  // One that hides earlier answers cannot be told apart.
  const ChatTemplate hiding("{% for m in messages %}{{ m.content if loop.last or m.role != 'assistant' else '-' }}{% endfor %}",
                            Json::object());
  EXPECT_THROW(hiding.parts_of(kMessages), base::DataError);
  EXPECT_THROW(plain.parts_of(Json::array({{{"role", "user"}, {"content", "?"}}})), base::DataError);
}

TEST(ChatTemplate, says_where_and_what_it_does_not_know) {
  EXPECT_THAT(refusal_of("\n{% include 'x' %}"), HasSubstr("line 2: the statement 'include'"));
  EXPECT_THAT(refusal_of("{{ 'a' | urlize }}"), HasSubstr("line 1: the filter 'urlize'"));
  EXPECT_THAT(refusal_of("{{ ''.__class__() }}"), HasSubstr("has no '__class__'"));
  EXPECT_THAT(refusal_of("{{ open('x') }}"), HasSubstr("no function 'open'"));
  EXPECT_THAT(refusal_of("{% if x %}"), HasSubstr("endif is missing"));
  EXPECT_THAT(refusal_of("{{ raise_exception('roles must alternate') }}"), HasSubstr("roles must alternate"));
  EXPECT_THAT(refusal_of("{{ x.y.z }}"), HasSubstr("'x' is undefined"));
  EXPECT_THAT(refusal_of("{{ 1 / 0 }}"), HasSubstr("division by 0"));
  EXPECT_THAT(refusal_of("{{ 1 +"), HasSubstr("not closed"));
  EXPECT_THAT(refusal_of("{{ 9223372036854775807 }}"), HasSubstr("too long"));
}

TEST(ChatTemplate, hostile_ones_end) {
  EXPECT_THAT(refusal_of("{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}"),
              HasSubstr("runs on and on"));
  EXPECT_THAT(
      refusal_of(
          "{% set ns = namespace(t='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{{ ns.t }}{% endfor %}"),
      HasSubstr("prints more than"));
  EXPECT_THAT(refusal_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("deeper than"));
  EXPECT_THAT(refusal_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), HasSubstr("deeper than"));
  EXPECT_THAT(refusal_of("{% set x = [] %}{{ x.append(x) }}{{ x }}"), HasSubstr("deeper than"));
  EXPECT_THAT(refusal_of("{{ range(10000000000) }}"), HasSubstr("more than"));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "{% if true %}";
  EXPECT_THAT(refusal_of(deep), HasSubstr("deeper than"));
}

}  // namespace
}  // namespace ingot::data::chat
