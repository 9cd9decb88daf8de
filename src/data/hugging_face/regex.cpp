#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/hugging_face/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "data/utf8.h"

namespace ingot::data {

using base::DataError;

namespace {

constexpr size_t kLongestPattern = 64 * 1024;
constexpr uint32_t kMatchSteps = 5'000'000, kMatchStepsPerByte = 4;  // an honest pattern needs a few per character of a word
constexpr uint32_t kHeapKiB = 64 * 1024;

constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";  // Oniguruma's word characters
constexpr std::string_view kRustWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";

bool is_script(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{sc:{}}}", name);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  Translator(std::string_view pattern, Dialect dialect) : pattern_(pattern), dialect_(dialect) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') escape();
      else if (in_class_) class_character(c);
      else if (c == '[') open_class();
      else if (c == '{' && dialect_ == Dialect::oniguruma) interval();
      else copy(1);
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError("the pattern '{}' uses {}, which is not supported", pattern_, what);
  }

  void copy(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }

  void replace(size_t count, std::string_view with) {
    out_.append(with);
    at_ += count;
  }

  std::string_view word() const { return dialect_ == Dialect::rust ? kRustWord : kWord; }

  // Inside a class the sets stand as they are, outside they need brackets of their own.
  std::string set(std::string_view members, bool negated = false) const {
    return in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
  }

  void escape() {
    if (at_ + 1 >= pattern_.size()) refuse("a backslash at its end");
    switch (pattern_[at_ + 1]) {
      case 's': return replace(2, "\\p{White_Space}");
      case 'S': return replace(2, "\\P{White_Space}");
      case 'd': return replace(2, "\\p{Nd}");
      case 'D': return replace(2, "\\P{Nd}");
      case 'w': return replace(2, set(word()));
      case 'W': return in_class_ ? refuse("\\W inside brackets") : replace(2, set(word(), true));
      case 'h': return replace(2, set("0-9a-fA-F"));
      case 'H': return in_class_ ? refuse("\\H inside brackets") : replace(2, set("0-9a-fA-F", true));
      case 'p':
      case 'P': return property();
      case 'u': return unicode_escape();
      case 'C':
      case 'G':
      case 'K':
      case 'Q':
      case 'E':
      case 'X':
      case 'R':
      case 'k':
      case 'g':
      case 'y':
      case 'Y':
      case 'N':
      case 'O': return refuse(fmt::format("\\{}", pattern_[at_ + 1]));
      default: return copy(1 + static_cast<size_t>(utf8_length(pattern_[at_ + 1])));
    }
  }

  // A script's name is to PCRE2 every character that is also used with it (Script_Extensions): "。" with Han.
  void property() {
    const size_t end = pattern_.find('}', at_);
    if (!pattern_.substr(at_ + 2).starts_with("{") || end == std::string_view::npos) return copy(2);
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const std::string_view negation = name.starts_with('^') ? "^" : "";
    name.remove_prefix(negation.size());
    if (!is_script(name)) return copy(end + 1 - at_);
    replace(end + 1 - at_, fmt::format("\\{}{{{}sc:{}}}", pattern_[at_ + 1], negation, name));
  }

  void unicode_escape() {
    const auto digits = pattern_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) refuse("an incomplete \\u");
    replace(6, fmt::format("\\x{{{}}}", digits));
  }

  // In Ruby a plus behind an interval is no possession: what was counted comes once or more.
  void interval() {
    const size_t end = pattern_.find('}', at_);
    const bool counts =
        end != std::string_view::npos && pattern_.substr(at_ + 1, end - at_ - 1).find_first_not_of("0123456789,") == std::string_view::npos;
    if (!counts || !pattern_.substr(end + 1).starts_with('+')) return copy(1);
    if (!pattern_.substr(at_).starts_with("{1,")) refuse("a plus behind an interval that does not begin with 1");
    replace(end + 2 - at_, "+");
  }

  // Where a class ends that begins at `at`, or an intersection in it stands; npos where neither does.
  size_t class_stop(size_t at) const {
    for (at += pattern_.substr(at).starts_with("[^") ? 2 : 1; at < pattern_.size(); ++at) {
      if (pattern_[at] == '\\') ++at;
      else if (pattern_[at] == '[') return std::string_view::npos;
      else if (pattern_[at] == ']' || pattern_.substr(at).starts_with("&&")) return at;
    }
    return std::string_view::npos;
  }

  // [A&&[^B]], which PCRE2 has no word for: what is not in B, and in A.
  bool difference() {
    const size_t middle = class_stop(at_);
    if (middle == std::string_view::npos || !pattern_.substr(middle).starts_with("&&[^")) return false;
    const size_t end = class_stop(middle + 2);
    if (end == std::string_view::npos || !pattern_.substr(end).starts_with("]]") || pattern_[at_ + 1] == '^') return false;
    const std::string without = "[" + std::string(pattern_.substr(middle + 4, end - middle - 4)) + "]",
                      among = std::string(pattern_.substr(at_, middle - at_)) + "]";
    replace(end + 2 - at_, fmt::format("(?:(?!{}){})", Translator(without, dialect_).run(), Translator(among, dialect_).run()));
    return true;
  }

  void open_class() {
    if (difference()) return;
    in_class_ = true;
    copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') copy(1);  // first in a class it is itself
  }

  void class_character(char c) {
    if (c == '[' && pattern_.substr(at_).starts_with("[:")) {
      const size_t end = pattern_.find(":]", at_);
      if (end == std::string_view::npos) refuse("an open [:");
      return copy(end + 2 - at_);
    }
    if (c == '[') refuse("a class inside a class");
    if (pattern_.substr(at_).starts_with("&&")) refuse("an intersection of classes (&&)");
    const auto rest = pattern_.substr(at_);
    if (dialect_ == Dialect::rust && (rest.starts_with("--") || rest.starts_with("~~"))) refuse("a difference of classes (-- or ~~)");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  std::string_view pattern_;
  Dialect dialect_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct MatchData {
  pcre2_match_data* data;
  pcre2_match_context* context;
  MatchData(const pcre2_code* code, size_t text_bytes)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)), context(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context,
                          static_cast<uint32_t>(std::clamp<uint64_t>(uint64_t{kMatchStepsPerByte} * text_bytes, kMatchSteps, UINT32_MAX)));
    pcre2_set_heap_limit(context, kHeapKiB);
  }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
  ~MatchData() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

std::string message_of(int code) {
  unsigned char text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

std::string to_pcre2(std::string_view pattern, Dialect dialect) { return Translator(pattern, dialect).run(); }

struct Regex::Code {
  pcre2_code* code = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, Dialect dialect) : pattern_(pattern), dialect_(dialect) {
  if (pattern_.size() > kLongestPattern) throw DataError("a pattern of {} bytes is longer than any tokenizer needs", pattern_.size());
  // Ruby's ^ and $ are borders of lines, Rust's of the text.
  const uint32_t ends = dialect == Dialect::oniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  compile(to_pcre2(pattern_, dialect), ends | PCRE2_NEVER_BACKSLASH_C);
}

Regex Regex::literal(std::string_view text) {
  Regex regex;
  regex.pattern_ = text;
  regex.compile(regex.pattern_, PCRE2_LITERAL);
  return regex;
}

Regex Regex::grapheme_clusters() {
  Regex regex;
  regex.pattern_ = "\\X";
  regex.begins_anew_ = true;  // else PCRE2 would count a row of flags from its beginning for each of them
  regex.compile(regex.pattern_, 0);
  return regex;
}

void Regex::compile(const std::string& translated, uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  if (!(options & PCRE2_LITERAL)) options |= PCRE2_UCP;
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF | options, &error, &offset, nullptr);
  if (!code->code) throw DataError("the pattern '{}' is wrong: {}", pattern_, message_of(error));
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // where it is not available the interpreter runs
  code_ = code;
}

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
  std::vector<Match> matches;
  const MatchData match(code_->code, text.size());
  for (size_t at = 0; at <= text.size();) {
    const size_t begin = begins_anew_ ? at : 0;
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
    const auto search = [&](uint32_t options) {
      return pcre2_match(code_->code, subject, text.size() - begin, at - begin, PCRE2_NO_UTF_CHECK | options, match.data, match.context);
    };
    int found = search(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) throw DataError("the pattern '{}' gives up on a text of {} bytes: {}", pattern_, text.size(), message_of(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.data);
    const Match here{begin + ends[0], begin + ends[1]};
    if (here.end < here.begin) throw DataError("the pattern '{}' ends a match before its beginning", pattern_);
    const bool empty = here.begin == here.end;
    // An empty match right behind another match is none.
    if (!empty || matches.empty() || matches.back().end != here.begin) matches.push_back(here);
    at = here.end;
    if (empty) at += at < text.size() ? static_cast<size_t>(utf8_length(text[at])) : 1;
  }
  return matches;
}

}  // namespace ingot::data
