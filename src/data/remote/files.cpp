#include "data/remote/files.h"

#include <atomic>

#include "base/error.h"

namespace ingot::data {

static std::atomic<const RemoteFiles*> known = nullptr;

bool is_url(const std::string& name) { return name.starts_with("s3://") || name.starts_with("https://") || name.starts_with("http://"); }

void set_remote_files(const RemoteFiles& files) { known = &files; }

const RemoteFiles& remote_files() {
  const auto* files = known.load();
  if (!files) throw base::UsageError("files with URLs are not read here: copy them first");
  return *files;
}

}  // namespace ingot::data
