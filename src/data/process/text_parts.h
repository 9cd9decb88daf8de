// Parts of texts that steps compare and take out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::data::process {

/// Of ASCII.
inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
std::string_view trimmed(std::string_view text);
/// Code points.
int64_t characters_of(std::string_view text);

/// A text cut into its lines or paragraphs, each with what separates it from the next, so that together they are the text. What is before
/// the first one is a part of white space.
std::vector<std::string_view> lines_with_ends(std::string_view text);
std::vector<std::string_view> paragraphs_with_ends(std::string_view text);

/// Letters of any script: beyond ASCII all but punctuation, symbols, spaces and pictures.
bool is_letter(char32_t c);

/// Whether a line of JSON has values inside of more than 200 others, which writing them would take stack for.
bool is_nested_too_deeply(std::string_view json);

/// Hashes of the words of a text, for comparing runs of them: letters and digits alone, ASCII in lower case. A word without any is left
/// out.
std::vector<uint64_t> word_hashes(std::string_view text);
/// Of words [at, at + n).
uint64_t run_hash(const std::vector<uint64_t>& words, size_t at, size_t n);

}  // namespace ingot::data::process
