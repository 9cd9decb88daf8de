// What the page cache holds of a file.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace ingot::checkpoint {

/// Once its bytes are on the disk.
inline void forget_pages(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

/// How many pages the cache holds; all of them where the file system keeps its files in memory.
inline int64_t cached_pages(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  struct stat status {};
  ::fstat(file, &status);
  const auto bytes = static_cast<size_t>(status.st_size);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  ::mincore(mapped, bytes, pages.data());
  ::munmap(mapped, bytes);
  ::close(file);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

}  // namespace ingot::checkpoint
