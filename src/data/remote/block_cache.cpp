#include "data/remote/block_cache.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "data/remote/block_folder.h"

namespace ingot::data {
namespace {

constexpr int64_t kLongestRequest = int64_t{2} << 20;  // of blocks that follow one another
constexpr int64_t kAheadOfReader = int64_t{32} << 20;  // of one that reads block after block
constexpr int64_t kWholeInPieces = int64_t{16} << 20;  // memory of a local copy while it is made
constexpr int64_t kMostAsked = 4;                      // times in_memory_bytes: of blocks that were asked for ahead and not yet taken

using Bytes = std::shared_ptr<const std::string>;

fs::path folder_of(const CacheOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const auto cache = base::environment().cache_folder();
  if (cache.empty()) throw base::FileError("there is no folder to keep remote data in: set data.cache, or INGOT_CACHE");
  return fs::path(cache) / "data";
}

}  // namespace

struct BlockCache::State {
  explicit State(const CacheOptions& o) : options(o), folder(folder_of(o), o.limit_bytes) {}

  struct File {
    std::string name;  // of its folder
    std::shared_ptr<const RemoteFile> remote;
  };
  struct Key {
    int64_t file = 0, block = 0;
    auto operator<=>(const Key&) const = default;
  };
  enum class Stage { absent, queued, coming, here };
  struct Block {
    Stage stage = Stage::absent;
    int waiting = 0;             // readers
    bool is_asked = false;       // ahead, and not taken since
    bool is_unwritten = false;   // on its way to the disk, or would have to come over the network again
    std::exception_ptr failure;  // for who waits now: later ones ask again
    Bytes bytes;                 // of `here`
    std::list<Key>::iterator use;
  };

  struct Got {
    Bytes bytes;
    bool is_new = false;  // from the network
  };

  int64_t add(std::shared_ptr<const RemoteFile> remote, const std::string& url) {
    static const auto own = fmt::format("of process {} {}", getpid(), std::random_device{}());
    const auto version = remote->version().empty() ? own : remote->version();  // without one, another run may find another file
    const auto identity = fmt::format("{}\n{}\n{}\n{}", url, remote->size_bytes(), version, options.block_bytes);
    const auto hash = XXH3_128bits(identity.data(), identity.size());
    const auto name = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
    const std::lock_guard lock(mutex);
    const auto known = std::find_if(files.begin(), files.end(), [&](const File& file) { return file.name == name; });
    if (known != files.end()) return known - files.begin();
    files.push_back({name, std::move(remote)});
    return static_cast<int64_t>(files.size()) - 1;
  }

  Bytes take(Key key) {
    std::unique_lock lock(mutex);
    bool has_asked = false;
    for (;;) {
      auto& block = blocks[key];
      if (block.stage == Stage::here) {
        recent.splice(recent.begin(), recent, block.use);
        block.is_asked = false;
        return block.bytes;
      }
      if (block.stage == Stage::absent || (block.stage == Stage::queued && !has_asked)) {
        block.stage = Stage::queued;
        queue.push_front(key);  // before what was only asked for ahead
        has_asked = true;
        begin_work();
      }
      ++block.waiting;
      changed.wait(lock, [&] { return block.failure || block.stage == Stage::here; });
      --block.waiting;
      if (!block.failure) continue;
      const auto failure = block.failure;
      if (block.waiting == 0) block.failure = nullptr;
      if (block.waiting == 0 && block.stage == Stage::absent) blocks.erase(key);
      std::rethrow_exception(failure);
    }
  }

  void ask(int64_t file, int64_t first, int64_t last) {
    const std::lock_guard lock(mutex);
    for (int64_t number = first; number <= last; ++number) {
      auto& block = blocks[{file, number}];
      if (block.stage != Stage::absent || block.failure) continue;
      block.stage = Stage::queued;
      block.is_asked = true;
      queue.push_back({file, number});
      begin_work();
    }
  }

  // Under the mutex. As many threads as there was ever work for at a time.
  void begin_work() {
    if (queue.size() > idle && threads.size() < static_cast<size_t>(options.connections)) threads.emplace_back([this] { work(); });
    work_is_there.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      work_is_there.wait(lock, [&] { return is_ending || !queue.empty(); });
      --idle;
      if (is_ending) return;
      const Key first = queue.front();
      queue.pop_front();
      const auto count = begin_run(first);
      if (count == 0) continue;
      const File file = files[static_cast<size_t>(first.file)];
      lock.unlock();
      std::vector<Got> got;
      std::exception_ptr failure;
      try {
        got = get(file, first.block, count);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      for (int64_t i = 0; i < count; ++i)
        if (failure) fail({first.file, first.block + i}, failure);
        else put({first.file, first.block + i}, got[static_cast<size_t>(i)]);
      changed.notify_all();
      lock.unlock();  // readers do not wait for the disk
      for (size_t i = 0; i < got.size(); ++i)
        if (got[i].is_new) folder.keep(name_of(file, first.block + static_cast<int64_t>(i)), *got[i].bytes);
      lock.lock();
      for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) blocks.at({first.file, first.block + i}).is_unwritten = false;
    }
  }

  // The block, and those behind it that are wanted too, are coming now; 0 when it was taken already.
  int64_t begin_run(Key first) {
    int64_t count = 0;
    for (Key key = first; (count + 1) * options.block_bytes <= std::max(options.block_bytes, kLongestRequest); ++key.block, ++count) {
      const auto found = blocks.find(key);
      if (found == blocks.end() || found->second.stage != Stage::queued) break;
      found->second.stage = Stage::coming;
    }
    return count;
  }

  void fail(Key key, const std::exception_ptr& failure) {
    auto& block = blocks.at(key);
    block.stage = Stage::absent;
    if (block.waiting == 0) blocks.erase(key);
    else block.failure = failure;
  }

  void put(Key key, const Got& got) {
    auto& block = blocks.at(key);
    held_bytes += static_cast<int64_t>(got.bytes->size());
    recent.push_front(key);
    block.stage = Stage::here, block.bytes = got.bytes, block.use = recent.begin(), block.is_unwritten = true;
    make_room(options.in_memory_bytes, [](const Block& old) { return !old.is_asked; });
    make_room(kMostAsked * options.in_memory_bytes, [](const Block&) { return true; });
  }

  // What was used longest ago goes first; the newest stays.
  template <class MayGo>
  void make_room(int64_t limit_bytes, const MayGo& may_go) {
    for (auto old = recent.end(); held_bytes > limit_bytes && old != recent.begin() && --old != recent.begin();) {
      const auto found = blocks.find(*old);
      if (found->second.waiting > 0 || found->second.is_unwritten || !may_go(found->second)) continue;
      held_bytes -= static_cast<int64_t>(found->second.bytes->size());
      blocks.erase(found);
      old = recent.erase(old);
    }
  }

  int64_t size_of(const File& file, int64_t block) const {
    return std::min(options.block_bytes, file.remote->size_bytes() - block * options.block_bytes);
  }
  std::string name_of(const File& file, int64_t block) const { return fmt::format("{}/{:x}", file.name, block); }

  // From the disk where they lie there, else by one request for those that follow one another.
  std::vector<Got> get(const File& file, int64_t first, int64_t count) {
    std::vector<Got> got(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      if (auto kept = folder.load(name_of(file, first + i), size_of(file, first + i)))
        got[static_cast<size_t>(i)].bytes = std::make_shared<std::string>(std::move(*kept));
    for (int64_t i = 0; i < count;) {
      int64_t end = i;
      while (end < count && !got[static_cast<size_t>(end)].bytes) ++end;
      if (end > i) fetch(file, first + i, std::span(got).subspan(static_cast<size_t>(i), static_cast<size_t>(end - i)));
      i = end + 1;
    }
    return got;
  }

  void fetch(const File& file, int64_t first, std::span<Got> blocks_of_run) {
    const int64_t offset = first * options.block_bytes;
    const int64_t end = std::min(file.remote->size_bytes(), offset + static_cast<int64_t>(blocks_of_run.size()) * options.block_bytes);
    std::string all(static_cast<size_t>(end - offset), 0);
    file.remote->read_at(offset, all.data(), end - offset);
    fetched_bytes += end - offset;
    const auto block_bytes = static_cast<size_t>(options.block_bytes);
    for (size_t i = 0; i < blocks_of_run.size(); ++i)
      blocks_of_run[i] = {std::make_shared<std::string>(all.substr(i * block_bytes, block_bytes)), true};
  }

  void end() {
    {
      const std::lock_guard lock(mutex);
      is_ending = true;
    }
    work_is_there.notify_all();
    threads.clear();
  }

  const CacheOptions options;
  BlockFolder folder;
  std::mutex mutex;  // of all that follows
  std::condition_variable work_is_there, changed;
  std::vector<File> files;
  std::map<Key, Block> blocks;  // that are wanted, coming, or in memory
  std::deque<Key> queue;        // some were taken meanwhile, with a neighbour or by who was in a hurry
  std::list<Key> recent;        // of those in memory, the last used first
  int64_t held_bytes = 0;
  size_t idle = 0;  // threads
  bool is_ending = false;
  std::atomic<int64_t> fetched_bytes = 0;
  std::vector<std::jthread> threads;
};

std::shared_ptr<BlockCache> BlockCache::of(const CacheOptions& options) {
  static std::mutex mutex;
  static std::map<fs::path, std::weak_ptr<BlockCache>> known;
  const std::lock_guard lock(mutex);
  auto& one = known[folder_of(options)];
  auto cache = one.lock();
  if (!cache) one = cache = std::make_shared<BlockCache>(options);
  return cache;
}

BlockCache::BlockCache(const CacheOptions& options) : state_(std::make_unique<State>(options)) {}
BlockCache::~BlockCache() { state_->end(); }
int64_t BlockCache::fetched_bytes() const { return state_->fetched_bytes; }

CachedFile::CachedFile(std::shared_ptr<BlockCache> cache, const std::string& url) : cache_(std::move(cache)), url_(url) {
  std::shared_ptr<const RemoteFile> remote = remote_files().open(url);
  size_bytes_ = remote->size_bytes();
  number_ = cache_->state_->add(std::move(remote), url);
}

void CachedFile::read(int64_t offset, std::span<std::byte> out) const {
  const auto size = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > size_bytes_ - size)
    throw base::DataError("{}: bytes {} to {} of {}", url_, offset, offset + size, size_bytes_);
  if (out.empty()) return;
  const int64_t block_bytes = cache_->state_->options.block_bytes, first = offset / block_bytes, last = (offset + size - 1) / block_bytes;
  const int64_t previous = last_block_.exchange(last);
  const bool goes_on = first == previous || first == previous + 1;
  const int64_t ahead = (last + 1) * block_bytes + kAheadOfReader;
  if (goes_on && last > previous && ahead - asked_until_ >= kLongestRequest) read_ahead(offset, asked_until_ = ahead);
  else if (first != last) read_ahead(offset, offset + size);
  for (int64_t block = first; block <= last; ++block) {
    const auto bytes = cache_->state_->take({number_, block});
    const int64_t begin = std::max(offset, block * block_bytes), end = std::min(offset + size, (block + 1) * block_bytes);
    std::memcpy(out.data() + (begin - offset), bytes->data() + (begin - block * block_bytes), static_cast<size_t>(end - begin));
  }
}

void CachedFile::read_ahead(int64_t begin, int64_t end) const {
  end = std::min(end, size_bytes_);
  if (begin >= end) return;
  const int64_t block_bytes = cache_->state_->options.block_bytes;
  cache_->state_->ask(number_, begin / block_bytes, (end - 1) / block_bytes);
}

fs::path CachedFile::local_copy() const {
  auto& state = *cache_->state_;
  const auto file = [&] {
    const std::lock_guard lock(state.mutex);
    return state.files[static_cast<size_t>(number_)];
  }();
  return state.folder.whole(file.name + "/whole", size_bytes_, [&](const fs::path& to) {
    base::OutputFile out(to);
    std::string piece;
    for (int64_t at = 0; at < size_bytes_; at += kWholeInPieces) {
      piece.resize(static_cast<size_t>(std::min(kWholeInPieces, size_bytes_ - at)));
      file.remote->read_at(at, piece.data(), static_cast<int64_t>(piece.size()));
      state.fetched_bytes += static_cast<int64_t>(piece.size());
      out.write(piece);
    }
    out.close();
  });
}

}  // namespace ingot::data
