#include "base/process.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace ingot::base {
namespace {

// A "Key:   123 kB" line of a proc file, in bytes.
int64_t proc_kilobytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    rest >> value;
    return value * 1024;
  }
  return 0;
}

double own_cpu_seconds() {
  timespec own{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  return static_cast<double>(own.tv_sec) + 1e-9 * static_cast<double>(own.tv_nsec);
}

// That everything but this process has used since the machine started. 0 where unknown.
double foreign_cpu_seconds() {
  std::ifstream file("/proc/stat");
  std::string label;
  int64_t user = 0, nice = 0, system = 0, idle = 0, wait = 0, interrupt = 0, soft_interrupt = 0, steal = 0;
  if (!(file >> label >> user >> nice >> system >> idle >> wait >> interrupt >> soft_interrupt >> steal)) return 0;
  const auto ticks = static_cast<double>(user + nice + system + interrupt + soft_interrupt + steal);
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) - own_cpu_seconds();
}

}  // namespace

int64_t resident_bytes() { return proc_kilobytes("/proc/self/status", "VmRSS:"); }
int64_t peak_resident_bytes() { return proc_kilobytes("/proc/self/status", "VmHWM:"); }
void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

int64_t total_memory_bytes() { return proc_kilobytes("/proc/meminfo", "MemTotal:"); }

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

void release_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

LoadWatch::LoadWatch() : start_(std::chrono::steady_clock::now()), foreign_s_(foreign_cpu_seconds()), own_s_(own_cpu_seconds()) {}

double LoadWatch::own_cpu_s() const { return own_cpu_seconds() - own_s_; }

double LoadWatch::foreign_share(double companions_cpu_s) const {
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (!(wall_s > 0)) return 0;
  return std::clamp((foreign_cpu_seconds() - foreign_s_ - companions_cpu_s) / (wall_s * usable_cores()), 0.0, 1.0);
}

double waiting_for_cores_seconds() {
  int64_t nanoseconds = 0;
  std::error_code failure;
  for (auto thread = std::filesystem::directory_iterator("/proc/self/task", failure); thread != std::filesystem::directory_iterator();
       thread.increment(failure)) {
    int64_t ran = 0, waited = 0;
    if (std::ifstream(thread->path() / "schedstat") >> ran >> waited) nanoseconds += waited;
    if (failure) break;
  }
  return 1e-9 * static_cast<double>(nanoseconds);
}

std::string own_program() {
  std::error_code failure;
  return std::filesystem::read_symlink("/proc/self/exe", failure).string();
}

std::string program_stamp() {
  Dl_info info{};
  struct stat file {};
  if (dladdr(reinterpret_cast<const void*>(&program_stamp), &info) == 0 || info.dli_fname == nullptr || stat(info.dli_fname, &file) != 0)
    return "unknown";
  return fmt::format("{:x}-{:x}.{:x}", file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

}  // namespace ingot::base
