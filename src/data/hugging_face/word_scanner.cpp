#include "data/hugging_face/word_scanner.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/utf8.h"

namespace ingot::data {
namespace {

enum class Kind : uint8_t { other, letter, number, space };

using Kinds = std::vector<Kind>;

// Of all code points, as PCRE2 has them.
Kinds all_kinds() {
  constexpr char32_t kEnd = 0x110000, kSurrogates = 0xD800, kBehindSurrogates = 0xE000;
  Kinds kinds(kEnd, Kind::other);
  std::string text;
  for (char32_t c = 0; c < kEnd; ++c) {
    if (c < kSurrogates || c >= kBehindSurrogates) append_utf8(text, c);
  }
  const auto mark = [&](std::string_view pattern, Kind kind) {
    for (const auto& match : Regex(pattern).find_all(text)) {
      for (std::string_view run = std::string_view(text).substr(match.begin, match.end - match.begin); !run.empty();) {
        const CodePoint c = decode_utf8(run);
        kinds[c.value] = kind;
        run.remove_prefix(static_cast<size_t>(c.length));
      }
    }
  };
  mark(R"(\p{L}+)", Kind::letter);
  mark(R"(\p{N}+)", Kind::number);
  mark(R"(\s+)", Kind::space);
  return kinds;
}

constexpr std::array<Kind, 128> kAsciiKinds = [] {
  std::array<Kind, 128> kinds{};
  for (unsigned char c = 0; c < 128; ++c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) kinds[c] = Kind::letter;
    else if (c >= '0' && c <= '9') kinds[c] = Kind::number;
    else if (c == ' ' || (c >= 9 && c <= 13)) kinds[c] = Kind::space;
  }
  return kinds;
}();

struct Character {
  Kind kind = Kind::other;
  size_t end = 0;
};

Character beyond_ascii(std::string_view text, size_t at) {
  static const Kinds kinds = all_kinds();
  const CodePoint c = decode_utf8(text.substr(at));
  return {kinds[c.value], at + static_cast<size_t>(c.length)};
}

Character character_at(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  return byte < 128 ? Character{kAsciiKinds[byte], at + 1} : beyond_ascii(text, at);
}

size_t end_of_run(std::string_view text, size_t at, Kind kind) {
  while (at < text.size()) {
    const Character c = character_at(text, at);
    if (c.kind != kind) break;
    at = c.end;
  }
  return at;
}

bool is_newline(char c) { return c == '\n' || c == '\r'; }

// \p{N}{1,most} from a number on.
size_t end_of_numbers(std::string_view text, size_t at, int most) {
  for (; most > 0 && at < text.size(); --most) {
    const Character c = character_at(text, at);
    if (c.kind != Kind::number) break;
    at = c.end;
  }
  return at;
}

// What follows an apostrophe: s, t, d, m, re, ve or ll; 0 if it is something else.
template <bool kAnyCase>
size_t contraction_end(std::string_view text, size_t at) {
  const auto letter = [&](size_t i) {
    return i >= text.size() ? '\0' : kAnyCase && text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
  };
  const char first = letter(at + 1), second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'd' || first == 'm') return at + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  if (kAnyCase && text.substr(at + 1).starts_with("\xC5\xBF")) return at + 3;  // U+017F, the long s, is a case of s
  return 0;
}

struct SpaceRun {
  size_t end = 0, last = 0;   // behind the run, and where its last character begins
  size_t behind_newline = 0;  // behind the last newline in it; 0: there is none
};

SpaceRun space_run(std::string_view text, size_t at) {
  SpaceRun run{at, at, 0};
  while (run.end < text.size()) {
    const Character c = character_at(text, run.end);
    if (c.kind != Kind::space) break;
    if (is_newline(text[run.end])) run.behind_newline = c.end;
    run.last = run.end;
    run.end = c.end;
  }
  return run;
}

// \s+(?!\S)|\s+: all of a run at the end of the text; else all but its last character, which belongs to what follows.
size_t end_of_spaces(const SpaceRun& run, size_t begin, size_t text_end) {
  return run.end == text_end || run.last == begin ? run.end : run.last;
}

size_t gpt2(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t end = contraction_end<false>(text, at); end > 0) return end;
  }
  const size_t first = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  const Character c = character_at(text, first);
  if (c.kind != Kind::space) return end_of_run(text, c.end, c.kind);
  return end_of_spaces(space_run(text, at), at, text.size());
}

// What the patterns since cl100k have in common. kDigits: how many make a word; kWholeAtEnd: white space at the end of the text is one word
// even where it holds newlines.
template <int kDigits, bool kWholeAtEnd>
size_t cl100k(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t end = contraction_end<true>(text, at); end > 0) return end;
  }
  const Character c = character_at(text, at);
  if (c.kind == Kind::letter) return end_of_run(text, c.end, Kind::letter);
  if (c.kind == Kind::number) return end_of_numbers(text, at, kDigits);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  Character next{Kind::space, c.end};
  if (c.end < text.size()) next = character_at(text, c.end);
  if (next.kind == Kind::letter && !is_newline(text[at])) return end_of_run(text, next.end, Kind::letter);
  // ?[^\s\p{L}\p{N}]+[\r\n]*
  if (c.kind == Kind::other || (text[at] == ' ' && next.kind == Kind::other)) {
    size_t end = end_of_run(text, c.end, Kind::other);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  const SpaceRun run = space_run(text, at);
  if (kWholeAtEnd && run.end == text.size()) return run.end;
  return run.behind_newline > 0 ? run.behind_newline : end_of_spaces(run, at, text.size());
}

struct Known {
  std::string_view pattern;
  WordScanner scanner;
  bool only_in_rust = false;  // the same pattern means something else to Oniguruma
};

constexpr Known kKnown[] = {
    // GPT-2 (openai/gpt-2, encoder.py), and the same as tiktoken writes it.
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2},
    // cl100k_base (tiktoken), and what Llama 3, Qwen and others made of it.
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     cl100k<3, true>, /*only_in_rust=*/true},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cl100k<3, false>},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", cl100k<1, false>},
};

}  // namespace

WordScanner scanner_of(const Regex& pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern.pattern() && (!known.only_in_rust || pattern.dialect() == Dialect::rust)) return known.scanner;
  }
  return nullptr;
}

}  // namespace ingot::data
