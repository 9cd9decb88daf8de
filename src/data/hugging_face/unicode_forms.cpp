#include "data/hugging_face/unicode_forms.h"

#ifdef INGOT_UTF8PROC
#include <utf8proc.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

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

#ifdef INGOT_UTF8PROC
// What lies below U+0300, of the lead bytes up to 0xCB, is in NFC.
bool is_surely_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}
#endif

#ifdef INGOT_UTF8PROC
bool is_mark(char32_t c) {
  constexpr std::u32string_view kMarksOfMarks = U"\u0F73\u0F75\u0F81";  // of class 0 themselves
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class > 0 || kMarksOfMarks.find(c) != std::u32string_view::npos;
}

constexpr int kLongRun = 32;  // of marks

bool has_long_run_of_marks(std::string_view text) {
  for (int64_t number = 1; !text.empty(); ++number) {
    if (number % kLongRun == 0 && is_mark(decode_utf8(text).value)) return true;
    text.remove_prefix(std::min(text.size(), static_cast<size_t>(utf8_length(text[0]))));
  }
  return false;
}

// Decomposed, with marks in canonical order. utf8proc sorts them by insertion, which for a hundred thousand of them takes minutes.
std::string with_marks_in_order(std::string_view text) {
  struct Mark {
    char32_t value;
    int order;
  };
  std::string out;
  std::vector<Mark> marks;
  const auto flush = [&] {
    std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.order < b.order; });
    for (const auto& mark : marks) append_utf8(out, mark.value);
    marks.clear();
  };
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    std::array<utf8proc_int32_t, 16> parts{};
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts.data(), parts.size(),
                                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), nullptr);
    if (count < 1 || count > static_cast<utf8proc_ssize_t>(parts.size())) parts[0] = static_cast<utf8proc_int32_t>(c.value);
    for (int64_t i = 0; i < std::clamp<int64_t>(count, 1, 16); ++i) {
      const int order = utf8proc_get_property(parts[static_cast<size_t>(i)])->combining_class;
      if (order == 0) flush();
      marks.push_back({static_cast<char32_t>(parts[static_cast<size_t>(i)]), order});
    }
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  flush();
  return out;
}
#endif

void append_in_form(std::string_view text, UnicodeForm form, std::string& out) {
#ifdef INGOT_UTF8PROC
  std::string in_order;
  if (has_long_run_of_marks(text)) text = in_order = with_marks_in_order(text);
  if (form == UnicodeForm::nfc && is_surely_nfc(text)) {
    out += text;
    return;
  }
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made,
                                 static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  if (size < 0) throw base::DataError("a text of {} bytes cannot be normalised: {}", text.size(), utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
#else
  require_ascii(text, "a Unicode normalisation form");
#endif
}

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  std::string out;
  out.reserve(text.size());
  const auto is_ascii_byte = [&](size_t i) { return static_cast<unsigned char>(text[i]) < 0x80; };
  for (size_t at = 0; at < text.size();) {
    size_t run = at;  // where the next run beyond ASCII begins
    while (run < text.size() && is_ascii_byte(run)) ++run;
    size_t end = run;
    while (end < text.size() && !is_ascii_byte(end)) ++end;
    // A mark may compose with the ASCII character before it; what follows a run never changes with it.
    const size_t begin = run > at && run < text.size() ? run - 1 : run;
    out += text.substr(at, begin - at);
    if (begin < end) append_in_form(text.substr(begin, end - begin), form, out);
    at = end;
  }
  return out;
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
