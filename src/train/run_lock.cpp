#include "train/run_lock.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <ctime>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLongest = 1024;  // bytes of a holder's description

std::string own_description(const std::string& version) {
  return fmt::format("process {} on {}, ingot {}, since {:%Y-%m-%d %H:%M:%S} UTC", getpid(), base::host_name(), version,
                     fmt::gmtime(std::time(nullptr)));
}

// What stands in the file, or what can be said without it.
std::string holder_of(const fs::path& file) {
  try {
    auto text = base::read_file(file, kLongest);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (!text.empty()) return text;
  } catch (const base::Error&) {
  }
  return "another process, which has not said which";
}

// Written in place: another file of this name would be another lock.
void write_holder(const fs::path& file, const std::string& text) {
  base::OutputFile out(file);
  out.write((text + "\n").data(), static_cast<int64_t>(text.size()) + 1);
  out.close();
}

// Of a folder and those that it lies in, what is not there yet, outermost first.
std::vector<fs::path> missing_of(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (auto at = fs::absolute(folder).lexically_normal(); !fs::exists(at, ignored) && at.has_relative_path(); at = at.parent_path())
    if (at.has_filename()) missing.insert(missing.begin(), at);
  return missing;
}

std::optional<base::FileLock> take(const fs::path& folder, const std::string& own, Clock::time_point until) {
  const auto file = folder / ".lock";
  for (bool has_said = false;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    try {
      if (auto lock = base::FileLock::try_take(file)) {
        write_holder(file, own);
        return lock;
      }
    } catch (const base::FileError& failure) {
      std::error_code problem;
      if (!fs::exists(folder, problem) && !problem) {  // its holder has removed it since
        base::make_directories(folder);
        continue;
      }
      base::log_warning("{}; nothing keeps a second job out of this folder", failure.what());
      return std::nullopt;
    }
    if (Clock::now() >= until)
      throw base::ConfigError(
          "{} is in use by {}. Two jobs would overwrite each other's checkpoints: stop that one, wait for its end, or choose another "
          "--run-dir",
          folder.string(), holder_of(file));
    if (!has_said) base::log_info("waiting for {}: it is in use by {}", folder.string(), holder_of(file));
    has_said = true;
  }
}

}  // namespace

RunLock::RunLock(const std::vector<fs::path>& folders, const std::string& version, std::chrono::duration<double> patience,
                 const checkpoint::StorageOf& storage_of) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  const auto own = own_description(version);
  for (const auto& folder : folders) {
    if (const auto& storage = storage_of(folder); &storage != &checkpoint::local_storage()) {
      try {
        storage_locks_.push_back(storage.lock_writers(folder, own, patience));
      } catch (const base::CheckpointError& failure) {
        base::log_warning("{}; nothing keeps a second job out of this folder until the first save", failure.what());
      }
      continue;
    }
    for (const auto& missing : missing_of(folder)) made_.push_back(missing);
    base::make_directories(folder);
    if (auto lock = take(folder, own, until)) {
      locks_.push_back(std::move(*lock));
      base::remove_unfinished_files(folder);
    }
  }
}

// While it is still held: whoever waits for it then finds another file in its place.
RunLock::~RunLock() {
  std::error_code ignored;
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    int entries = 0;
    for (fs::directory_iterator entry(*folder, ignored), end; entry != end; entry.increment(ignored)) ++entries;
    if (entries == 1) fs::remove(*folder / ".lock", ignored);
    fs::remove(*folder, ignored);  // fails where there is something in it
  }
}

}  // namespace ingot::train
