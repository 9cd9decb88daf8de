// Files that have a URL, for who reads texts and tokens. What opens them comes from above (cli/remote_files.h): nothing that trains links
// an HTTP client.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ingot::data {

class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual int64_t size_bytes() const = 0;
  /// What tells this content from another one of the same name and size: an ETag; "" where the server gives none.
  virtual std::string version() const = 0;
  /// Reads exactly these bytes; tries again what may pass. Any thread.
  virtual void read_at(int64_t offset, void* destination, int64_t size_bytes) const = 0;
};

class RemoteFiles {
 public:
  virtual ~RemoteFiles() = default;
  /// Throws FileError or ObjectStoreError.
  virtual std::unique_ptr<RemoteFile> open(const std::string& url) const = 0;
  /// False also where it may not be read, as stores say of what is not there. Throws them where that cannot be told.
  virtual bool is_there(const std::string& url) const = 0;
  /// Names of what lies in a folder. Throws FileError where its kind of URL has no folders.
  virtual std::vector<std::string> names_in(const std::string& folder_url) const = 0;
};

/// "s3://…", "https://…"
bool is_url(const std::string& name);

/// Once, before others ask; lives as long as the program.
void set_remote_files(const RemoteFiles& files);
/// Throws UsageError where none were set.
const RemoteFiles& remote_files();

}  // namespace ingot::data
