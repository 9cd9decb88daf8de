#include "data/tokenize/encoded_block.h"

#include "base/error.h"
#include "data/chat/conversation.h"

namespace ingot::data {
namespace {

using base::DataError;

EncodedBlock encode_conversations(const Tokenizer& tokenizer, const TextBlock& block, const TokenizeOptions& options) {
  EncodedBlock encoded;
  const auto add = [&](const chat::EncodedConversation& conversation) {
    encoded.tokens.insert(encoded.tokens.end(), conversation.ids.begin(), conversation.ids.end());
    for (size_t i = 0; i < conversation.runs.size(); ++i)
      encoded.parts.push_back({conversation.runs[i].tokens, i + 1 == conversation.runs.size(), conversation.runs[i].is_learned});
  };
  encoded.counts = parse_block(block, options.text);
  for (const auto& part : encoded.counts.parts) {
    try {
      if (options.preferences)
        for (const auto& answer : chat::encode_preference(part.text, *options.chat_template, tokenizer)) add(answer);
      else add(chat::encode_conversation(part.text, *options.chat_template, tokenizer));
    } catch (const DataError& wrong) {
      const auto reason = fmt::format("{}: {}", block.where(part.line), wrong.what());
      if (!options.text.skip_bad) throw DataError("{}; mend the {}, or pass --skip-bad", reason, block.has_rows ? "row" : "line");
      if (encoded.counts.first_problem.empty()) encoded.counts.first_problem = reason;
      ++encoded.counts.bad_lines;
    }
  }
  encoded.counts.parts.clear();
  return encoded;
}

EncodedBlock encode_texts(const Tokenizer& tokenizer, const TextBlock& block, const TextOptions& options) {
  EncodedBlock encoded;
  encoded.counts = parse_block(block, options);
  for (auto& part : encoded.counts.parts) {
    const auto ids = tokenizer.encode(part.text);
    encoded.tokens.insert(encoded.tokens.end(), ids.begin(), ids.end());
    encoded.parts.push_back({ids.size(), part.ends_document, true});
    std::string().swap(part.text);
  }
  encoded.counts.parts.clear();
  return encoded;
}

}  // namespace

EncodedBlock encode(const Tokenizer& tokenizer, const TextBlock& block, const TokenizeOptions& options) {
  return options.chat_template ? encode_conversations(tokenizer, block, options) : encode_texts(tokenizer, block, options.text);
}

}  // namespace ingot::data
