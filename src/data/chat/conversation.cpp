#include "data/chat/conversation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/process/text_parts.h"

namespace ingot::data::chat {
namespace {

using base::DataError;
using Json = nlohmann::ordered_json;

Json messages_of(Json& line) {
  if (line.contains("messages")) {
    auto messages = std::move(line.at("messages"));
    line.erase("messages");
    return messages;
  }
  const auto found = line.find("conversations");
  if (found == line.end() || !found->is_array()) throw DataError("it has neither \"messages\" nor \"conversations\"");
  static const std::map<std::string, std::string> kRoles = {{"human", "user"},          {"user", "user"},     {"gpt", "assistant"},
                                                            {"assistant", "assistant"}, {"system", "system"}, {"tool", "tool"}};
  Json messages = Json::array();
  for (const auto& turn : *found) {
    const bool has_from = turn.is_object() && turn.contains("from") && turn.at("from").is_string();
    const auto role = has_from ? kRoles.find(turn.at("from").get<std::string>()) : kRoles.end();
    if (role == kRoles.end() || !turn.contains("value"))
      throw DataError("a turn of \"conversations\" needs \"from\" (human, gpt, system or tool) and \"value\"");
    messages.push_back({{"role", role->second}, {"content", turn.at("value")}});
  }
  line.erase("conversations");
  return messages;
}

Json parse_line(std::string_view text) {
  if (process::is_nested_too_deeply(text)) throw DataError("it is nested deeper than 200 values");
  auto line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) throw DataError("it is not a JSON object");
  return line;
}

// A member of a preference: messages as they are, a text as one message.
Json take_messages(Json& line, const char* name, const char* role_of_text) {
  const auto found = line.find(name);
  if (found == line.end()) throw DataError("it has no \"{}\"", name);
  auto value = std::move(*found);
  line.erase(name);
  if (value.is_string()) return Json::array({{{"role", role_of_text}, {"content", value}}});
  if (!value.is_array() || value.empty()) throw DataError("\"{}\" is neither a text nor a list of messages", name);
  return value;
}

}  // namespace

EncodedConversation encode_parts(const std::vector<ChatTemplate::Part>& parts, const Tokenizer& tokenizer) {
  std::string whole;
  for (const auto& part : parts) whole += part.text;
  EncodedConversation encoded{.ids = tokenizer.encode(whole), .runs = {}};
  // Where a part ends among the tokens of the whole: as far as those of the text up to there are the same.
  size_t taken = 0;
  std::string before;
  for (size_t i = 0; i < parts.size(); ++i) {
    before += parts[i].text;
    size_t end = encoded.ids.size();
    if (i + 1 < parts.size()) {
      const auto ids = tokenizer.encode(before);
      const auto differs = std::mismatch(ids.begin(), ids.end(), encoded.ids.begin(), encoded.ids.end());
      end = static_cast<size_t>(differs.first - ids.begin());
      if (parts[i].is_answer && differs.first != ids.end())
        end = std::min(end + 1, encoded.ids.size());  // the answer's last token has more in it
      end = std::max(end, taken);
    }
    if (end > taken) encoded.runs.push_back({end - taken, parts[i].is_answer});
    taken = end;
  }
  return encoded;
}

std::vector<ChatTemplate::Part> conversation_parts(std::string_view text, const ChatTemplate& chat_template) {
  auto line = parse_line(text);
  const auto messages = messages_of(line);
  return chat_template.parts_of(messages, line);
}

EncodedConversation encode_conversation(std::string_view text, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  return encode_parts(conversation_parts(text, chat_template), tokenizer);
}

std::array<EncodedConversation, 2> encode_preference(std::string_view text, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  auto line = parse_line(text);
  const auto prompt = line.contains("prompt") ? take_messages(line, "prompt", "user") : Json::array();
  const auto whole = [&](const char* name) {
    const auto answer = take_messages(line, name, "assistant");
    const bool has_prompt = answer[0].is_object() && answer[0].value("role", Json()) != "assistant";
    auto messages = has_prompt ? Json::array() : prompt;
    messages.insert(messages.end(), answer.begin(), answer.end());
    if (!messages.back().is_object() || messages.back().value("role", Json()) != "assistant")
      throw DataError("\"{}\" does not end with a message of the assistant", name);
    return messages;
  };
  const auto chosen = whole("chosen"), rejected = whole("rejected");
  std::array pair{encode_parts(chat_template.parts_of(chosen, line), tokenizer),
                  encode_parts(chat_template.parts_of(rejected, line), tokenizer)};
  if (pair[0].ids.empty() || pair[1].ids.empty()) throw DataError("the template makes nothing of an answer");
  return pair;
}

}  // namespace ingot::data::chat
