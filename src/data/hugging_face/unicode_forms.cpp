#include "data/hugging_face/unicode_forms.h"

#ifdef INGOT_UTF8PROC
#include <utf8proc.h>
#endif

#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

#ifndef INGOT_UTF8PROC
void require_ascii(std::string_view text, std::string_view what) {
  if (!is_ascii(text))
    throw base::DataError(
        "the tokenizer asks for {} of a text beyond ASCII, and this program was built without utf8proc: install libutf8proc-dev and build "
        "again",
        what);
}
#endif

template <class Change>
std::string by_character(std::string_view text, const Change& change) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    change(out, c.value);
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  return out;
}

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  if (is_ascii(text)) return std::string(text);
#ifdef INGOT_UTF8PROC
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made,
                                 static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size < 0) throw base::DataError("a text of {} bytes cannot be normalised: {}", text.size(), utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(made), static_cast<size_t>(size)};
#else
  require_ascii(text, "a Unicode normalisation form");
  return std::string(text);
#endif
}

std::string to_lower_case(std::string_view text) {
#ifndef INGOT_UTF8PROC
  require_ascii(text, "lower case");
#endif
  return by_character(text, [](std::string& out, char32_t c) {
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {
      out += "i\xCC\x87";  // the one letter whose lower case is two characters
    } else {
#ifdef INGOT_UTF8PROC
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
#endif
    }
  });
}

std::string without_accents(std::string_view text) {
#ifdef INGOT_UTF8PROC
  return by_character(text, [](std::string& out, char32_t c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC && category != UTF8PROC_CATEGORY_ME) append_utf8(out, c);
  });
#else
  require_ascii(text, "the removal of accents");
  return std::string(text);
#endif
}

}  // namespace ingot::data
