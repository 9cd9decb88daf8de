// Reads what `ingot bench` writes: machine profiles, and the JSON of `ingot bench collectives`. The files are hostile until they have
// been read: whatever is missing, of a wrong type or out of range is a ProfileError or DataError that names the file and the member.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plan/profile.h"

namespace ingot::report {

/// What one machine was measured to do: a profile, a file of collectives, or both.
struct Measured {
  std::string name;                       // of the file or files
  bool has_profile = false;               // else only the collectives were measured
  plan::MachineProfile profile;           // collectives of both files
  std::vector<std::string> descriptions;  // of collectives that came in a file of their own: ranks, fabric, machine
};

enum class FileKind { profile, collectives, other };
/// By the members that the whole document has; `other` for what is neither, broken JSON included. Throws FileError.
FileKind kind_of_file(const std::filesystem::path& path);

/// `name` is what errors call the file.
Measured parse_profile(const std::string& content, const std::string& name);
Measured parse_collectives(const std::string& content, const std::string& name);

/// One machine for each profile, and one for each file of collectives beyond: the first of these belongs to the first profile, and so
/// on. Throws UsageError for more than two machines.
std::vector<Measured> read_measured(const std::vector<std::filesystem::path>& paths);

}  // namespace ingot::report
