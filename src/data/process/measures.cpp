#include "data/process/measures.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/closest_name.h"
#include "base/error.h"
#include "base/text.h"
#include "data/process/text_parts.h"
#include "data/utf8.h"

namespace ingot::data::process {

using Views = std::vector<std::string_view>;

namespace {

Views words_of(std::string_view text) {
  Views words;
  for (size_t i = 0; i < text.size();) {
    while (i < text.size() && is_space(text[i])) ++i;
    const size_t begin = i;
    while (i < text.size() && !is_space(text[i])) ++i;
    if (i > begin) words.push_back(text.substr(begin, i - begin));
  }
  return words;
}

Views lines_of(std::string_view text) {
  Views lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (const auto line = trimmed(text.substr(begin, end - begin)); !line.empty()) lines.push_back(line);
    begin = end + 1;
  }
  return lines;
}

Views paragraphs_of(std::string_view text) {
  Views paragraphs;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    if (const auto paragraph = trimmed(text.substr(begin, end - begin)); !paragraph.empty()) paragraphs.push_back(paragraph);
  };
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    size_t next = at + 1;
    while (next < text.size() && is_space(text[next]) && text[next] != '\n') ++next;
    if (next >= text.size() || text[next] != '\n') continue;
    add(at);
    begin = next;
  }
  add(text.size());
  return paragraphs;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

bool ends_with_one_of(std::string_view text, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return text.ends_with(end); });
}

bool ends_in_punctuation(std::string_view line) { return ends_with_one_of(line, {".", "!", "?", "\"", "\u201d"}); }
// Without marks of Wikipedia's at the end: [12], [edit], [citation needed].
std::string_view without_citations(std::string_view line) {
  while (line.ends_with(']')) {
    const size_t open = line.rfind('[');
    if (open == std::string_view::npos) return line;
    const auto mark = line.substr(open + 1, line.size() - open - 2);
    const bool is_number = std::all_of(mark.begin(), mark.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number && mark != "edit" && mark != "citation needed") return line;
    line = line.substr(0, open);
  }
  return line;
}

bool ends_in_ellipsis(std::string_view line) { return ends_with_one_of(line, {"...", "\u2026"}); }
bool begins_with_bullet(std::string_view line) {
  for (const std::string_view bullet : {"\u2022", "\u2023", "\u25cf", "\u25e6", "\u2043", "\u2013", "-", "*"})
    if (line.starts_with(bullet)) return true;
  return false;
}

template <class Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (size_t i = 0; i < text.size();) {
    const auto c = decode_utf8(text.substr(i));
    visit(c.value);
    i += static_cast<size_t>(std::max(1, c.length));
  }
}

int64_t times_in(std::string_view text, std::string_view what) {
  int64_t times = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size())) ++times;
  return times;
}

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower;
}

// Of parts those that came before, as a share of the parts and of the text.
struct Duplicates {
  double parts = 0, characters = 0;
};
Duplicates duplicates_of(const Views& parts, size_t text_bytes) {
  std::unordered_set<std::string_view> seen;
  int64_t again = 0, bytes = 0;
  for (const auto part : parts)
    if (!seen.insert(part).second) ++again, bytes += static_cast<int64_t>(part.size());
  return {share(static_cast<double>(again), static_cast<double>(parts.size())),
          share(static_cast<double>(bytes), static_cast<double>(text_bytes))};
}

// Runs of n words, whatever white space separates them: a hash of each, and its bytes with one space between words.
struct Runs {
  std::vector<uint64_t> hashes;
  std::vector<int64_t> bytes;
};
Runs runs_of(const Views& words, size_t n) {
  Runs runs;
  if (words.size() < n) return runs;
  std::vector<uint64_t> hashes;
  for (const auto word : words) hashes.push_back(XXH3_64bits(word.data(), word.size()));
  auto bytes = static_cast<int64_t>(n) - 1;
  for (size_t i = 0; i < words.size(); ++i) {
    bytes += static_cast<int64_t>(words[i].size());
    if (i + 1 < n) continue;
    const size_t first = i + 1 - n;
    runs.hashes.push_back(XXH3_64bits(hashes.data() + first, n * sizeof(uint64_t)));
    runs.bytes.push_back(bytes);
    bytes -= static_cast<int64_t>(words[first].size());
  }
  return runs;
}

// Characters in the most frequent run of n words: its own times how often it comes.
double top_ngram(const Views& words, size_t n, size_t text_bytes) {
  const auto runs = runs_of(words, n);
  std::unordered_map<uint64_t, int64_t> counts;
  for (const auto hash : runs.hashes) ++counts[hash];
  int64_t most = 0, bytes = 0;
  for (size_t i = 0; i < runs.hashes.size(); ++i) {
    const auto times = counts[runs.hashes[i]];
    if (times > most || (times == most && runs.bytes[i] > bytes)) most = times, bytes = runs.bytes[i];
  }
  return most < 2 ? 0 : share(static_cast<double>(most * bytes), static_cast<double>(text_bytes));
}

// Characters in runs of n words that came before; a run that did is passed over whole.
double duplicate_ngrams(const Views& words, size_t n, size_t text_bytes) {
  const auto runs = runs_of(words, n);
  std::unordered_set<uint64_t> seen;
  int64_t bytes = 0;
  for (size_t i = 0; i < runs.hashes.size();) {
    if (seen.insert(runs.hashes[i]).second) ++i;
    else bytes += runs.bytes[i], i += n;
  }
  return share(static_cast<double>(bytes), static_cast<double>(text_bytes));
}

}  // namespace

struct Measured::Parts {
  std::string_view text;
  mutable std::optional<Views> words_{}, lines_{}, paragraphs_{};
  mutable std::optional<std::string> lower_{};
  const Views& words() const { return words_ ? *words_ : words_.emplace(words_of(text)); }
  const Views& lines() const { return lines_ ? *lines_ : lines_.emplace(lines_of(text)); }
  const Views& paragraphs() const { return paragraphs_ ? *paragraphs_ : paragraphs_.emplace(paragraphs_of(text)); }
  const std::string& lower() const { return lower_ ? *lower_ : lower_.emplace(in_lower_case(text)); }

  template <class Is>
  double share_of_lines(const Is& is) const {
    return share(static_cast<double>(std::count_if(lines().begin(), lines().end(), is)), static_cast<double>(lines().size()));
  }
  template <class Is>
  double share_of_words(const Is& is) const {
    return share(static_cast<double>(std::count_if(words().begin(), words().end(), is)), static_cast<double>(words().size()));
  }
  template <class Is>
  double share_of_characters(const Is& is) const {
    int64_t all = 0, found = 0;
    for_each_character(text, [&](char32_t c) { ++all, found += is(c); });
    return share(static_cast<double>(found), static_cast<double>(all));
  }
  double times(std::initializer_list<std::string_view> phrases) const {
    int64_t all = 0;
    for (const auto phrase : phrases) all += times_in(lower(), phrase);
    return static_cast<double>(all);
  }
};

namespace {

struct Entry {
  Measure measure;
  std::function<double(const Measured::Parts&)> value;
};

double count(size_t n) { return static_cast<double>(n); }

const std::vector<Entry>& entries() {
  using P = Measured::Parts;
  static const std::vector<Entry> all = [] {
    std::vector<Entry> e = {
        {{"characters", "Unicode characters"}, [](const P& p) { return static_cast<double>(characters_of(p.text)); }},
        {{"words", "words"}, [](const P& p) { return count(p.words().size()); }},
        {{"sentences", "words that end with . ! or ?, quotation marks and [12] behind them aside"},
         [](const P& p) {
           return static_cast<double>(std::count_if(p.words().begin(), p.words().end(), [](std::string_view word) {
             word = without_citations(word);
             while (ends_with_one_of(word, {"\"", "'", ")"})) word.remove_suffix(1);
             while (word.ends_with("\u201d")) word.remove_suffix(3);
             return ends_with_one_of(word, {".", "!", "?"});
           }));
         }},
        {{"lines", "lines that are not blank"}, [](const P& p) { return count(p.lines().size()); }},
        {{"paragraphs", "paragraphs"}, [](const P& p) { return count(p.paragraphs().size()); }},
        {{"mean_word_length", "characters of a word in the mean"},
         [](const P& p) {
           int64_t characters = 0;
           for (const auto word : p.words()) characters += characters_of(word);
           return share(static_cast<double>(characters), count(p.words().size()));
         }},
        {{"longest_word", "characters of the longest word"},
         [](const P& p) {
           int64_t longest = 0;
           for (const auto word : p.words()) longest = std::max(longest, characters_of(word));
           return static_cast<double>(longest);
         }},
        {{"hashes_per_word", "# for each word"},
         [](const P& p) { return share(static_cast<double>(times_in(p.text, "#")), count(p.words().size())); }},
        {{"ellipses_per_word", "... and \u2026 for each word"},
         [](const P& p) {
           return share(static_cast<double>(times_in(p.text, "...") + times_in(p.text, "\u2026")), count(p.words().size()));
         }},
        {{"newlines_per_word", "newlines for each word"},
         [](const P& p) { return share(static_cast<double>(times_in(p.text, "\n")), count(p.words().size())); }},
        {{"bullet_lines", "share of lines that begin with a bullet, - or *"},
         [](const P& p) { return p.share_of_lines(begins_with_bullet); }},
        {{"ellipsis_lines", "share of lines that end with an ellipsis"}, [](const P& p) { return p.share_of_lines(ends_in_ellipsis); }},
        {{"punctuated_lines", "share of lines that end with . ! ? or a quotation mark"},
         [](const P& p) { return p.share_of_lines(ends_in_punctuation); }},
        {{"short_lines", "share of lines of 30 characters or fewer"},
         [](const P& p) { return p.share_of_lines([](std::string_view line) { return characters_of(line) <= 30; }); }},
        {{"alphabetic_words", "share of words with a letter"},
         [](const P& p) {
           return p.share_of_words([](std::string_view word) {
             bool has = false;
             for_each_character(word, [&](char32_t c) { has = has || is_letter(c); });
             return has;
           });
         }},
        {{"stop_words", "how many of the, be, to, of, and, that, have, with are there"},
         [](const P& p) {
           std::unordered_set<std::string> found;
           for (const auto word : p.words())
             if (word.size() <= 4)
               for (const std::string_view stop : {"the", "be", "to", "of", "and", "that", "have", "with"})
                 if (in_lower_case(word) == stop) found.emplace(stop);
           return count(found.size());
         }},
        {{"upper_case", "share of letters that are A to Z, of ASCII's letters"},
         [](const P& p) {
           const auto upper = std::count_if(p.text.begin(), p.text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
           const auto lower = std::count_if(p.text.begin(), p.text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
           return share(static_cast<double>(upper), static_cast<double>(upper + lower));
         }},
        {{"digits", "share of characters that are 0 to 9"},
         [](const P& p) { return p.share_of_characters([](char32_t c) { return c >= '0' && c <= '9'; }); }},
        {{"letters", "share of characters that are letters of any script"}, [](const P& p) { return p.share_of_characters(is_letter); }},
        {{"replaced_characters", "U+FFFD, of bytes that were not UTF-8, as a share of the characters"},
         [](const P& p) { return p.share_of_characters([](char32_t c) { return c == 0xFFFD; }); }},
        {{"curly_brackets", "{ and }"},
         [](const P& p) {
           return p.times({"{", "}"});
         }},
        {{"lorem_ipsum", "times that \"lorem ipsum\" comes"}, [](const P& p) { return p.times({"lorem ipsum"}); }},
        {{"javascript", "times that \"javascript\" comes"}, [](const P& p) { return p.times({"javascript"}); }},
        {{"policy_phrases", "times that phrases of cookie notices and terms of use come (those of C4)"},
         [](const P& p) {
           return p.times({"terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"});
         }},
        {{"ends_in_punctuation", "1 where the text ends with . ! ? or a quotation mark, [12], [edit] and [citation needed] aside, else 0"},
         [](const P& p) {
           const auto text = without_citations(trimmed(p.text));
           return ends_in_punctuation(text) && !ends_in_ellipsis(text) ? 1.0 : 0.0;
         }},
        {{"duplicate_lines", "share of lines that came before"}, [](const P& p) { return duplicates_of(p.lines(), p.text.size()).parts; }},
        {{"duplicate_line_characters", "share of the text in lines that came before"},
         [](const P& p) { return duplicates_of(p.lines(), p.text.size()).characters; }},
        {{"duplicate_paragraphs", "share of paragraphs that came before"},
         [](const P& p) { return duplicates_of(p.paragraphs(), p.text.size()).parts; }},
        {{"duplicate_paragraph_characters", "share of the text in paragraphs that came before"},
         [](const P& p) { return duplicates_of(p.paragraphs(), p.text.size()).characters; }},
    };
    static const char* const top[] = {"top_2gram", "top_3gram", "top_4gram"};
    for (size_t n = 2; n <= 4; ++n)
      e.push_back({{top[n - 2], "share of the text in its most frequent run of so many words"},
                   [n](const P& p) { return top_ngram(p.words(), n, p.text.size()); }});
    static const char* const duplicate[] = {"duplicate_5grams", "duplicate_6grams", "duplicate_7grams",
                                            "duplicate_8grams", "duplicate_9grams", "duplicate_10grams"};
    for (size_t n = 5; n <= 10; ++n)
      e.push_back({{duplicate[n - 5], "share of the text in runs of so many words that came before"},
                   [n](const P& p) { return duplicate_ngrams(p.words(), n, p.text.size()); }});
    return e;
  }();
  return all;
}

}  // namespace

std::vector<Measure> all_measures() {
  std::vector<Measure> all;
  for (const auto& entry : entries()) all.push_back(entry.measure);
  return all;
}

Measured::Measured(std::string_view text) : parts_(std::make_unique<Parts>(Parts{.text = text})) {}
Measured::~Measured() = default;
double Measured::value_of(size_t measure) const { return entries()[measure].value(*parts_); }

bool Rule::holds(const Measured& measured) const {
  const double value = measured.value_of(measure);
  switch (comparison) {
    case Comparison::at_least: return value >= limit;
    case Comparison::at_most: return value <= limit;
    case Comparison::above: return value > limit;
    case Comparison::below: return value < limit;
  }
  return false;
}

const std::vector<RuleSet>& rule_sets() {
  static const std::vector<RuleSet> all = {
      {"gopher",
       "Rae et al., arXiv 2112.11446, section A.1.1: quality",
       false,
       {"words >= 50", "words <= 100000", "mean_word_length >= 3", "mean_word_length <= 10", "hashes_per_word <= 0.1",
        "ellipses_per_word <= 0.1", "bullet_lines <= 0.9", "ellipsis_lines <= 0.3", "alphabetic_words >= 0.8", "stop_words >= 2"}},
      {"gopher_repetition",
       "the same, table A1: repetition",
       false,
       {"duplicate_lines <= 0.3", "duplicate_paragraphs <= 0.3", "duplicate_line_characters <= 0.2",
        "duplicate_paragraph_characters <= 0.2", "top_2gram <= 0.2", "top_3gram <= 0.18", "top_4gram <= 0.16", "duplicate_5grams <= 0.15",
        "duplicate_6grams <= 0.14", "duplicate_7grams <= 0.13", "duplicate_8grams <= 0.12", "duplicate_9grams <= 0.11",
        "duplicate_10grams <= 0.1"}},
      {"c4_lines",
       "Raffel et al., arXiv 1910.10683, section 2.2: lines",
       true,
       {"ends_in_punctuation >= 1", "words >= 5", "javascript <= 0", "policy_phrases <= 0", "longest_word <= 1000"}},
      {"c4", "the same: pages, when their lines are gone", false, {"sentences >= 3", "lorem_ipsum <= 0", "curly_brackets <= 0"}},
      {"fineweb",
       "Penedo et al., arXiv 2406.17557, section 3.5",
       false,
       {"punctuated_lines > 0.12", "duplicate_line_characters < 0.1", "short_lines < 0.67"}},
  };
  return all;
}

std::vector<Rule> rules_of(const std::vector<std::string>& texts, bool of_lines) {
  const auto measures = all_measures();
  std::vector<Rule> rules;
  const auto add = [&](const std::string& text) {
    const auto parts = words_of(text);
    const auto wrong = [&](const std::string& reason) {
      throw base::ConfigError("the rule \"{}\": {}; a rule is a measure, a comparison (>=, <=, > or <) and a number, as \"words >= 50\"",
                              text, reason);
    };
    if (parts.size() != 3) {
      std::vector<std::string> sets;
      for (const auto& set : rule_sets()) sets.emplace_back(set.name);
      wrong("it has " + std::to_string(parts.size()) + " parts, and it is none of the sets " + base::join(sets, ", "));
    }
    Rule rule{.text = text};
    const auto found = std::find_if(measures.begin(), measures.end(), [&](const Measure& m) { return parts[0] == m.name; });
    if (found == measures.end()) {
      std::vector<std::string> names;
      for (const auto& m : measures) names.emplace_back(m.name);
      wrong(fmt::format("there is no measure {}; the nearest is {}", parts[0], base::closest_name(parts[0], names)));
    }
    rule.measure = static_cast<size_t>(found - measures.begin());
    using Comparison = Rule::Comparison;
    const std::pair<std::string_view, Comparison> comparisons[] = {
        {">=", Comparison::at_least}, {"<=", Comparison::at_most}, {">", Comparison::above}, {"<", Comparison::below}};
    const auto comparison =
        std::find_if(std::begin(comparisons), std::end(comparisons), [&](const auto& c) { return c.first == parts[1]; });
    if (comparison == std::end(comparisons)) wrong(fmt::format("{} is no comparison", parts[1]));
    rule.comparison = comparison->second;
    const std::string number(parts[2]);
    char* end = nullptr;
    rule.limit = std::strtod(number.c_str(), &end);
    if (*end != '\0' || !std::isfinite(rule.limit)) wrong(number + " is no number");
    rules.push_back(std::move(rule));
  };
  for (const auto& text : texts) {
    const auto set = std::find_if(rule_sets().begin(), rule_sets().end(), [&](const RuleSet& s) { return text == s.name; });
    if (set == rule_sets().end()) {
      add(text);
      continue;
    }
    if (set->is_of_lines != of_lines)
      throw base::ConfigError("{} is a set of rules of {}: it belongs to a step of kind \"{}\"", set->name,
                              set->is_of_lines ? "lines" : "documents", set->is_of_lines ? "lines" : "rules");
    for (const auto* rule : set->rules) add(rule);
  }
  return rules;
}

}  // namespace ingot::data::process
