#include "checkpoint/memory_storage.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>

#include "base/error.h"

namespace ingot::checkpoint {

using base::CheckpointError;
using Clock = std::chrono::steady_clock;
using Content = std::vector<std::byte>;

struct MemoryStorage::Files {
  struct Folder {
    Clock::time_point changed = Clock::now();
    int readers = 0;  // leases; -1: an exclusive one
  };
  std::mutex mutex;
  std::map<fs::path, std::shared_ptr<Content>> files;
  std::map<fs::path, std::shared_ptr<Folder>> folders;

  static bool is_below(const fs::path& path, const fs::path& folder) {
    const auto [end, other] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
    return end == folder.end() && other != path.end();
  }
  template <class Entries>
  static void move_entries(Entries& entries, const fs::path& from, const fs::path& to) {
    Entries moved;
    for (auto at = entries.begin(); at != entries.end();) {
      if (at->first == from || is_below(at->first, from)) {
        moved.emplace(at->first == from ? to : to / at->first.lexically_relative(from), std::move(at->second));
        at = entries.erase(at);
      } else {
        ++at;
      }
    }
    entries.merge(moved);
  }
  // The lock is held.
  void move(const fs::path& from, const fs::path& to) {
    move_entries(files, from, to);
    move_entries(folders, from, to);
  }
  void touch(const fs::path& folder) {
    if (const auto found = folders.find(folder); found != folders.end()) found->second->changed = Clock::now();
  }
};

namespace {

fs::path plain(const fs::path& path) { return (path / "").lexically_normal().parent_path(); }

class MemorySink : public Sink {
 public:
  explicit MemorySink(std::shared_ptr<Content> content) : content_(std::move(content)) {}
  void write(const void* data, int64_t size_bytes) override {
    const auto* begin = static_cast<const std::byte*>(data);
    content_->insert(content_->end(), begin, begin + size_bytes);
  }
  void finish() override {}

 private:
  std::shared_ptr<Content> content_;
};

class MemoryBlockSink : public BlockSink {
 public:
  explicit MemoryBlockSink(std::shared_ptr<Content> content) : content_(std::move(content)) {}
  void write(int64_t offset, const std::byte* data, int64_t size_bytes, uint64_t ticket) override {
    if (content_->size() < static_cast<size_t>(offset + size_bytes)) content_->resize(static_cast<size_t>(offset + size_bytes));
    std::copy_n(data, size_bytes, content_->begin() + offset);
    done_.push_back(ticket);
  }
  std::optional<uint64_t> finished(bool) override {
    if (done_.empty()) return std::nullopt;
    const auto ticket = done_.front();
    done_.pop_front();
    return ticket;
  }
  void close(int64_t size_bytes) override { content_->resize(static_cast<size_t>(size_bytes)); }

 private:
  std::shared_ptr<Content> content_;
  std::deque<uint64_t> done_;
};

class MemorySource : public Source {
 public:
  MemorySource(std::shared_ptr<const Content> content, fs::path file) : content_(std::move(content)), file_(std::move(file)) {}
  int64_t size_bytes() const override { return static_cast<int64_t>(content_->size()); }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override {
    if (offset + size_bytes > this->size_bytes())
      throw CheckpointError("{} ends at byte {}; it was truncated", file_.string(), this->size_bytes());
    if (size_bytes > 0) std::memcpy(destination, content_->data() + offset, static_cast<size_t>(size_bytes));
  }

 private:
  std::shared_ptr<const Content> content_;
  fs::path file_;
};

class MemoryLease : public Lease {
 public:
  explicit MemoryLease(std::function<void()> end) : end_(std::move(end)) {}
  ~MemoryLease() override { end_(); }
  bool certain() const override { return true; }

 private:
  std::function<void()> end_;
};

}  // namespace

MemoryStorage::MemoryStorage() : files_(std::make_shared<Files>()) {}
MemoryStorage::~MemoryStorage() = default;

std::unique_ptr<Sink> MemoryStorage::create(const fs::path& given) const {
  const auto file = plain(given);
  const std::lock_guard lock(files_->mutex);
  if (!files_->folders.contains(file.parent_path())) throw CheckpointError("cannot create {}: there is no such folder", file.string());
  const auto [at, is_new] = files_->files.try_emplace(file, std::make_shared<Content>());
  if (!is_new) throw CheckpointError("cannot create {}: it is there already", file.string());
  files_->touch(file.parent_path());
  return std::make_unique<MemorySink>(at->second);
}

std::unique_ptr<BlockSink> MemoryStorage::create_blocks(const fs::path& file, int64_t size_bytes) const {
  create(file);
  const std::lock_guard lock(files_->mutex);
  const auto& content = files_->files.at(plain(file));
  content->reserve(static_cast<size_t>((size_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment));
  return std::make_unique<MemoryBlockSink>(content);
}

std::unique_ptr<Source> MemoryStorage::open(const fs::path& given) const {
  const auto file = plain(given);
  const std::lock_guard lock(files_->mutex);
  const auto found = files_->files.find(file);
  if (found == files_->files.end()) throw CheckpointError("cannot open {}: there is no such file", file.string());
  return std::make_unique<MemorySource>(found->second, file);
}

std::vector<FolderEntry> MemoryStorage::list(const fs::path& given) const {
  const auto folder = plain(given);
  const std::lock_guard lock(files_->mutex);
  std::vector<FolderEntry> entries;
  for (const auto& [path, content] : files_->files)
    if (path.parent_path() == folder) entries.push_back({path.filename(), false, 0});
  for (const auto& [path, one] : files_->folders)
    if (path.parent_path() == folder && path != folder)
      entries.push_back({path.filename(), true, std::chrono::duration<double>(Clock::now() - one->changed).count()});
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

void MemoryStorage::make_folder(const fs::path& given) const {
  const std::lock_guard lock(files_->mutex);
  for (auto folder = plain(given); !folder.empty(); folder = folder.parent_path()) {
    files_->folders.try_emplace(folder, std::make_shared<Files::Folder>());
    if (folder == folder.parent_path()) break;
  }
}

std::unique_ptr<Lease> MemoryStorage::hold(const fs::path& given, bool exclusive) const {
  const auto path = plain(given);
  const std::lock_guard lock(files_->mutex);
  const auto found = files_->folders.find(path);
  if (found == files_->folders.end()) throw CheckpointError("cannot open {}: there is no such folder", path.string());
  const auto folder = found->second;
  if (exclusive ? folder->readers != 0 : folder->readers < 0) return nullptr;
  folder->readers = exclusive ? -1 : folder->readers + 1;
  return std::make_unique<MemoryLease>([files = files_, folder, exclusive] {
    const std::lock_guard guard(files->mutex);
    folder->readers = exclusive ? 0 : folder->readers - 1;
  });
}

bool MemoryStorage::publish(const fs::path& aside, const fs::path& target) const {
  const auto from = plain(aside), to = plain(target);
  const std::lock_guard lock(files_->mutex);
  if (!files_->folders.contains(from)) throw CheckpointError("cannot rename {}: there is no such folder", from.string());
  const bool replaces = files_->folders.contains(to);
  const fs::path waiting = from.string() + ".exchanged";
  if (replaces) files_->move(to, waiting);
  files_->move(from, to);
  if (replaces) files_->move(waiting, from);
  return replaces;
}

void MemoryStorage::hide(const fs::path& folder, const fs::path& aside) const {
  const std::lock_guard lock(files_->mutex);
  if (files_->folders.contains(plain(aside))) throw CheckpointError("cannot rename {}: {} is there", folder.string(), aside.string());
  files_->move(plain(folder), plain(aside));
}

void MemoryStorage::remove_folder(const fs::path& given) const {
  const auto folder = plain(given);
  const std::lock_guard lock(files_->mutex);
  const auto goes = [&](const auto& entry) { return entry.first == folder || Files::is_below(entry.first, folder); };
  std::erase_if(files_->files, goes);
  std::erase_if(files_->folders, goes);
}

int64_t MemoryStorage::size_bytes() const {
  const std::lock_guard lock(files_->mutex);
  int64_t bytes = 0;
  for (const auto& [path, content] : files_->files) bytes += static_cast<int64_t>(content->size());
  return bytes;
}

}  // namespace ingot::checkpoint
