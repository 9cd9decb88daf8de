#include "cli/remote_files.h"

#include "base/error.h"
#include "data/remote/files.h"
#include "object_store/object_storage.h"
#include "object_store/web_file.h"

namespace ingot::cli {
namespace {

class Opened : public data::RemoteFile {
 public:
  explicit Opened(std::unique_ptr<checkpoint::Source> source) : source_(std::move(source)) {}
  int64_t size_bytes() const override { return source_->size_bytes(); }
  std::string version() const override { return source_->version(); }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override { source_->read_at(offset, destination, size_bytes); }

 private:
  std::unique_ptr<checkpoint::Source> source_;
};

class Urls : public data::RemoteFiles {
 public:
  std::unique_ptr<data::RemoteFile> open(const std::string& url) const override {
    if (object_store::is_web_url(url)) return std::make_unique<Opened>(std::make_unique<object_store::WebFile>(url));
    return std::make_unique<Opened>(object_store::storage_of(url).open(url));
  }
  bool is_there(const std::string& url) const override {
    if (!object_store::is_web_url(url)) return object_store::object_storage_of(url).is_there(url);
    try {
      const object_store::WebFile file(url);
      return true;
    } catch (const object_store::NoWebFile&) {
      return false;
    }
  }
  std::vector<std::string> names_in(const std::string& folder) const override {
    if (object_store::is_web_url(folder)) throw base::FileError("{}: web servers do not list their files: name each", folder);
    std::vector<std::string> names;
    for (const auto& entry : object_store::storage_of(folder).list(folder))
      if (!entry.is_folder) names.push_back(entry.name);
    return names;
  }
};

}  // namespace

void open_urls() {
  static const Urls urls;
  data::set_remote_files(urls);
}

}  // namespace ingot::cli
