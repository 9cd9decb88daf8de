#include "data/hugging_face/normalizer.h"

#include <vector>

#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/fields.h"
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

std::string replace_all(const Regex& pattern, const std::string& text, const std::string& with) {
  std::string out;
  size_t end = 0;
  for (const auto& match : pattern.find_all(text)) {
    out.append(text, end, match.begin - end).append(with);
    end = match.end;
    check_growth(text.size(), out.size());
  }
  return out.append(text, end);
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
