// Results of several runs or checkpoints beside one another: one page, with error bars.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ingot::eval {

/// A whole HTML file of what `ingot eval --results` has written, a row for each file in the order given. Files are hostile: throws
/// DataError "FILE: …" for what is none, or has values that are no numbers.
std::string ladder_page(const std::vector<std::filesystem::path>& results, const std::string& written);

}  // namespace ingot::eval
