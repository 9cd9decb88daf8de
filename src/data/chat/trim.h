// Conversations that are longer than a row lose thoughts, not answers (ZAYA1's answer-preserving trimming, arXiv 2605.05365): one that fits
// stays as it is. Else all thoughts but the last go, with the white space behind them; then the last one loses its end, as much as is too
// long, so that its beginning stands right before the answer. One that is too long without any thought is left out. Thoughts are what
// stands between two tags; prompts and answers are never touched.
#pragma once

#include <string>
#include <vector>

#include "data/chat/conversation.h"

namespace ingot::data::chat {

struct TrimOptions {
  int64_t most_tokens = 0;  // 0: conversations stay as they are
  std::string open = "<think>", close = "</think>";
};

struct Trimming {
  enum class Outcome { fits, trimmed, left_out };
  Outcome outcome = Outcome::fits;
  int64_t tokens = 0, kept_tokens = 0;         // before and after; 0 after where it is left out
  int64_t thoughts = 0, removed_thoughts = 0;  // in it, and removed whole
};

/// What is left of a conversation's parts (ChatTemplate::parts_of); empty where it is left out. Its ids and runs are those of the parts
/// that are left, cut: no character is cut apart.
EncodedConversation encode_trimmed(const std::vector<ChatTemplate::Part>& parts, const Tokenizer& tokenizer, const TrimOptions& options,
                                   Trimming& trimming);

}  // namespace ingot::data::chat
