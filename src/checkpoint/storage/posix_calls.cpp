#include "checkpoint/storage/posix_calls.h"

#include <cstring>

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

constexpr const char* kVerbs[] = {"create the folder", "open", "look at", "write", "fsync",  "close", "rename",
                                  "exchange",          "lock", "list",    "read",  "remove", "resize"};

const char* advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "; free space there, or keep fewer checkpoints (checkpoint.keep)";
    case EROFS: return "; the file system is read-only, choose another folder";
    case EACCES:
    case EPERM: return "; give this user permission, or choose another folder";
    case EIO: return "; the storage reports a fault, look at the system log";
    case ELOOP: return "; symbolic links are not followed inside a checkpoint";
    default: return "";
  }
}

}  // namespace

CheckpointError call_failure(Call call, const fs::path& path, int error) {
  return CheckpointError("cannot {} {}: {}{}", kVerbs[static_cast<int>(call)], path.string(), std::strerror(error), advice(error));
}

void Descriptor::close() {
  size_t unused = 0;
  const int refused = hook_ ? hook_->before(Call::close, path_, unused) : 0;
  const int result = ::close(std::exchange(number_, -1));
  const int error = refused != 0 ? refused : result != 0 ? errno : 0;
  if (error != 0 && error != EINTR) throw call_failure(Call::close, path_, error);
}

}  // namespace ingot::checkpoint
