#include "train/metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ingot::train {

AppendFile::AppendFile(std::filesystem::path path, Mode mode) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | (mode == Mode::create_new ? O_EXCL : 0);
  descriptor_ = ::open(path_.c_str(), flags, 0644);
  if (descriptor_ < 0) throw base::FileError("cannot open {} for appending: {}", path_.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw base::FileError("{} is not a regular file; move it away or choose another --run-dir", path_.string());
  }
  size_bytes_ = status.st_size;
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::append(std::string_view record) {
  ssize_t put = -1;
  do put = ::write(descriptor_, record.data(), record.size());
  while (put < 0 && errno == EINTR);
  if (put == static_cast<ssize_t>(record.size())) {
    size_bytes_ += put;
    return;
  }
  // A short write to a regular file means that the disk or a quota is full.
  const std::string reason = std::strerror(put < 0 ? errno : ENOSPC);
  if (put > 0) truncate(size_bytes_);
  throw base::FileError("cannot append to {} (at byte {}): {}", path_.string(), size_bytes_, reason);
}

void AppendFile::truncate(int64_t size_bytes) {
  if (::ftruncate(descriptor_, size_bytes) != 0) {
    throw base::FileError("cannot cut {} to {} bytes: {}", path_.string(), size_bytes, std::strerror(errno));
  }
  size_bytes_ = size_bytes;
}

}  // namespace ingot::train
