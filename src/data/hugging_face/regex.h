// Regular expressions of tokenizers. Those of tokenizer.json files are written for Oniguruma (Ruby's syntax), those of tiktoken for Rust's
// fancy-regex; both run here on PCRE2: what means something else there is translated, what cannot be translated is refused. Patterns and
// texts are hostile: every match has a budget of steps.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::data {

enum class Dialect { oniguruma, rust };

class Regex {
 public:
  struct Match {
    size_t begin = 0, end = 0;
  };

  /// Throws DataError when the pattern is wrong, too large, or uses what PCRE2 has no word for.
  explicit Regex(std::string_view pattern, Dialect dialect = Dialect::oniguruma);
  /// Matches the text itself.
  static Regex literal(std::string_view text);
  /// Matches one extended grapheme cluster (Unicode Standard Annex 29).
  static Regex grapheme_clusters();

  /// All matches from left to right, none overlapping; empty ones as Oniguruma finds them. `text` must be valid UTF-8. Throws
  /// DataError when a match takes more steps than any honest pattern needs. Any number of threads may search at once.
  std::vector<Match> find_all(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }
  Dialect dialect() const { return dialect_; }

 private:
  struct Code;
  Regex() = default;
  void compile(const std::string& translated, uint32_t options);

  std::string pattern_;
  Dialect dialect_ = Dialect::oniguruma;
  bool begins_anew_ = false;  // a match does not look at what is before it
  std::shared_ptr<const Code> code_;
};

/// The same pattern in PCRE2's syntax. Throws DataError.
std::string to_pcre2(std::string_view pattern, Dialect dialect = Dialect::oniguruma);

}  // namespace ingot::data
