#include "bench/scratch_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/system_call.h"

namespace ingot::bench {

using base::FileError;

File::~File() {
  if (number_ >= 0) ::close(number_);
}

ScratchFolder::ScratchFolder(const fs::path& parent, const std::string& prefix, const char* named_by) {
  std::error_code failure;
  const auto absolute = fs::absolute(parent, failure);
  std::string path = ((failure ? parent : absolute) / (prefix + "-XXXXXX")).lexically_normal().string();
  if (!::mkdtemp(path.data()))
    throw FileError("cannot make a folder in {}: {}; {} names another place", parent.string(), std::strerror(errno), named_by);
  path_ = path;
  folder_ = File(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder_.is_open()) return;
  const int error = errno;
  ::rmdir(path_.c_str());
  throw FileError("cannot open the folder {}: {}", path_.string(), std::strerror(error));
}

ScratchFolder::~ScratchFolder() {
  for (const auto& name : names_) ::unlinkat(folder_.number(), name.c_str(), 0);
  if (::rmdir(path_.c_str()) != 0 && errno != ENOENT) base::log_warning("the folder {} stays: {}", path_.string(), std::strerror(errno));
}

File ScratchFolder::open_as(const std::string& name, int flags) const {
  File file(base::uninterrupted([&] { return ::openat(folder_.number(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0600); }));
  if (file.is_open()) return file;
  const int error = errno;
  // With O_DIRECT where that is not possible, a file is made and then not opened.
  if ((flags & O_CREAT) != 0 && error != EEXIST) ::unlinkat(folder_.number(), name.c_str(), 0);
  throw FileError("cannot open {}: {}", (path_ / name).string(), std::strerror(error));
}

File ScratchFolder::create(const std::string& name, int flags) {
  auto file = open_as(name, flags | O_RDWR | O_CREAT | O_EXCL);
  adopt(name);
  return file;
}

File ScratchFolder::open(const std::string& name, int flags) const { return open_as(name, flags); }

void ScratchFolder::remove(const std::string& name) {
  if (::unlinkat(folder_.number(), name.c_str(), 0) != 0)
    throw FileError("cannot remove {}: {}", (path_ / name).string(), std::strerror(errno));
  forget(name);
}

void ScratchFolder::adopt(const std::string& name) {
  const std::lock_guard lock(mutex_);
  names_.insert(name);
}

void ScratchFolder::forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  names_.erase(name);
}

void ScratchFolder::sync() const {
  // Some network file systems have no fsync of folders.
  if (::fsync(folder_.number()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw FileError("cannot sync the folder {}: {}", path_.string(), std::strerror(errno));
}

}  // namespace ingot::bench
