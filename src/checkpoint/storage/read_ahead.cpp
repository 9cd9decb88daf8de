#include "checkpoint/storage/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {
namespace {

constexpr int64_t kPartBytes = int64_t{64} << 20;
constexpr auto kLookEvery = std::chrono::seconds(1);

}  // namespace

int64_t ReadAhead::look() {
  if (const auto now = std::chrono::steady_clock::now(); parts_.empty() && now - looked_ >= kLookEvery) {
    looked_ = now;
    try {
      find_newest();
    } catch (const std::exception& failure) {
      base::log_debug("not read ahead: {}", failure.what());
    }
  }
  if (parts_.empty()) return 0;
  const auto part = std::move(parts_.back());
  parts_.pop_back();
  const int file = ::open(part.file.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;  // it was removed meanwhile
  const bool is_asked = ::posix_fadvise(file, part.offset, part.bytes, POSIX_FADV_WILLNEED) == 0;
  ::close(file);
  return is_asked ? part.bytes : 0;
}

void ReadAhead::find_newest() {
  const auto steps = all(folder_);
  if (steps.empty() || steps.back().path == newest_) return;
  newest_ = steps.back().path;
  int64_t left = most_bytes_;
  for (const auto& entry : std::filesystem::directory_iterator(newest_)) {
    if (!entry.is_regular_file()) continue;
    const auto bytes = std::min(static_cast<int64_t>(entry.file_size()), left);
    left -= bytes;
    for (int64_t offset = 0; offset < bytes; offset += kPartBytes)
      parts_.push_back({entry.path(), offset, std::min(kPartBytes, bytes - offset)});
  }
  std::reverse(parts_.begin(), parts_.end());
}

}  // namespace ingot::checkpoint
