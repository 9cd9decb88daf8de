#include "data/hugging_face/normalizer.h"

#include <vector>

#include "data/base64.h"
#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/fields.h"
#include "data/hugging_face/precompiled.h"
#include "data/hugging_face/unicode_forms.h"
#include "data/utf8.h"

namespace ingot::data {

namespace {

// A few replacements in a row could make a page out of every letter.
void check_growth(size_t before_bytes, size_t after_bytes) {
  if (after_bytes > 64 * (before_bytes + 1024))
    throw base::DataError("the tokenizer's normaliser turns a text of {} bytes into one of more than {}", before_bytes, after_bytes);
}

}  // namespace

std::string replace_all(const Regex& pattern, std::string_view text, const std::string& with) {
  std::string out;
  size_t end = 0;
  for (const auto& match : pattern.find_all(text)) {
    out.append(text.substr(end, match.begin - end)).append(with);
    end = match.end;
    check_growth(text.size(), out.size());
  }
  return out.append(text.substr(end));
}

namespace {

template <class Change>
class SimpleNormalizer : public Normalizer {
 public:
  explicit SimpleNormalizer(Change change) : change_(std::move(change)) {}
  std::string apply(std::string text) const override { return change_(std::move(text)); }

 private:
  Change change_;
};

template <class Change>
std::unique_ptr<Normalizer> simple(Change change) {
  return std::make_unique<SimpleNormalizer<Change>>(std::move(change));
}

class SequenceNormalizer : public Normalizer {
 public:
  std::string apply(std::string text) const override {
    const size_t before_bytes = text.size();
    for (const auto& part : parts) {
      text = part->apply(std::move(text));
      check_growth(before_bytes, text.size());
    }
    return text;
  }
  std::vector<std::unique_ptr<Normalizer>> parts;
};

std::string strip(const std::string& text, bool left, bool right) {
  std::string_view rest = text;
  while (left && !rest.empty()) {
    const CodePoint c = decode_utf8(rest);
    if (!is_unicode_space(c.value)) break;
    rest.remove_prefix(static_cast<size_t>(c.length));
  }
  while (right && !rest.empty()) {
    size_t begin = rest.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(rest[begin]) & 0xC0) == 0x80) --begin;
    if (!is_unicode_space(decode_utf8(rest.substr(begin)).value)) break;
    rest.remove_suffix(rest.size() - begin);
  }
  return std::string(rest);
}

// BERT's own steps (google-research/bert, tokenization.py, BasicTokenizer), in its order.
class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(const nlohmann::json& json)
      : clean_text_(field_or(json, "clean_text", true)),
        chinese_(field_or(json, "handle_chinese_chars", true)),
        lowercase_(field_or(json, "lowercase", true)),
        strip_accents_(field_or(json, "strip_accents", lowercase_)) {}

  std::string apply(std::string text) const override {
    if (clean_text_) text = replace_all(spaces_, replace_all(control_, text, ""), " ");
    if (chinese_) text = set_apart(text);
    if (strip_accents_) text = replace_all(accents_, to_unicode_form(text, UnicodeForm::nfd), "");
    return lowercase_ ? to_lower_case(text) : text;
  }

 private:
  std::string set_apart(const std::string& text) const {
    if (is_ascii(text)) return text;
    std::string out;
    size_t end = 0;
    for (const auto& match : ideographs_.find_all(text)) {
      out.append(text, end, match.begin - end).append(" ").append(text, match.begin, match.end - match.begin).append(" ");
      end = match.end;
    }
    return out.append(text, end);
  }

  bool clean_text_, chinese_, lowercase_, strip_accents_;
  Regex control_{R"([\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\p{Cf}\p{Co}\x{FFFD}])"}, spaces_{R"(\s)"}, accents_{R"(\p{Mn})"};
  // The blocks that Hugging Face takes for Chinese; two bounds differ from BERT's.
  Regex ideographs_{
      R"([\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B81F}\x{2B920}-\x{2CEAF}\x{2F800}-\x{2FA1F}])"};
};

// The rules of SentencePiece's nmt_nfkc for control characters and spaces.
std::unique_ptr<Normalizer> make_nmt() {
  const Regex gone(R"([\x01-\x08\x0B\x0E-\x1F\x7F\x{8F}\x{9F}])");
  const Regex space(R"([\x09\x0A\x0C\x0D\x{1680}\x{200B}-\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}])");
  return simple([gone, space](const std::string& text) { return replace_all(space, replace_all(gone, text, ""), " "); });
}

std::unique_ptr<Normalizer> make_precompiled(const nlohmann::json& json) {
  const auto map = bytes_of_base64(json.at("precompiled_charsmap").get<std::string>());
  if (!map) throw base::DataError("its precompiled_charsmap is not base64");
  return simple([map = Precompiled(*map)](const std::string& text) {
    std::string out = map.apply(text);
    check_growth(text.size(), out.size());
    return out;
  });
}

std::unique_ptr<Normalizer> make(const nlohmann::json& json, int depth) {
  check_depth(depth);
  const std::string kind = kind_of(json);
  if (kind.empty()) return simple([](std::string text) { return text; });
  if (kind == "Sequence") {
    auto sequence = std::make_unique<SequenceNormalizer>();
    for (const auto& part : json.at("normalizers")) sequence->parts.push_back(make(part, depth + 1));
    return sequence;
  }
  if (kind == "Prepend")
    return simple([prefix = json.at("prepend").get<std::string>()](std::string text) { return text.empty() ? text : prefix + text; });
  if (kind == "Replace")
    return simple([pattern = pattern_of(json), with = json.at("content").get<std::string>()](const std::string& text) {
      return replace_all(pattern, text, with);
    });
  if (kind == "NFC") return simple([](const std::string& text) { return to_unicode_form(text, UnicodeForm::nfc); });
  if (kind == "NFD") return simple([](const std::string& text) { return to_unicode_form(text, UnicodeForm::nfd); });
  if (kind == "NFKC") return simple([](const std::string& text) { return to_unicode_form(text, UnicodeForm::nfkc); });
  if (kind == "NFKD") return simple([](const std::string& text) { return to_unicode_form(text, UnicodeForm::nfkd); });
  if (kind == "Lowercase") return simple([](const std::string& text) { return to_lower_case(text); });
  if (kind == "StripAccents") return simple([](const std::string& text) { return without_accents(text); });
  if (kind == "BertNormalizer") return std::make_unique<BertNormalizer>(json);
  if (kind == "Nmt") return make_nmt();
  if (kind == "Precompiled") return make_precompiled(json);
  if (kind == "ByteLevel") return simple([](const std::string& text) { return bytes_to_byte_level(text); });
  if (kind == "Strip")
    return simple([left = json.at("strip_left").get<bool>(), right = json.at("strip_right").get<bool>()](const std::string& text) {
      return strip(text, left, right);
    });
  refuse_kind("normalizer", kind);
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json) { return make(json, 0); }

}  // namespace ingot::data
