// Tokens as text that a person can tell apart: each with its id, those that are no text, and those without a loss.
#pragma once

#include <string>
#include <string_view>

#include "data/statistics/shown.h"
#include "data/tokenizer.h"

namespace ingot::report {

/// Text of strangers as HTML: what would not be seen, or would change how other text is read (control characters, marks of direction), is
/// spelled as "U+202E"; ends of lines are marked and kept.
std::string visible(std::string_view text);
/// The same for attributes and tables, without elements and lines.
std::string visible_line(std::string_view text);
/// The same as text, not HTML.
std::string spelled(std::string_view text);

/// A token alone: its piece, or its number where there is no tokenizer or the id is outside of its vocabulary.
std::string piece_of(const data::Tokenizer* tokenizer, int32_t id);
bool is_special(const data::Tokenizer& tokenizer, int32_t id);

/// `<div class="tokens">`, with a line below it that tokens.js fills. `tokenizer` may be null.
std::string render(const data::ShownTokens& shown, const data::Tokenizer* tokenizer);

/// The text of the ids, visible, in one line.
std::string text_of(const data::ShownTokens& shown, const data::Tokenizer* tokenizer);

}  // namespace ingot::report
