#include "data/tokenize/encoded_block.h"

#include "base/error.h"
#include "data/chat/conversation.h"

namespace ingot::data {
namespace {

using base::DataError;

void count(const chat::Trimming& trimming, int64_t most, const std::string& where, TrimCounts& counts) {
  using Outcome = chat::Trimming::Outcome;
  if (trimming.outcome == Outcome::fits) return;
  TrimCounts one;
  std::string what;
  if (trimming.outcome == Outcome::left_out) {
    one.left_out = 1, one.left_out_tokens = trimming.tokens;
    what = fmt::format("left out: without its {} thoughts it has more than {} tokens", trimming.thoughts, most);
  } else {
    one.trimmed = 1, one.cut_tokens = trimming.tokens - trimming.kept_tokens;
    one.thoughts = trimming.thoughts, one.removed_thoughts = trimming.removed_thoughts;
    what = fmt::format("{} left; {} of {} thoughts removed whole", trimming.kept_tokens, trimming.removed_thoughts, trimming.thoughts);
  }
  one.examples.push_back(fmt::format("{}: {} tokens, {}", where, trimming.tokens, what));
  counts.add(one);
}

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
      else {
        chat::Trimming trimming;
        add(chat::encode_trimmed(chat::conversation_parts(part.text, *options.chat_template), tokenizer, options.trim, trimming));
        count(trimming, options.trim.most_tokens, block.where(part.line), encoded.trim);
      }
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
