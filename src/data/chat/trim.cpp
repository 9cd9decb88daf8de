#include "data/chat/trim.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace ingot::data::chat {
namespace {

using Part = ChatTemplate::Part;

// Of a part's text: what stands between the tags of a thought. Where an answer closes one that it does not open, its prompt has: it is all
// that comes before the tag.
struct Thought {
  size_t part = 0, begin = 0, end = 0;
  bool has_open = true;
};

std::vector<Thought> thoughts_of(const std::vector<Part>& parts, const TrimOptions& options) {
  std::vector<Thought> thoughts;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].is_answer) continue;
    const auto& text = parts[p].text;
    size_t at = 0, open = text.find(options.open);
    for (size_t close; (close = text.find(options.close, at)) != std::string::npos; at = close + options.close.size()) {
      if (open < at) open = text.find(options.open, at);
      const bool has_open = open < close;
      if (!has_open && at > 0) continue;  // closed twice
      thoughts.push_back({p, has_open ? open + options.open.size() : 0, close, has_open});
    }
  }
  return thoughts;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Each with its tags, where both are the answer's, and the white space behind them; else what stands between them.
void remove(std::vector<Part>& parts, std::span<const Thought> thoughts, const TrimOptions& options) {
  for (size_t t = 0; t < thoughts.size();) {
    auto& text = parts[thoughts[t].part].text;
    std::string kept;
    size_t at = 0;
    for (const size_t part = thoughts[t].part; t < thoughts.size() && thoughts[t].part == part; ++t) {
      size_t begin = thoughts[t].begin, end = thoughts[t].end;
      if (thoughts[t].has_open) {
        begin -= options.open.size(), end += options.close.size();
        while (end < text.size() && is_space(text[end])) ++end;
      }
      if (begin > at) kept.append(text, at, begin - at);
      at = std::max(at, end);
    }
    text = kept.append(text, at, std::string::npos);
  }
}

// How many of the ids are those of the text's first `bytes` bytes alone, and those that these have instead of the ones behind.
struct FirstIds {
  size_t count = 0;
  std::vector<int32_t> others;
};
FirstIds ids_of_first(const std::string& text, size_t bytes, const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  const auto first = tokenizer.encode(std::string_view(text).substr(0, bytes));
  const auto differs = std::mismatch(first.begin(), first.end(), ids.begin(), ids.end()).first;
  return {static_cast<size_t>(differs - first.begin()), {differs, first.end()}};
}

// The largest number of ids, at most `count`, whose text ends with a character and is what the text of all begins with.
size_t whole_characters(std::span<const int32_t> ids, size_t count, const Tokenizer& tokenizer) {
  const auto all = tokenizer.decode(ids, true);
  for (; count > 0; --count) {
    const auto kept = tokenizer.decode(ids.first(count), true);
    if (all.starts_with(kept) && (kept.size() == all.size() || (static_cast<unsigned char>(all[kept.size()]) & 0xc0) != 0x80)) break;
  }
  return count;
}

void erase(EncodedConversation& from, size_t begin, size_t end) {
  from.ids.erase(from.ids.begin() + static_cast<std::ptrdiff_t>(begin), from.ids.begin() + static_cast<std::ptrdiff_t>(end));
  size_t at = 0;
  for (auto& run : from.runs) {
    const size_t next = at + run.tokens, first = std::max(at, begin), last = std::min(next, end);
    if (first < last) run.tokens -= last - first;
    at = next;
  }
  std::erase_if(from.runs, [](const auto& run) { return run.tokens == 0; });
}

// The thought's last tokens, at least `too_many`; false where it has not so many.
bool cut_end(EncodedConversation& encoded, const std::vector<Part>& parts, const Thought& thought, size_t too_many,
             const Tokenizer& tokenizer) {
  std::string whole;
  size_t before = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (p == thought.part) before = whole.size();
    whole += parts[p].text;
  }
  // A token that also has something of a tag is not the thought's.
  const auto opened = ids_of_first(whole, before + thought.begin, encoded.ids, tokenizer);
  const size_t to = ids_of_first(whole, before + thought.end, encoded.ids, tokenizer).count;
  size_t from = std::min(opened.count, to);
  if (!opened.others.empty()) {
    const size_t bytes = tokenizer.decode(opened.others, true).size();
    const auto behind = std::span(encoded.ids).first(to).subspan(from);
    // The fewest tokens, one at least, that are as many bytes; none is longer without its last token.
    size_t fewest = std::min<size_t>(1, behind.size()), most = behind.size();
    while (fewest < most) {
      const size_t count = std::midpoint(fewest, most);
      if (tokenizer.decode(behind.first(count), true).size() < bytes) fewest = count + 1;
      else most = count;
    }
    from += fewest;
  }
  if (to - from < too_many) return false;
  const size_t kept = whole_characters(std::span(encoded.ids).subspan(from, to - from), to - from - too_many, tokenizer);
  erase(encoded, from + kept, to);
  return true;
}

}  // namespace

EncodedConversation encode_trimmed(const std::vector<Part>& given, const Tokenizer& tokenizer, const TrimOptions& options,
                                   Trimming& trimming) {
  auto parts = given;
  auto encoded = encode_parts(parts, tokenizer);
  trimming = {.tokens = static_cast<int64_t>(encoded.ids.size()), .kept_tokens = static_cast<int64_t>(encoded.ids.size())};
  const auto most = static_cast<size_t>(options.most_tokens);
  if (most == 0 || encoded.ids.size() <= most) return encoded;
  trimming.outcome = Trimming::Outcome::trimmed;
  auto thoughts = thoughts_of(parts, options);
  trimming.thoughts = static_cast<int64_t>(thoughts.size());
  if (thoughts.size() > 1) {
    trimming.removed_thoughts = trimming.thoughts - 1;
    remove(parts, std::span(thoughts).first(thoughts.size() - 1), options);
    encoded = encode_parts(parts, tokenizer);
    thoughts = thoughts_of(parts, options);
  }
  const bool fits =
      encoded.ids.size() <= most || (!thoughts.empty() && cut_end(encoded, parts, thoughts.back(), encoded.ids.size() - most, tokenizer));
  if (!fits) encoded = {}, trimming.outcome = Trimming::Outcome::left_out;
  trimming.kept_tokens = static_cast<int64_t>(encoded.ids.size());
  return encoded;
}

}  // namespace ingot::data::chat
