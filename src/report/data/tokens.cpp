#include "report/data/tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/utf8.h"
#include "report/page/html.h"

namespace ingot::report {
namespace {

using data::Tokenizer;

struct Range {
  char32_t first, last;
};
// Controls, formats that hide or turn text, and tags. Joiners stay: scripts and emoji need them.
constexpr Range kInvisible[] = {{0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},    {0x115F, 0x1160},
                                {0x180E, 0x180E}, {0x200B, 0x200B}, {0x200E, 0x200F}, {0x2028, 0x202E},  {0x2060, 0x206F},
                                {0x3164, 0x3164}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};

bool is_invisible(char32_t c) {
  return std::any_of(std::begin(kInvisible), std::end(kInvisible), [&](const Range& range) { return c >= range.first && c <= range.last; });
}

// `spell` stands for what cannot be seen, `keep` for all else.
template <class Spell, class Keep>
std::string translated(std::string_view text, const Spell& spell, const Keep& keep) {
  std::string out;
  while (!text.empty()) {
    const auto point = data::decode_utf8(text);
    const auto part = text.substr(0, static_cast<size_t>(std::max(point.length, 1)));
    if (!point.valid) out += "\xEF\xBF\xBD";
    else if (is_invisible(point.value)) out += spell(point.value);
    else out += keep(part);
    text.remove_prefix(part.size());
  }
  return out;
}

bool is_inside(const Tokenizer& tokenizer, int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); }

// The texts of tokens as they come out one after the other: bytes of one character have it at the last of them.
class Texts {
 public:
  explicit Texts(const Tokenizer* tokenizer) : tokenizer_(tokenizer) { start_over(); }
  void start_over() {
    if (tokenizer_) decoder_.emplace(*tokenizer_, /*keep_special=*/true);
  }
  std::string next(int32_t id) {
    if (!tokenizer_) return fmt::format("{} ", id);
    if (is_inside(*tokenizer_, id)) return decoder_->push(id);
    start_over();
    return "";
  }

 private:
  const Tokenizer* tokenizer_;
  std::optional<data::StreamDecoder> decoder_;
};

std::string classes_of(const Tokenizer* tokenizer, int32_t id, bool is_learned, bool has_text) {
  std::string classes;
  if (!is_learned) classes += " u";
  if (tokenizer && !is_inside(*tokenizer, id)) classes += " x";
  else if (tokenizer && is_special(*tokenizer, id)) classes += " s";
  else if (!has_text) classes += " b";
  return classes.empty() ? "" : fmt::format(" class=\"{}\"", classes.substr(1));
}

std::string token_html(const Tokenizer* tokenizer, int32_t id, size_t place, bool is_learned, const std::string& text) {
  const std::string piece = piece_of(tokenizer, id);
  const std::string about = fmt::format("{}: id {}{}{}", place, id, tokenizer ? "  " + piece : "", is_learned ? "" : "  no loss");
  return fmt::format("<span{} title=\"{}\">{}</span>", classes_of(tokenizer, id, is_learned, !text.empty()), visible_line(about),
                     text.empty() ? visible(piece) : visible(text));
}

std::string piece_head(const data::ShownPiece& piece, int64_t end) {
  const bool is_whole = piece.first == 0 && end == piece.document_tokens;
  return fmt::format("<p class=\"piece\">document {} of {}, {}</p>", grouped(piece.document), visible_line(piece.source),
                     is_whole ? grouped(end) + " tokens"
                              : fmt::format("tokens {}–{} of {}", grouped(piece.first + 1), grouped(end), grouped(piece.document_tokens)));
}

std::string summary_of(const data::ShownTokens& shown) {
  const auto learned = std::count(shown.learned.begin(), shown.learned.end(), true);
  std::string out = fmt::format("{}: {} tokens", shown.title, grouped(shown.tokens));
  if (shown.pieces.size() > 1) out += fmt::format(" of {} documents", shown.pieces.size());
  if (static_cast<int64_t>(shown.ids.size()) < shown.tokens)
    out += fmt::format(", the first {} of them", grouped(static_cast<int64_t>(shown.ids.size())));
  if (learned < static_cast<int64_t>(shown.ids.size())) out += fmt::format(", {} with a loss", grouped(learned));
  if (shown.padding > 0) out += fmt::format(", {} of padding", grouped(shown.padding));
  return out;
}

}  // namespace

std::string visible(std::string_view text) {
  const auto spell = [](char32_t c) -> std::string {
    if (c == '\n') return "<i>↵</i>\n";
    if (c == '\t') return "<i>→</i>\t";
    return fmt::format("<i>U+{:04X}</i>", static_cast<uint32_t>(c));
  };
  return translated(text, spell, [](std::string_view part) { return escape(part); });
}

std::string spelled(std::string_view text) {
  const auto spell = [](char32_t c) -> std::string {
    return c == '\n' ? "↵" : c == '\t' ? "→" : fmt::format("U+{:04X}", static_cast<uint32_t>(c));
  };
  return translated(text, spell, [](std::string_view part) { return part; });
}

std::string visible_line(std::string_view text) { return escape(spelled(text)); }

std::string piece_of(const Tokenizer* tokenizer, int32_t id) {
  return tokenizer && is_inside(*tokenizer, id) ? tokenizer->piece(id) : fmt::format("{}", id);
}

bool is_special(const Tokenizer& tokenizer, int32_t id) {
  return is_inside(tokenizer, id) && tokenizer.decode({&id, 1}, false).empty() && !tokenizer.decode({&id, 1}, true).empty();
}

std::string render(const data::ShownTokens& shown, const Tokenizer* tokenizer) {
  Texts texts(tokenizer);
  std::string body;
  size_t at = 0;
  for (const auto& piece : shown.pieces) {
    body += piece_head(piece, piece.first + static_cast<int64_t>(piece.tokens)) + "\n<p class=\"run\">";
    texts.start_over();
    for (size_t i = 0; i < piece.tokens && at < shown.ids.size(); ++i, ++at)
      body += token_html(tokenizer, shown.ids[at], at, shown.learned[at], texts.next(shown.ids[at]));
    body += "</p>\n";
  }
  if (shown.padding > 0) body += fmt::format("<p class=\"piece\">padding, {} tokens</p>\n", grouped(shown.padding));
  const auto summary = visible_line(summary_of(shown));
  return fmt::format(
      "<details class=\"shown\"><summary>{0}</summary>\n<div class=\"tokens\" tabindex=\"0\" role=\"group\" aria-label=\"{0}; arrow keys "
      "go "
      "from token to token\">\n{1}</div><p class=\"token\" role=\"status\">&nbsp;</p></details>\n",
      summary, body);
}

std::string text_of(const data::ShownTokens& shown, const Tokenizer* tokenizer) {
  Texts texts(tokenizer);
  std::string text;
  for (const int32_t id : shown.ids) text += texts.next(id);
  return visible_line(text) + (static_cast<int64_t>(shown.ids.size()) < shown.tokens ? "…" : "");
}

}  // namespace ingot::report
