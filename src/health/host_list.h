// Lists of hosts as Slurm writes them, "node[001-003,007]". Free of torch.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::health {

/// For --nodelist and --exclude: names that end in numbers come together by what stands before these, leading zeros kept; each name
/// once, sorted.
std::string compressed_hosts(std::vector<std::string> hosts);

/// The names of such a list, in its order. Throws DataError for brackets that do not close, ranges that fall and lists of more than
/// 65,536 names.
std::vector<std::string> expanded_hosts(std::string_view list);

/// A file of hosts: names or such lists, separated by blanks, commas or lines; from # to the end of a line is a remark.
std::vector<std::string> parse_host_file(std::string_view text);

/// Writes one host a line, or for Slurm all of them as one list. Throws FileError.
void write_hosts(const std::filesystem::path& path, const std::vector<std::string>& hosts, bool for_slurm);

}  // namespace ingot::health
