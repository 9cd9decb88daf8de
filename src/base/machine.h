// What this machine offers to a run beyond cores and memory (process.h): vector instructions, disk space, limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ingot::base {

/// Names of the instruction sets that matter here and this CPU has, e.g. {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"}.
std::vector<std::string> cpu_instruction_sets();

struct DiskSpace {
  int64_t free_bytes = 0, total_bytes = 0;  // free for this user
};
/// Of the file system that holds `path`. Throws FileError.
DiskSpace disk_space(const std::filesystem::path& path);

/// What kind of file system holds `path`, as mount calls it: "ext4", "xfs", "nfs4", "tmpfs" …; "unknown" where the system does not tell.
std::string file_system_type(const std::filesystem::path& path);
/// The same by the text of /proc/self/mountinfo, for an absolute path without links: the mount point that is its longest beginning, of
/// equal ones the last.
std::string file_system_type(const std::filesystem::path& path, const std::string& mountinfo);

/// Memory that can be had without swapping, /proc/meminfo's MemAvailable; 0 where unknown.
int64_t available_memory_bytes();
/// What a control group (container, Slurm job) allows this process; 0 = no limit known.
int64_t memory_limit_bytes();
/// What a process can have of the machine: all, or the limit where there is one.
int64_t usable_memory_bytes();

struct Limits {
  int64_t open_files = 0, locked_memory_bytes = 0;  // soft limits; -1 = unlimited
};
Limits process_limits();

/// The first program of that name in a PATH-like list of folders, or "".
std::string find_program(const std::string& name, const std::string& path);

}  // namespace ingot::base
