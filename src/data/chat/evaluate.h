// Runs a chat template.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/syntax.h"

namespace ingot::data::chat {

struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generated;  // bytes of it that {% generation %} encloses
};

/// `variables`: what the template may read. `strict`: to print or go through what is undefined is an error, as with Jinja's
/// StrictUndefined. Throws DataError "line N: …", raise_exception's text among them, and where a template runs without end or prints
/// without bounds.
Rendered evaluate(const Body& body, const Dict& variables, bool strict = false);

}  // namespace ingot::data::chat
