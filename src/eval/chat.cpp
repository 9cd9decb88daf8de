#include "eval/chat.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "eval/encode.h"

namespace ingot::eval {
namespace {

using Json = nlohmann::ordered_json;

// With the separator between them, unless white space is there already.
std::string joined(const std::string& first, const std::string& second, const std::string& separator) {
  if (first.empty() || second.empty()) return first + second;
  const auto plain = stripped(second);
  const bool has_space = stripped_right(first) != first || plain.empty() || !second.starts_with(plain);
  return first + (has_space ? "" : separator) + second;
}

}  // namespace

Chat::Prompt Chat::prompt(const std::string& description, const std::vector<Example>& examples, const std::string& question,
                          const std::string& delimiter, const std::string& separator) const {
  auto messages = Json::array();
  const auto say = [&](const char* role, const std::string& content) { messages.push_back({{"role", role}, {"content", content}}); };
  const auto system = joined(system_, description, separator);
  if (!system.empty()) say("system", system);
  std::string before;
  for (const auto& example : examples) {
    if (has_turns_) {
      say("user", example.question);
      say("assistant", example.answer);
    } else {
      before += example.question + delimiter + example.answer + separator;
    }
  }
  say("user", before + question);
  try {
    return {template_.render(messages, /*add_generation_prompt=*/true).text};
  } catch (const base::DataError&) {
    if (system.empty()) throw;
  }
  messages.erase(messages.begin());
  return {template_.render(messages, /*add_generation_prompt=*/true).text, /*is_without_system=*/true};
}

}  // namespace ingot::eval
