// A model's chat template: how a conversation becomes the text that the model reads (transformers' apply_chat_template), and which of it
// are the model's own answers. Immutable once made: any number of threads may use one.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/evaluate.h"

namespace ingot::data::chat {

class ChatTemplate {
 public:
  /// Of a template's text; `special`: what it may read besides, such as bos_token. Throws DataError for what it does not know.
  ChatTemplate(std::string source, const nlohmann::ordered_json& special);
  /// Of a tokenizer's folder: chat_template.jinja, else "chat_template" of tokenizer_config.json, where the special tokens are. Nothing
  /// where there is none.
  static std::optional<ChatTemplate> of_folder(const std::filesystem::path& folder);
  /// The same of the texts of those files, by their names.
  static std::optional<ChatTemplate> of_files(const std::map<std::string, std::string>& files);
  /// A template from a file, with the special tokens of a folder.
  static ChatTemplate of_file(const std::filesystem::path& file, const std::filesystem::path& folder);
  static ChatTemplate of_file(const std::filesystem::path& file, const std::map<std::string, std::string>& files);

  /// `messages`: a list of objects with role and content. `extra`: further variables, such as tools.
  Rendered render(const nlohmann::ordered_json& messages, bool add_generation_prompt, const nlohmann::ordered_json& extra = {}) const;

  struct Part {
    std::string text;
    bool is_answer = false;
  };
  /// The whole conversation, cut where answers begin and end. Where the template marks them by {% generation %}, those are they; else an
  /// answer is what an assistant's message adds to the messages before it and the prompt for it. Throws DataError where the template writes
  /// earlier messages anew when another comes, so that this cannot be told, and for a conversation without an answer.
  std::vector<Part> parts_of(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& extra = {}) const;

  /// Its text.
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  Body body_;
  Dict special_;
};

}  // namespace ingot::data::chat
