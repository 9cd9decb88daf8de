// What rules are made of: measures of a text, and sets of rules as they were published. "words >= 50" keeps texts of at least 50 words.
//
// Words are what white space separates, lines what newlines do, paragraphs what blank lines do; blank lines are no lines. Shares of
// characters are shares of the text's bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::data::process {

struct Measure {
  const char* name;
  const char* help;
};
/// All of them, in the order of the documentation.
std::vector<Measure> all_measures();

/// A text that is measured: what several measures need is computed once.
class Measured {
 public:
  explicit Measured(std::string_view text);
  ~Measured();
  double value_of(size_t measure) const;  // its place in all_measures()
  struct Parts;

 private:
  std::unique_ptr<Parts> parts_;
};

struct Rule {
  size_t measure = 0;
  enum class Comparison { at_least, at_most, above, below } comparison = Comparison::at_least;
  double limit = 0;
  std::string text;  // as it was written
  bool holds(const Measured& measured) const;
};

/// A set of rules that was published.
struct RuleSet {
  const char* name;
  const char* source;
  bool is_of_lines;  // else of documents
  std::vector<const char*> rules;
};
const std::vector<RuleSet>& rule_sets();

/// "words >= 50", or the name of a set, which must be one of lines or of documents. Throws ConfigError naming what is wrong, and the
/// nearest measure.
std::vector<Rule> rules_of(const std::vector<std::string>& texts, bool of_lines = false);

}  // namespace ingot::data::process
