#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/system_call.h"

namespace ingot::base {
namespace {

std::string reason() { return std::strerror(errno); }

// Opens for reading and refuses folders, devices and pipes, which would block or never end.
int open_regular(const fs::path& path, int64_t& size_bytes) {
  const int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor < 0) throw FileError("cannot open {}: {}", path.string(), reason());
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw FileError("{} is not a regular file", path.string());
  }
  size_bytes = status.st_size;
  return descriptor;
}

std::string read_and_close(const fs::path& path, int descriptor, int64_t offset, int64_t size_bytes) {
  std::string content(static_cast<size_t>(size_bytes), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = uninterrupted(
        [&] { return ::pread(descriptor, content.data() + done, content.size() - done, offset + static_cast<int64_t>(done)); });
    if (got < 0) {
      const auto why = reason();
      ::close(descriptor);
      throw FileError("cannot read {}: {}", path.string(), why);
    }
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  ::close(descriptor);
  content.resize(done);
  return content;
}

}  // namespace

std::string read_file(const fs::path& path, int64_t limit_bytes) {
  int64_t size_bytes = 0;
  const int descriptor = open_regular(path, size_bytes);
  if (size_bytes > limit_bytes) {
    ::close(descriptor);
    throw FileError("{} has {} bytes, more than the {} that are expected of such a file", path.string(), size_bytes, limit_bytes);
  }
  return read_and_close(path, descriptor, 0, size_bytes);
}

std::string read_last_lines(const fs::path& path, int64_t limit_bytes) {
  int64_t size_bytes = 0;
  const int descriptor = open_regular(path, size_bytes);
  if (size_bytes <= limit_bytes) return read_and_close(path, descriptor, 0, size_bytes);
  // One byte more says whether the first line is whole.
  auto content = read_and_close(path, descriptor, size_bytes - limit_bytes - 1, limit_bytes + 1);
  const auto end = content.find('\n');
  return end == std::string::npos ? "" : content.substr(end + 1);
}

void append_line(const fs::path& path, std::string_view line) {
  const int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644); });
  if (descriptor < 0) throw FileError("cannot open {}: {}", path.string(), reason());
  struct stat status {};
  char last = '\n';
  std::string failure;
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) failure = "it is not a regular file";
  else if (status.st_size > 0 && ::pread(descriptor, &last, 1, status.st_size - 1) != 1) failure = reason();
  if (failure.empty()) {
    const std::string text = (last == '\n' ? "" : "\n") + std::string(line) + "\n";
    const ssize_t put = uninterrupted([&] { return ::write(descriptor, text.data(), text.size()); });
    if (put < 0) failure = reason();
    else if (static_cast<size_t>(put) < text.size()) failure = "no room for all of it";
  }
  ::close(descriptor);
  if (!failure.empty()) throw FileError("cannot add to {}: {}", path.string(), failure);
}

static constexpr std::string_view kAside = ".tmp";

void write_file_atomically(const fs::path& path, std::string_view content) {
  const fs::path aside = path.string() + std::string(kAside) + std::to_string(::getpid());
  try {
    OutputFile file(aside);
    file.write(content);
    file.sync();
    file.close();
    if (::rename(aside.c_str(), path.c_str()) != 0) throw FileError("cannot rename {} to {}: {}", aside.string(), path.string(), reason());
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void remove_unfinished_files(const fs::path& folder) {
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const auto name = entry->path().filename().string();
    const auto at = name.rfind(kAside);
    if (at == std::string::npos || at == 0 || !entry->is_regular_file(ignored)) continue;
    const auto number = std::string_view(name).substr(at + kAside.size());
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos) fs::remove(entry->path(), ignored);
  }
}

void sync_directory(const fs::path& path) {
  const int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) throw FileError("cannot open the folder {}: {}", path.string(), reason());
  const int result = uninterrupted([&] { return ::fsync(descriptor); }), error = errno;
  const auto why = reason();
  ::close(descriptor);
  // Some network file systems keep no state of folders on the client and refuse the call as meaningless.
  if (result != 0 && error != EINVAL && error != ENOTSUP) throw FileError("cannot fsync the folder {}: {}", path.string(), why);
}

void make_directories(const fs::path& path) {
  fs::path made;
  for (const fs::path& part : path) {
    made /= part;
    std::error_code error;
    if (fs::is_directory(made, error)) continue;
    const bool is_new = fs::create_directory(made, error);  // else another process made it meanwhile, and syncs it
    if (error) throw FileError("cannot create the folder {}: {}", made.string(), error.message());
    if (is_new) sync_directory(made.has_parent_path() ? made.parent_path() : fs::path("."));
  }
}

fs::path temporary_folder() {
  std::error_code failure;
  auto folder = fs::temp_directory_path(failure);
  if (failure) throw FileError("there is no folder for passing files: {}; TMPDIR names one, otherwise it is /tmp", failure.message());
  return folder;
}

OutputFile::OutputFile(fs::path path) : path_(std::move(path)) {
  descriptor_ = uninterrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); });
  if (descriptor_ < 0) throw FileError("cannot create {}: {}", path_.string(), reason());
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, int64_t size_bytes) {
  const char* next = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t put = uninterrupted([&] { return ::write(descriptor_, next, static_cast<size_t>(size_bytes)); });
    if (put < 0) throw FileError("cannot write {} (at byte {}): {}", path_.string(), written_bytes_, reason());
    next += put;
    size_bytes -= put;
    written_bytes_ += put;
  }
}

void OutputFile::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) != 0) throw FileError("cannot fsync {}: {}", path_.string(), reason());
}

void OutputFile::close() {
  if (descriptor_ >= 0 && ::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR)
    throw FileError("cannot close {}: {}", path_.string(), reason());
}

std::optional<FileLock> FileLock::try_take(const fs::path& path) {
  const int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644); });
  if (descriptor < 0) throw FileError("cannot lock {}: {}", path.string(), reason());
  FileLock lock(descriptor);
  if (uninterrupted([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) == 0) {
    // Its holder may have removed it meanwhile: then this is a lock that nobody else can meet.
    struct stat own {
    }, there{};
    const bool is_there = ::fstat(descriptor, &own) == 0 && ::stat(path.c_str(), &there) == 0;
    if (is_there && own.st_dev == there.st_dev && own.st_ino == there.st_ino) return lock;
    return std::nullopt;
  }
  if (errno == EWOULDBLOCK) return std::nullopt;
  throw FileError("cannot lock {}: {}", path.string(), reason());
}

bool FileLock::is_held(const fs::path& path) {
  const int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (descriptor < 0) return false;
  const bool is_held = uninterrupted([&] { return ::flock(descriptor, LOCK_SH | LOCK_NB); }) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return is_held;
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int descriptor = open_regular(path, size_bytes_);
  if (size_bytes_ > 0) {
    void* mapped = ::mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
      const auto why = reason();
      ::close(descriptor);
      throw FileError("cannot map {}: {}", path.string(), why);
    }
    data_ = static_cast<const std::byte*>(mapped);
  }
  ::close(descriptor);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void MappedFile::release_pages() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), static_cast<size_t>(size_bytes_), MADV_DONTNEED);
}

void MappedFile::expect_random_reads() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), static_cast<size_t>(size_bytes_), MADV_RANDOM);
}

void MappedFile::read_ahead(int64_t begin_byte, int64_t end_byte) const {
  const int64_t page = ::sysconf(_SC_PAGESIZE), first = begin_byte / page * page, end = std::min(end_byte, size_bytes_);
  if (data_ && first < end) ::madvise(const_cast<std::byte*>(data_) + first, static_cast<size_t>(end - first), MADV_WILLNEED);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_bytes_));
}

}  // namespace ingot::base
