#include "base/concatenate_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/system_call.h"

namespace ingot::base {
namespace {

constexpr int64_t kAtOnceBytes = int64_t{64} << 20, kBufferBytes = int64_t{1} << 20;

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const char* action)
      : path_(path), number_(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); })) {
    if (number_ < 0) fail(action);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(number_); }
  int number() const { return number_; }
  [[noreturn]] void fail(const char* action) const { throw FileError("cannot {} {}: {}", action, path_.string(), std::strerror(errno)); }

 private:
  fs::path path_;
  int number_;
};

bool is_not_for_these_files(int error) {
  return error == EXDEV || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

class Copier {
 public:
  explicit Copier(const fs::path& to) : to_(to, O_WRONLY | O_CREAT | O_TRUNC, "create") {}

  /// At most kAtOnceBytes from where `from` stands; 0 at its end.
  int64_t copy_some(const Descriptor& from) {
    if (in_kernel_) {
      const ssize_t got = uninterrupted(
          [&] { return ::copy_file_range(from.number(), nullptr, to_.number(), nullptr, static_cast<size_t>(kAtOnceBytes), 0); });
      // Some file systems say 0 of what they cannot copy: read() knows whether it is the end.
      if (got > 0) return got;
      if (got < 0 && !is_not_for_these_files(errno)) to_.fail("write");
      in_kernel_ = got == 0;
    }
    buffer_.resize(static_cast<size_t>(kBufferBytes));
    const ssize_t got = uninterrupted([&] { return ::read(from.number(), buffer_.data(), buffer_.size()); });
    if (got < 0) from.fail("read");
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = uninterrupted([&] { return ::write(to_.number(), buffer_.data() + done, static_cast<size_t>(got - done)); });
      if (put < 0) to_.fail("write");
      done += put;
    }
    return got;
  }
  void sync() const {
    if (uninterrupted([&] { return ::fsync(to_.number()); }) != 0) to_.fail("fsync");
  }

 private:
  Descriptor to_;
  bool in_kernel_ = true;
  std::string buffer_;
};

}  // namespace

void concatenate_files(const std::vector<fs::path>& from, const fs::path& to) {
  Copier copier(to);
  for (const auto& path : from) {
    const Descriptor file(path, O_RDONLY, "open");
    while (copier.copy_some(file) > 0) continue;
  }
  copier.sync();
}

}  // namespace ingot::base
