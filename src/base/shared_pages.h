// Memory without a name, which other processes of the same user map by its path while the one that made it lives.
#pragma once

#include <cstddef>
#include <string>

namespace ingot::base {

struct SharedPages {
  int descriptor = -1;
  void* memory = nullptr;  // of zeros at first
};

/// `name` is for whoever looks at the process. The caller unmaps and closes. Throws FileError.
SharedPages make_shared_pages(const char* name, size_t bytes);
/// Of a descriptor of this process.
std::string path_of(int descriptor);
/// The first `bytes` of it, which the caller unmaps; null where there is no such file or it is shorter.
void* map_shared_pages(const std::string& path, size_t bytes);

}  // namespace ingot::base
