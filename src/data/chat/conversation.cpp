#include "data/chat/conversation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

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
    const auto from = turn.is_object() ? turn.value("from", "") : "";
    const auto role = kRoles.find(from);
    if (role == kRoles.end() || !turn.contains("value"))
      throw DataError("a turn of \"conversations\" needs \"from\" (human, gpt, system or tool) and \"value\"");
    messages.push_back({{"role", role->second}, {"content", turn.at("value")}});
  }
  line.erase("conversations");
  return messages;
}

}  // namespace

EncodedConversation encode_conversation(std::string_view text, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  auto line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) throw DataError("it is not a JSON object");
  const auto messages = messages_of(line);
  const auto parts = chat_template.parts_of(messages, line);
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

}  // namespace ingot::data::chat
