#include "data/remote/block_folder.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace ingot::data {
namespace {

constexpr int64_t kLooks = 64;        // this share of the limit is kept unseen between two looks at the whole folder
constexpr double kFilledAgain = 0.9;  // of the limit, after room was made
constexpr auto kAbandonedAfter = std::chrono::hours(1);
constexpr int64_t kLongestBlock = int64_t{1} << 30;
constexpr std::string_view kUnfinished = ".unfinished-", kSum = ".xxh3";

using Sum = uint64_t;

constexpr std::string_view kFolder = "ingot-blocks", kLock = ".lock";
constexpr auto kPatience = std::chrono::minutes(10);  // with another process that fetches the same

Sum sum_of(std::string_view bytes, Sum seed = 0) { return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed); }

// Of a block under its name: no other one's bytes pass for it.
Sum sum_of_block(const std::string& name, std::string_view bytes) { return sum_of(bytes, sum_of(name)); }

std::optional<base::FileLock> lock_if_possible(const fs::path& path, bool& has_locks) {
  try {
    return base::FileLock::try_take(path);
  } catch (const base::FileError&) {  // the file system has none
    has_locks = false;
    return std::nullopt;
  }
}

std::string_view as_text(const base::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size_bytes())};
}

}  // namespace

BlockFolder::BlockFolder(const fs::path& folder, int64_t limit_bytes)
    : folder_(folder / kFolder), limit_bytes_(limit_bytes), kept_since_look_(limit_bytes) {}

std::optional<std::string> BlockFolder::load(const std::string& name, int64_t size_bytes) const {
  const fs::path path = folder_ / name;
  std::error_code none;
  if (!fs::exists(path, none)) return std::nullopt;
  std::string bytes;
  try {
    bytes = base::read_file(path, kLongestBlock);
  } catch (const base::FileError&) {  // another process made room
    return std::nullopt;
  }
  Sum sum = 0;
  if (bytes.size() >= sizeof sum) {
    std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
    bytes.resize(bytes.size() - sizeof sum);
    if (static_cast<int64_t>(bytes.size()) == size_bytes && sum == sum_of_block(name, bytes)) {
      fs::last_write_time(path, fs::file_time_type::clock::now(), none);
      return bytes;
    }
  }
  fs::remove(path, none);
  return std::nullopt;
}

void BlockFolder::keep(const std::string& name, std::string_view bytes) {
  const fs::path path = folder_ / name;
  fs::path unfinished;
  std::error_code none;
  try {
    unfinished = begin(path);
    base::OutputFile file(unfinished);
    const Sum sum = sum_of_block(name, bytes);
    file.write(bytes);
    file.write(&sum, sizeof sum);
    file.close();
    fs::rename(unfinished, path);
    count(static_cast<int64_t>(bytes.size()));
  } catch (const std::exception& failure) {  // base::FileError, fs::filesystem_error
    fs::remove(unfinished, none);
    if (!has_warned_.exchange(true))
      base::log_warning("what is read of remote data is not kept in {}, and may be read again: {}", folder_.string(), failure.what());
  }
}

// Beside the file, under a name that no other process has, on this machine or another.
fs::path BlockFolder::begin(const fs::path& path) const {
  static const uint64_t own = (uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
  static std::atomic<int64_t> number = 0;
  base::make_directories(path.parent_path());
  return path.parent_path() / fmt::format("{}{:x}-{}-{}", kUnfinished, own, getpid(), number++);
}

fs::path BlockFolder::whole(const std::string& name, int64_t size_bytes, const std::function<void(const fs::path& to)>& fetch) {
  const fs::path path = folder_ / name;
  if (is_sound(path, size_bytes)) return path;
  base::make_directories(path.parent_path());
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (bool has_locks = true; has_locks && std::chrono::steady_clock::now() < until;) {
    const auto lock = lock_if_possible(path.string() + std::string(kLock), has_locks);
    if (!lock) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    if (!is_sound(path, size_bytes)) fetch_whole(path, fetch);
    return path;
  }
  fetch_whole(path, fetch);
  return path;
}

void BlockFolder::fetch_whole(const fs::path& path, const std::function<void(const fs::path& to)>& fetch) {
  const fs::path unfinished = begin(path);
  try {
    fetch(unfinished);
    publish_whole(unfinished, path);
  } catch (...) {
    std::error_code none;
    fs::remove(unfinished, none);
    throw;
  }
}

bool BlockFolder::is_sound(const fs::path& path, int64_t size_bytes) const {
  std::error_code none;
  const fs::path sum = path.string() + std::string(kSum);
  if (!fs::exists(path, none) || !fs::exists(sum, none)) return false;
  try {
    const base::MappedFile file(path);
    if (file.size_bytes() != size_bytes || base::read_file(sum) != fmt::format("{:016x}", sum_of(as_text(file)))) return false;
  } catch (const base::FileError&) {
    return false;
  }
  fs::last_write_time(path, fs::file_time_type::clock::now(), none);
  return true;
}

void BlockFolder::publish_whole(const fs::path& unfinished, const fs::path& path) {
  std::error_code failure;
  int64_t size_bytes = 0;
  {
    const base::MappedFile file(unfinished);
    size_bytes = file.size_bytes();
    base::write_file_atomically(path.string() + std::string(kSum), fmt::format("{:016x}", sum_of(as_text(file))));
  }
  fs::rename(unfinished, path, failure);
  if (failure) throw base::FileError("cannot rename {} to {}: {}", unfinished.string(), path.string(), failure.message());
  count(size_bytes);
}

void BlockFolder::count(int64_t kept_bytes) {
  if (kept_since_look_.fetch_add(kept_bytes) + kept_bytes < limit_bytes_ / kLooks) return;
  bool has_locks = true;
  const auto lock = lock_if_possible(folder_ / kLock, has_locks);
  if (!lock && has_locks) return;  // another process is at it
  kept_since_look_ = 0;
  make_room();
}

void BlockFolder::make_room() {
  struct Kept {
    fs::file_time_type used;
    int64_t size_bytes;
    fs::path path;
  };
  std::vector<Kept> all;
  int64_t total = 0;
  std::error_code none;
  const auto now = fs::file_time_type::clock::now();
  for (auto entry = fs::recursive_directory_iterator(folder_, none); entry != fs::recursive_directory_iterator(); entry.increment(none)) {
    if (!entry->is_regular_file(none) || entry->path().string().ends_with(kLock)) continue;
    const auto used = entry->last_write_time(none);
    if (entry->path().filename().string().starts_with(kUnfinished)) {
      if (now - used > kAbandonedAfter) fs::remove(entry->path(), none);
      continue;
    }
    const auto size = static_cast<int64_t>(entry->file_size(none));
    total += size;
    all.push_back({used, size, entry->path()});
  }
  if (total <= limit_bytes_) return;
  std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const auto& kept : all) {
    if (static_cast<double>(total) <= kFilledAgain * static_cast<double>(limit_bytes_)) return;
    if (fs::remove(kept.path, none)) total -= kept.size_bytes;
  }
}

}  // namespace ingot::data
