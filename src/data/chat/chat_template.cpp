#include "data/chat/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"

namespace ingot::data::chat {
namespace {

namespace fs = std::filesystem;
using base::DataError;
using Json = nlohmann::ordered_json;

constexpr int64_t kLargestFile = int64_t{16} << 20;

constexpr const char *kConfig = "tokenizer_config.json", *kTemplate = "chat_template.jinja";

// What of a folder a template is made of.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  std::error_code none;
  for (const char* name : {kConfig, kTemplate})
    if (fs::exists(folder / name, none)) files[name] = base::read_file(folder / name, kLargestFile);
  return files;
}

Json config_of(const std::map<std::string, std::string>& files) {
  const auto found = files.find(kConfig);
  if (found == files.end()) return Json::object();
  auto json = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw DataError("{} is not a JSON object", kConfig);
  return json;
}

// "<s>", or {"content": "<s>", …} as older files have it.
Json special_of(const Json& config) {
  Json special = Json::object();
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with("_token")) continue;
    if (value.is_string()) special[name] = value;
    else if (value.is_object() && value.contains("content") && value.at("content").is_string()) special[name] = value.at("content");
  }
  return special;
}

// Of several templates the one named default.
std::optional<std::string> template_in(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const auto& one : *found)
      if (one.is_object() && one.value("name", Json()) == "default" && one.contains("template") && one.at("template").is_string())
        return one.at("template").get<std::string>();
  return std::nullopt;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, const Json& special) : source_(std::move(source)) {
  try {
    body_ = parse(source_);
  } catch (const DataError& error) {
    throw DataError("the chat template, {}", error.what());
  }
  for (const auto& [name, value] : special.items()) special_.emplace_back(name, Value::from(value));
}

std::optional<ChatTemplate> ChatTemplate::of_folder(const fs::path& folder) { return of_files(files_in(folder)); }

std::optional<ChatTemplate> ChatTemplate::of_files(const std::map<std::string, std::string>& files) {
  const auto config = config_of(files);
  const auto file = files.find(kTemplate);
  const auto source = file != files.end() ? std::optional(file->second) : template_in(config);
  if (!source) return std::nullopt;
  return ChatTemplate(*source, special_of(config));
}

ChatTemplate ChatTemplate::of_file(const fs::path& file, const fs::path& folder) { return of_file(file, files_in(folder)); }

ChatTemplate ChatTemplate::of_file(const fs::path& file, const std::map<std::string, std::string>& files) {
  return {base::read_file(file, kLargestFile), special_of(config_of(files))};
}

Rendered ChatTemplate::render(const Json& messages, bool add_generation_prompt, const Json& extra) const {
  auto variables = special_;
  variables.emplace_back("messages", Value::from(messages));
  variables.emplace_back("add_generation_prompt", add_generation_prompt);
  if (extra.is_object())
    for (const auto& [name, value] : extra.items()) variables.emplace_back(name, Value::from(value));
  if (!extra.contains("tools")) variables.emplace_back("tools", Value());
  if (!extra.contains("documents")) variables.emplace_back("documents", Value());
  try {
    return evaluate(body_, variables);
  } catch (const DataError& error) {
    throw DataError("the chat template, {}", error.what());
  }
}

std::vector<ChatTemplate::Part> ChatTemplate::parts_of(const Json& messages, const Json& extra) const {
  if (!messages.is_array() || messages.empty()) throw DataError("a conversation is a list of messages");
  for (const auto& message : messages)
    if (!message.is_object() || !message.contains("role") || !message.at("role").is_string())
      throw DataError("a message is an object with a role and a content, not {}", message.dump().substr(0, 80));
  const auto whole = render(messages, false, extra);
  auto answers = whole.generated;
  if (answers.empty()) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].at("role") != "assistant") continue;
      const Json before(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i)),
          with(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      const auto prompt = i > 0 ? render(before, true, extra).text : std::string(), answered = render(with, false, extra).text;
      if (!answered.starts_with(prompt) || !whole.text.starts_with(answered))
        throw DataError(
            "message {}: the chat template writes the messages before it differently once it is there, so that its answer cannot be told "
            "from its "
            "prompt; mark answers in the template with {{% generation %}} … {{% endgeneration %}} (--template FILE)",
            i + 1);
      if (answered.size() > prompt.size()) answers.emplace_back(prompt.size(), answered.size());
    }
  }
  if (answers.empty()) throw DataError("the conversation has no answer of an assistant");
  std::vector<Part> parts;
  size_t at = 0;
  for (const auto& [begin, end] : answers) {
    if (begin > at) parts.push_back({whole.text.substr(at, begin - at), false});
    parts.push_back({whole.text.substr(begin, end - begin), true});
    at = end;
  }
  if (at < whole.text.size()) parts.push_back({whole.text.substr(at), false});
  return parts;
}

}  // namespace ingot::data::chat
