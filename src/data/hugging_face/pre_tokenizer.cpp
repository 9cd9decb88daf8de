#include "data/hugging_face/pre_tokenizer.h"

#include <algorithm>

#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/fields.h"
#include "data/hugging_face/normalizer.h"
#include "data/hugging_face/word_scanner.h"

namespace ingot::data {
namespace {

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const std::string& name) {
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  refuse_kind("split behavior", name);
}

struct Span {
  size_t begin, end;
  bool match;
};

// The text as spans that match and spans between them.
std::vector<Span> spans_of(const Regex& pattern, std::string_view text, bool invert) {
  std::vector<Span> spans;
  size_t end = 0;
  for (const auto& match : pattern.find_all(text)) {
    if (end != match.begin) spans.push_back({end, match.begin, invert});
    spans.push_back({match.begin, match.end, !invert});
    end = match.end;
  }
  if (end != text.size()) spans.push_back({end, text.size(), invert});
  return spans;
}

std::vector<Span> joined(const std::vector<Span>& spans, Behavior behavior) {
  std::vector<Span> out;
  if (behavior == Behavior::merged_with_next) {
    bool next_matches = false;
    for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
      if (span->match && !next_matches && !out.empty()) out.back().begin = span->begin;
      else out.push_back(*span);
      next_matches = span->match;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  bool previous_matches = false;
  for (const Span& span : spans) {
    const bool to_previous = behavior == Behavior::merged_with_previous && span.match && !previous_matches;
    const bool to_run = behavior == Behavior::contiguous && span.match == previous_matches;
    if ((to_previous || to_run) && !out.empty()) out.back().end = span.end;
    else if (behavior != Behavior::removed || !span.match) out.push_back(span);
    previous_matches = span.match;
  }
  return out;
}

void split(std::vector<Segment>& segments, const Regex& pattern, Behavior behavior, bool invert) {
  std::vector<Segment> out;
  for (const Segment& segment : segments) {
    for (const Span& span : joined(spans_of(pattern, segment.text, invert), behavior)) {
      if (span.begin < span.end)
        out.push_back({segment.text.substr(span.begin, span.end - span.begin), segment.at_start && span.begin == 0});
    }
  }
  segments = std::move(out);
}

void scan(std::vector<Segment>& segments, WordScanner scanner) {
  std::vector<Segment> out;
  for (const Segment& segment : segments) {
    out.reserve(out.size() + segment.text.size() / 4);
    for (size_t at = 0; at < segment.text.size();) {
      const size_t end = scanner(segment.text, at);
      out.push_back({segment.text.substr(at, end - at), segment.at_start && at == 0});
      at = end;
    }
  }
  segments = std::move(out);
}

class Splitter : public PreTokenizer {
 public:
  Splitter(Regex pattern, Behavior behavior, bool invert) : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {
    // Matches that leave no gaps: every one is a piece, and what lies between, which may be removed, is nothing.
    if (behavior == Behavior::isolated || (behavior == Behavior::removed && invert)) scanner_ = scanner_of(pattern_);
  }
  void apply(std::vector<Segment>& segments, TextStore& /*made*/) const override {
    if (scanner_) scan(segments, scanner_);
    else split(segments, pattern_, behavior_, invert_);
  }

 private:
  Regex pattern_;
  Behavior behavior_;
  bool invert_;
  WordScanner scanner_ = nullptr;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(const nlohmann::json& json, bool keep_bytes)
      : keep_bytes_(keep_bytes),
        add_prefix_space_(json.at("add_prefix_space").get<bool>()),
        use_regex_(field_or(json, "use_regex", true)) {}

  void apply(std::vector<Segment>& segments, TextStore& made) const override {
    for (auto& segment : segments) {
      if (add_prefix_space_ && !segment.text.starts_with(' ')) segment.text = made.emplace_back(" ").append(segment.text);
    }
    if (use_regex_) words_.apply(segments, made);
    if (keep_bytes_) return;
    for (auto& segment : segments) segment.text = made.emplace_back(bytes_to_byte_level(segment.text));
  }

 private:
  bool keep_bytes_, add_prefix_space_, use_regex_;
  // GPT-2's pattern.
  Splitter words_{Regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"), Behavior::isolated, false};
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const nlohmann::json& json)
      : mark_(json.at("replacement").get<std::string>()),
        // Old files say add_prefix_space where new ones have a scheme.
        scheme_(field_or<std::string>(json, "prepend_scheme", field_or(json, "add_prefix_space", true) ? "always" : "never")),
        split_(field_or(json, "split", true)),
        space_(Regex::literal(" ")),
        mark_pattern_(Regex::literal(mark_)) {
    if (scheme_ != "always" && scheme_ != "first" && scheme_ != "never") refuse_kind("Metaspace prepend_scheme", scheme_);
    if (mark_.empty()) throw base::DataError("its Metaspace has an empty replacement");
  }

  void apply(std::vector<Segment>& segments, TextStore& made) const override {
    for (auto& segment : segments) {
      std::string& text = made.emplace_back(replace_all(space_, segment.text, mark_));
      const bool wanted = scheme_ == "always" || (scheme_ == "first" && segment.at_start);
      if (wanted && !text.starts_with(mark_)) text.insert(0, mark_);
      segment.text = text;
    }
    if (split_) split(segments, mark_pattern_, Behavior::merged_with_next, false);
  }

 private:
  std::string mark_, scheme_;
  bool split_;
  Regex space_, mark_pattern_;
};

class Sequence : public PreTokenizer {
 public:
  void apply(std::vector<Segment>& segments, TextStore& made) const override {
    for (const auto& part : parts) part->apply(segments, made);
  }
  std::vector<std::unique_ptr<PreTokenizer>> parts;
};

constexpr char kPunctuation[] = R"([\p{P}$+<=>^`|~])";  // ASCII's symbols count as punctuation

std::unique_ptr<PreTokenizer> make_bert() {
  auto sequence = std::make_unique<Sequence>();
  sequence->parts.push_back(std::make_unique<Splitter>(Regex(R"(\s)"), Behavior::removed, false));
  sequence->parts.push_back(std::make_unique<Splitter>(Regex(kPunctuation), Behavior::isolated, false));
  return sequence;
}

std::unique_ptr<PreTokenizer> make_fixed_length(const nlohmann::json& json) {
  const auto characters = json.at("length").get<int64_t>();
  if (characters < 1 || characters > 2000)  // what a pattern may repeat
    throw base::DataError("its FixedLength has a length of {}: from 1 to 2000 it may be", characters);
  return std::make_unique<Splitter>(Regex(fmt::format("(?s:.){{1,{}}}", characters)), Behavior::isolated, false);
}

std::unique_ptr<PreTokenizer> make(const nlohmann::json& json, bool keep_bytes, int depth) {
  check_depth(depth);
  const std::string kind = kind_of(json);
  const auto splitter = [](std::string_view pattern, Behavior behavior, bool invert = false) {
    return std::make_unique<Splitter>(Regex(pattern), behavior, invert);
  };
  if (kind.empty()) return std::make_unique<Sequence>();
  if (kind == "Sequence") {
    auto sequence = std::make_unique<Sequence>();
    for (const auto& part : json.at("pretokenizers")) sequence->parts.push_back(make(part, keep_bytes, depth + 1));
    return sequence;
  }
  if (kind == "ByteLevel") return std::make_unique<ByteLevel>(json, keep_bytes);
  if (kind == "Metaspace") return std::make_unique<Metaspace>(json);
  if (kind == "Split")
    return std::make_unique<Splitter>(pattern_of(json), behavior_of(json.at("behavior").get<std::string>()),
                                      field_or(json, "invert", false));
  // Rust's \w has the joiners besides Oniguruma's.
  if (kind == "Whitespace") return splitter(R"([\w\p{Join_Control}]+|[^\w\p{Join_Control}\s]+)", Behavior::removed, true);
  if (kind == "WhitespaceSplit") return splitter(R"(\s)", Behavior::removed);
  if (kind == "Digits") return splitter(R"(\p{N})", field_or(json, "individual_digits", false) ? Behavior::isolated : Behavior::contiguous);
  if (kind == "Punctuation") return splitter(kPunctuation, behavior_of(field_or<std::string>(json, "behavior", "Isolated")));
  if (kind == "BertPreTokenizer") return make_bert();
  if (kind == "FixedLength") return make_fixed_length(json);
  if (kind == "CharDelimiterSplit")
    return std::make_unique<Splitter>(Regex::literal(json.at("delimiter").get<std::string>()), Behavior::removed, false);
  refuse_kind("pre-tokenizer", kind);
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const nlohmann::json& json, bool keep_bytes) { return make(json, keep_bytes, 0); }

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Regex& pattern) {
  return std::make_unique<Splitter>(pattern, Behavior::removed, /*invert=*/true);
}

bool ends_in_byte_level(const nlohmann::json& json) {
  if (kind_of(json) == "ByteLevel") return true;
  if (kind_of(json) != "Sequence" || json.at("pretokenizers").empty()) return false;
  const auto& parts = json.at("pretokenizers");
  return kind_of(parts.back()) == "ByteLevel" && std::all_of(parts.begin(), parts.end() - 1, [](const auto& part) {
           return kind_of(part) != "ByteLevel" && kind_of(part) != "Sequence";
         });
}

}  // namespace ingot::data
