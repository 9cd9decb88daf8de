// Unicode's normalisation forms and the character properties that tokenizers ask for, from utf8proc. Where the program was
// built without it, ASCII, which all forms leave alone, still works; other text is refused.
#pragma once

#include <string>
#include <string_view>

namespace ingot::data {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

/// Throws DataError for text beyond ASCII in a build without utf8proc. `text` must be valid UTF-8.
std::string to_unicode_form(std::string_view text, UnicodeForm form);
/// Full lower case of each character by itself.
std::string to_lower_case(std::string_view text);
/// Without combining marks (general categories Mn, Mc and Me).
std::string without_accents(std::string_view text);

}  // namespace ingot::data
