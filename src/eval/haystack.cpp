#include "eval/haystack.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "eval/shots.h"

namespace ingot::eval {
namespace {

// What is said around the lines: they are what may be left out.
struct Frame {
  std::string begin, end;
};

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  std::string word(size_t syllables) {
    static const std::string kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
    std::string text;
    for (size_t i = 0; i < syllables; ++i) {
      text += kConsonants[random_.below(kConsonants.size())];
      text += kVowels[random_.below(kVowels.size())];
    }
    return text;
  }
  // None of those before.
  std::string new_word(size_t syllables) {
    for (;;)
      if (auto text = word(syllables); known_.insert(text).second) return text;
  }
  std::string number() { return std::to_string(10000 + random_.below(90000)); }
  std::string sentence() {
    static const std::vector<std::string> kPeople = {"The baker", "A sailor",    "The teacher", "My neighbour",
                                                     "A farmer",  "The painter", "Our guest"};
    static const std::vector<std::string> kDoes = {"walked to",  "spoke about", "returned from", "looked at",
                                                   "remembered", "drew",        "passed"};
    static const std::vector<std::string> kWhat = {"the old mill", "the harbour",     "a quiet garden",
                                                   "the market",   "the long bridge", "a small house"};
    static const std::vector<std::string> kWhen = {"in the morning", "before the rain", "last summer",
                                                   "after the meal", "at night",        "without a word"};
    const auto one = [&](const auto& of) { return of[random_.below(of.size())]; };
    return one(kPeople) + " " + one(kDoes) + " " + one(kWhat) + " " + one(kWhen) + ".";
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random_.below(i)]);
  }
  PythonRandom& random() { return random_; }

 private:
  PythonRandom random_;
  std::set<std::string> known_;
};

using Lines = std::vector<std::string>;

std::string text_of(const Frame& frame, const Lines& lines, const std::string& separator) {
  std::string text = frame.begin;
  for (const auto& line : lines) text += line + separator;
  return text + frame.end;
}

// The most lines, of `most` that `lines_of(n)` makes, whose prompt is no longer than it may be.
int64_t fitting(const HaystackOptions& options, const std::function<int64_t(int64_t)>& tokens_of_lines, int64_t fewest) {
  if (tokens_of_lines(fewest) > options.tokens)
    throw base::ConfigError("a prompt of {} tokens has no room for the question of '{}', which has {}; give longer ones", options.tokens,
                            options.kind, tokens_of_lines(fewest));
  int64_t low = fewest, high = fewest + 1;
  while (tokens_of_lines(high) <= options.tokens) low = high, high *= 2;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (tokens_of_lines(middle) <= options.tokens ? low : high) = middle;
  }
  return low;
}

Haystack needles(Maker& maker, const HaystackOptions& options, const std::function<int64_t(const std::string&)>& tokens_of) {
  const bool is_one = options.kind == "needle";
  Haystack made;
  Lines hidden;
  std::vector<std::string> keys;
  for (int64_t i = 0; i < (is_one ? 1 : options.needles); ++i) {
    keys.push_back(maker.new_word(3));
    made.answers.push_back(maker.number());
    hidden.push_back("The secret number of " + keys.back() + " is " + made.answers.back() + ".");
  }
  Frame frame{"Read the text and remember the secret numbers in it.\n\n", ""};
  if (is_one) {
    frame.end = "\n\nWhat is the secret number of " + keys[0] + "? The secret number of " + keys[0] + " is";
  } else {
    std::string named;
    for (size_t i = 0; i < keys.size(); ++i) named += (i == 0 ? "" : ", ") + keys[i];
    frame.end = "\n\nWhat are the secret numbers of " + named + "? In this order, the secret numbers are";
  }
  Lines straw;
  // Needles among the first `count` sentences.
  const auto prompt_of = [&](int64_t count) {
    while (static_cast<int64_t>(straw.size()) < count) straw.push_back(maker.sentence());
    Lines lines(straw.begin(), straw.begin() + count);
    for (size_t i = hidden.size(); i-- > 0;) {
      const double depth = is_one ? options.depth : (static_cast<double>(i) + 0.5) / static_cast<double>(hidden.size());
      lines.insert(lines.begin() + std::lround(depth * static_cast<double>(count)), hidden[i]);
    }
    return text_of(frame, lines, " ");
  };
  const int64_t count = fitting(
      options, [&](int64_t lines) { return tokens_of(prompt_of(lines)); }, 0);
  made.prompt = prompt_of(count);
  return made;
}

Haystack variables(Maker& maker, const HaystackOptions& options, const std::function<int64_t(const std::string&)>& tokens_of) {
  constexpr size_t kNames = 5;
  Haystack made;
  const auto value = maker.number();
  Lines chain;
  for (size_t i = 0; i < kNames; ++i) {
    auto name = maker.new_word(2);
    for (auto& c : name) c = static_cast<char>(c - 'a' + 'A');
    chain.push_back("VAR " + name + " = " + (i == 0 ? value : "VAR " + made.answers.back()));
    made.answers.push_back(name);
  }
  const Frame frame{
      "Remember which variables have which value.\n\n",
      "\nWhich variables have the value " + value + "? The " + std::to_string(kNames) + " variables with the value " + value + " are"};
  Lines straw;
  std::vector<double> places;
  for (size_t i = 0; i < kNames; ++i) places.push_back(static_cast<double>(maker.random().below(1000)) / 1000);
  std::sort(places.begin(), places.end());
  const auto prompt_of = [&](int64_t count) {
    while (static_cast<int64_t>(straw.size()) < count) straw.push_back(maker.sentence());
    Lines lines(straw.begin(), straw.begin() + count);
    for (size_t i = kNames; i-- > 0;) lines.insert(lines.begin() + std::lround(places[i] * static_cast<double>(count)), chain[i]);
    return text_of(frame, lines, "\n");
  };
  const int64_t count = fitting(
      options, [&](int64_t lines) { return tokens_of(prompt_of(lines)); }, 0);
  made.prompt = prompt_of(count);
  return made;
}

Haystack words(Maker& maker, const HaystackOptions& options, const std::function<int64_t(const std::string&)>& tokens_of) {
  constexpr size_t kCommon = 3, kTimes = 8;
  Haystack made;
  for (size_t i = 0; i < kCommon; ++i) made.answers.push_back(maker.new_word(2));
  const Frame frame{"Remember the words that are in the list most often.\n\n",
                    "\nWhich words are in the list most often? The " + std::to_string(kCommon) + " most common words are"};
  Lines rare;
  const auto prompt_of = [&](int64_t count) {
    while (static_cast<int64_t>(rare.size()) < count) rare.push_back(maker.new_word(2 + rare.size() / 1000));
    Lines lines(rare.begin(), rare.begin() + count);
    for (size_t i = 0; i < kTimes; ++i) lines.insert(lines.end(), made.answers.begin(), made.answers.end());
    Maker order(options.seed + 1);
    order.shuffle(lines);
    for (size_t i = 0; i < lines.size(); ++i) lines[i] = std::to_string(i + 1) + ". " + lines[i];
    return text_of(frame, lines, " ");
  };
  const int64_t count = fitting(
      options, [&](int64_t lines) { return tokens_of(prompt_of(lines)); }, 0);
  made.prompt = prompt_of(count);
  return made;
}

}  // namespace

Haystack make_haystack(const HaystackOptions& options, const std::function<int64_t(const std::string&)>& tokens_of) {
  Maker maker(options.seed);
  if (options.kind == "variable_tracking") return variables(maker, options, tokens_of);
  if (options.kind == "common_words") return words(maker, options, tokens_of);
  return needles(maker, options, tokens_of);
}

}  // namespace ingot::eval
