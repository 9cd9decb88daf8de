// Conversations of JSON lines as token ids, and which of them are learned: the answers.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer.h"

namespace ingot::data::chat {

struct EncodedConversation {
  std::vector<int32_t> ids;
  struct Run {
    size_t tokens = 0;
    bool is_learned = false;
  };
  std::vector<Run> runs;  // that make up the ids
};

/// A token across the border of an answer is learned.
EncodedConversation encode_parts(const std::vector<ChatTemplate::Part>& parts, const Tokenizer& tokenizer);

/// `line`: {"messages": [{"role": …, "content": …}, …]}, or ShareGPT's {"conversations": [{"from": "human", "value": …}, …]}; what else it
/// has, the template may read. Throws DataError that says what is wrong with the line.
std::vector<ChatTemplate::Part> conversation_parts(std::string_view line, const ChatTemplate& chat_template);
EncodedConversation encode_conversation(std::string_view line, const ChatTemplate& chat_template, const Tokenizer& tokenizer);

/// A pair of answers to one prompt, the chosen one first. `line`, as TRL has it: {"prompt": …, "chosen": …, "rejected": …}, each a list of
/// messages or a text (of the user; of the assistant); answers that begin with the prompt's messages need none.
std::array<EncodedConversation, 2> encode_preference(std::string_view line, const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace ingot::data::chat
