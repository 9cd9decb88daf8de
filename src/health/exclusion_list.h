// Nodes that a job is to be without, in a file: one name a line, behind # since when and why. Whoever mends a node takes its line away.
// Free of torch.
#pragma once

#include <filesystem>
#include <string>

namespace ingot::health {

/// Whether the list has `node`; no file is an empty list. Throws FileError, and DataError for what is no list.
bool is_excluded(const std::filesystem::path& list, const std::string& node);

/// Adds `node`, unless the list has it. Many nodes may do that at once. Throws FileError.
void exclude(const std::filesystem::path& list, const std::string& node, const std::string& why);

}  // namespace ingot::health
