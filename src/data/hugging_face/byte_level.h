// GPT-2's alphabet: each of the 256 bytes as one printable character, so that a vocabulary of bytes is a vocabulary of text.
// Printable Latin-1 stands for itself, the others are moved behind U+0100 in order (openai/gpt-2, encoder.py).
#pragma once

#include <string>
#include <string_view>

namespace ingot::data {

std::string bytes_to_byte_level(std::string_view bytes);

/// Appends the bytes behind a token; false, with nothing appended, if it holds a character that stands for no byte.
bool append_byte_level(std::string_view token, std::string& bytes);

}  // namespace ingot::data
