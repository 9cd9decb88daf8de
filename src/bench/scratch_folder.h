// A folder of its own for files that come and go: made fresh below another one, gone with the object. It removes what was made
// through it and nothing else: were somebody to put a file there, that file and the folder would stay. Any thread may create and
// remove files; the object outlives the descriptors that it gave.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

namespace ingot::bench {

namespace fs = std::filesystem;

/// An open file, closed when it goes.
class File {
 public:
  File() = default;
  explicit File(int number) : number_(number) {}
  File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~File();
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

class ScratchFolder {
 public:
  /// `parent` must exist; `named_by`: the flag or variable that says where it is, for messages. Throws FileError.
  ScratchFolder(const fs::path& parent, const std::string& prefix, const char* named_by = "--folder");
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  const fs::path& path() const { return path_; }
  /// A new file, open for reading and writing; `flags` are added, such as O_DIRECT. Throws FileError.
  File create(const std::string& name, int flags = 0);
  /// A file that create() made. Throws FileError.
  File open(const std::string& name, int flags) const;
  void remove(const std::string& name);
  /// The name of a file that somebody else is about to make here on our behalf; it is removed in the end, too.
  void adopt(const std::string& name);
  /// fsync of the folder itself.
  void sync() const;

 private:
  File open_as(const std::string& name, int flags) const;
  void forget(const std::string& name);

  fs::path path_;
  File folder_;  // names are looked up in it, whatever becomes of its path
  std::mutex mutex_;
  std::unordered_set<std::string> names_;
};

}  // namespace ingot::bench
