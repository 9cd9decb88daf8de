// The pictures of docs/parallel-methods.md, and its table of published ratios: made by the code that the document describes, and checked
// against it by a test.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ingot::bench {

struct Figure {
  std::string file;  // "tsp.svg"
  std::string svg;
};
/// Each method on four ranks of a small machine.
std::vector<Figure> figures();

/// The document with what lies between its markers replaced by what the code makes now. Throws DataError when a marker is missing.
std::string with_current_tables(const std::string& document, const std::filesystem::path& clusters);

}  // namespace ingot::bench
