// A template cut into text, {{ … }} and {% … %}; of a chat template the white space is gone that transformers' settings of Jinja trim.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ingot::data::chat {

/// DataError "line N: …".
template <class... Args>
[[noreturn]] void fail(int line, fmt::format_string<Args...> what, Args&&... args) {
  throw base::DataError("line {}: {}", line, fmt::format(what, std::forward<Args>(args)...));
}

inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

struct Piece {
  enum class Kind { text, output, statement } kind;
  std::string content;
  int line = 1;
};

/// `trims`: trim_blocks, lstrip_blocks and no keep_trailing_newline. Throws DataError for a tag that is not closed.
std::vector<Piece> cut(std::string_view source, bool trims = true);

}  // namespace ingot::data::chat
