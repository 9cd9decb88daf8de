#include "base/shared_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ingot::base {

SharedPages make_shared_pages(const char* name, size_t bytes) {
  const int descriptor = memfd_create(name, MFD_CLOEXEC);
  void* memory = MAP_FAILED;
  if (descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes)) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory != MAP_FAILED) return {descriptor, memory};
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  throw FileError("no memory of {} bytes to share with other processes ({}): {}", bytes, name, std::strerror(error));
}

std::string path_of(int descriptor) { return fmt::format("/proc/{}/fd/{}", getpid(), descriptor); }

void* map_shared_pages(const std::string& path, size_t bytes) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat facts {};
  void* memory = MAP_FAILED;
  if (descriptor >= 0 && fstat(descriptor, &facts) == 0 && static_cast<size_t>(facts.st_size) >= bytes)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (descriptor >= 0) close(descriptor);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace ingot::base
