#include "base/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"

namespace ingot::base {
namespace {

namespace fs = std::filesystem;

int64_t soft_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
}

// A file that holds one number, or "max"; 0 when it is missing or unlimited.
int64_t number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  // Control groups of the old kind say "unlimited" as a number near 2^63.
  return file >> value && value < (int64_t{1} << 60) ? value : 0;
}

}  // namespace

std::vector<std::string> cpu_instruction_sets() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) found.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) found.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) found.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bf16")) found.emplace_back("avx512_bf16");
#endif
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const bool is_flags = line.starts_with("flags") || line.starts_with("Features");
    if (!is_flags) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) {
      if (word == "amx_bf16" || word == "asimd" || word == "sve" || word == "bf16") found.push_back(word);
    }
    break;
  }
  return found;
}

DiskSpace disk_space(const fs::path& path) {
  std::error_code failure;
  const auto space = fs::space(path, failure);
  if (failure) throw FileError("cannot ask for the free space of {}: {}", path.string(), failure.message());
  return {static_cast<int64_t>(space.available), static_cast<int64_t>(space.capacity)};
}

std::string file_system_type(const fs::path& path) {
  std::error_code failure;
  const auto real = fs::canonical(path, failure);
  std::ifstream file("/proc/self/mountinfo");
  const std::string mounts{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return failure ? "unknown" : file_system_type(real, mounts);
}

// One mount a line: id, parent, device, root, mount point, options, more fields up to a lone "-", then the type. Spaces in names are \040.
std::string file_system_type(const fs::path& path, const std::string& mountinfo) {
  std::string type = "unknown";
  size_t longest = 0;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, point;
    for (int i = 0; i < 5 && words >> word;) point = ++i == 5 ? word : "";
    while (words >> word && word != "-") {
    }
    if (point.empty() || !(words >> word)) continue;
    for (const auto& [code, character] : {std::pair{"\\040", " "}, {"\\011", "\t"}, {"\\012", "\n"}, {"\\134", "\\"}})
      for (size_t at = 0; (at = point.find(code, at)) != std::string::npos; ++at) point.replace(at, 4, character);
    const auto& whole = path.native();
    const bool holds = point == "/" || (whole.starts_with(point) && (whole.size() == point.size() || whole[point.size()] == '/'));
    if (!holds || point.size() < longest) continue;
    longest = point.size();
    type = word;
  }
  return type;
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (int64_t kilobytes = 0; file >> key >> kilobytes; std::getline(file, unit)) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

int64_t memory_limit_bytes() {
  std::ifstream file("/proc/self/cgroup");
  int64_t least = 0;
  const auto consider = [&](int64_t limit) {
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
  };
  // A limit of any group above this one holds too.
  for (std::string line; std::getline(file, line);) {
    const auto parts = split(line, ':');
    if (parts.size() != 3) continue;
    const bool unified = parts[1].empty();
    if (!unified && parts[1].find("memory") == std::string::npos) continue;
    const fs::path root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (fs::path group = fs::path(parts[2]).relative_path();; group = group.parent_path()) {
      consider(number_in(root / group / (unified ? "memory.max" : "memory.limit_in_bytes")));
      if (group.empty()) break;
    }
  }
  return least;
}

int64_t usable_memory_bytes() {
  const int64_t limit = memory_limit_bytes(), all = total_memory_bytes();
  return limit > 0 ? std::min(limit, all) : all;
}

Limits process_limits() { return {soft_limit(RLIMIT_NOFILE), soft_limit(RLIMIT_MEMLOCK)}; }

std::string find_program(const std::string& name, const std::string& path) {
  for (const auto& folder : split(path, ':')) {
    const auto candidate = fs::path(folder) / name;
    if (!folder.empty() && access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return "";
}

}  // namespace ingot::base
