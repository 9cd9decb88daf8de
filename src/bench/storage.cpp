#include "bench/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/system_call.h"
#include "base/text.h"
#include "checkpoint/storage/storage.h"

namespace ingot::bench {
namespace {

using base::FileError;
using base::UsageError;
using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;                         // alignment that O_DIRECT asks for, and the unit of blocks
constexpr int64_t kCheckpointBlock = int64_t{8} << 20;  // as the checkpoint writer writes
constexpr int64_t kSpareBytes = int64_t{64} << 20;      // that must stay free

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Memory for blocks, aligned as O_DIRECT wants it and full of noise, which no file system can compress.
class Block {
 public:
  explicit Block(int64_t bytes) : bytes_(bytes), memory_(static_cast<char*>(std::aligned_alloc(kPage, static_cast<size_t>(bytes)))) {
    if (!memory_) throw std::bad_alloc();
    std::mt19937_64 noise(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(memory_.get())));
    for (int64_t at = 0; at < bytes; at += 8) {
      const uint64_t word = noise();
      std::memcpy(memory_.get() + at, &word, 8);
    }
  }
  /// Makes the pages of the first `bytes` unlike all before, which no file system can store once for all.
  void change(int64_t bytes, uint64_t number) {
    for (int64_t page = 0; page < bytes; page += kPage) {
      const uint64_t word = number * 1'000'003 + static_cast<uint64_t>(page);
      std::memcpy(memory_.get() + page, &word, 8);
    }
  }
  char* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  int64_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

[[noreturn]] void fail(const char* what, const fs::path& path) {
  throw FileError("cannot {} in {}: {}", what, path.string(), std::strerror(errno));
}

// What one worker did.
struct Share {
  std::vector<double> times;  // of single operations
  int64_t operations = 0, bytes = 0;
  double sync_s = 0;
  Clock::time_point end;
};

// Everything that the measurements of one report share.
class Bench {
 public:
  Bench(const StorageOptions& options, const StorageProgress& progress, const std::function<bool()>& is_stopped)
      : options_(options), progress_(progress), is_stopped_(is_stopped), folder_(options.folder, "ingot-bench-storage") {
    report_.folder = fs::weakly_canonical(options.folder).string();
    report_.folder_type = base::file_system_type(folder_.path());
    report_.size_bytes = options.size_bytes;
    find_direct();
  }

  StorageReport run() {
    const int modes = report_.direct_refusal.empty() ? 2 : 1;
    const auto blocks = static_cast<int>(options_.block_bytes.size());
    all_ = options_.writers.size() * static_cast<size_t>(modes * (2 + 2 * blocks + 3)) + 1;
    try {
      measure_checkpoint_write();
      for (const int writers : options_.writers) measure_with(writers, modes);
    } catch (const Stopped&) {
      report_.complete = false;
    }
    return std::move(report_);
  }

 private:
  struct Stopped {};
  using Work = std::function<void(int worker, Share& share, Clock::time_point deadline)>;

  void find_direct() {
    const Block block(kPage);
    try {
      const auto file = folder_.create("direct", O_DIRECT);
      if (base::uninterrupted([&] { return ::pwrite(file.number(), block.data(), kPage, 0); }) != kPage)
        report_.direct_refusal = fmt::format("writes with O_DIRECT fail: {}", std::strerror(errno));
      folder_.remove("direct");
    } catch (const FileError&) {
      report_.direct_refusal = fmt::format("{} does not open files with O_DIRECT", report_.folder_type);
    }
  }

  void begin(const std::string& label) {
    const bool late = options_.budget_s > 0 && seconds_since(started_) > options_.budget_s;
    if (late || is_stopped_()) throw Stopped();
    progress_(done_++, all_, label);
  }

  // Runs `work` on `writers` threads that begin together. Once stopped the result is dropped.
  void measure(const std::string& operation, int64_t block_bytes, int writers, bool direct, double cached_share, const Work& work) {
    std::vector<Share> shares(static_cast<size_t>(writers));
    std::vector<std::exception_ptr> failures(static_cast<size_t>(writers));
    Clock::time_point start;
    std::barrier together(writers, [&]() noexcept { start = Clock::now(); });
    std::vector<std::thread> threads;
    for (int worker = 0; worker < writers; ++worker)
      threads.emplace_back([&, worker] {
        auto& share = shares[static_cast<size_t>(worker)];
        share.times.reserve(1 << 14);
        together.arrive_and_wait();
        try {
          work(worker, share, start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.seconds)));
        } catch (...) {
          failures[static_cast<size_t>(worker)] = std::current_exception();
        }
        share.end = Clock::now();
      });
    for (auto& thread : threads) thread.join();
    for (const auto& failure : failures)
      if (failure) std::rethrow_exception(failure);
    if (is_stopped_()) throw Stopped();
    add_result(operation, block_bytes, writers, direct, cached_share, start, shares);
  }

  void add_result(const std::string& operation, int64_t block_bytes, int writers, bool direct, double cached_share, Clock::time_point start,
                  const std::vector<Share>& shares) {
    StorageResult result;
    std::vector<double> times;
    int64_t bytes = 0;
    for (const auto& share : shares) {
      times.insert(times.end(), share.times.begin(), share.times.end());
      bytes += share.bytes;
      result.operations += share.operations;
      result.sync_s = std::max(result.sync_s, share.sync_s);
      result.seconds = std::max(result.seconds, std::chrono::duration<double>(share.end - start).count());
    }
    if (result.operations == 0) return;
    result.cached_share = cached_share;
    result.rate = {.operation = operation,
                   .folder_type = report_.folder_type,
                   .block_bytes = block_bytes,
                   .writers = writers,
                   .direct = direct,
                   .bytes_per_s = static_cast<double>(bytes) / result.seconds,
                   .operations_per_s = static_cast<double>(result.operations) / result.seconds,
                   .p50_s = quantile_of(times, 0.5),
                   .p99_s = quantile_of(times, 0.99)};
    report_.results.push_back(std::move(result));
  }

  // One operation on `block_bytes` of a file, timed. False when the deadline has passed or the user stops.
  bool go_on(Clock::time_point deadline) const { return Clock::now() < deadline && !is_stopped_(); }

  template <class Call>
  void timed(Share& share, int64_t bytes, const char* what, const Call& call) {
    const auto start = Clock::now();
    int64_t done = 0;
    while (done < bytes) {
      const ssize_t part = base::uninterrupted([&] { return call(done); });
      if (part < 0) fail(what, folder_.path());
      if (part == 0) {
        errno = EIO;
        fail(what, folder_.path());
      }
      done += part;
    }
    share.times.push_back(seconds_since(start));
    ++share.operations;
    share.bytes += bytes;
  }

  void write_block(const File& file, const Block& block, int64_t bytes, int64_t offset, Share& share) {
    timed(share, bytes, "write",
          [&](int64_t done) { return ::pwrite(file.number(), block.data() + done, static_cast<size_t>(bytes - done), offset + done); });
  }
  void read_block(const File& file, const Block& block, int64_t bytes, int64_t offset, Share& share) {
    timed(share, bytes, "read",
          [&](int64_t done) { return ::pread(file.number(), block.data() + done, static_cast<size_t>(bytes - done), offset + done); });
  }
  void sync(const File& file, Share& share) {
    const auto start = Clock::now();
    if (base::uninterrupted([&] { return ::fsync(file.number()); }) != 0) fail("sync", folder_.path());
    share.sync_s += seconds_since(start);
  }

  static int mode(bool direct) { return direct ? O_DIRECT : 0; }
  static std::string name_of(int worker) { return fmt::format("file-{}", worker); }

  // The share of the files of all workers that stays in the page cache after it was told to drop them.
  double drop_caches(int writers) {
    int64_t pages = 0, cached = 0;
    for (int worker = 0; worker < writers; ++worker) {
      const auto file = folder_.open(name_of(worker), O_RDONLY);
      const int64_t bytes = sizes_[static_cast<size_t>(worker)];
      if (bytes == 0) continue;
      ::fsync(file.number());
      ::posix_fadvise(file.number(), 0, 0, POSIX_FADV_DONTNEED);
      void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, file.number(), 0);
      if (mapped == MAP_FAILED) continue;
      std::vector<unsigned char> present(static_cast<size_t>((bytes + ::sysconf(_SC_PAGESIZE) - 1) / ::sysconf(_SC_PAGESIZE)));
      if (::mincore(mapped, static_cast<size_t>(bytes), present.data()) == 0) {
        pages += static_cast<int64_t>(present.size());
        cached += std::count_if(present.begin(), present.end(), [](unsigned char page) { return (page & 1) != 0; });
      }
      ::munmap(mapped, static_cast<size_t>(bytes));
    }
    return pages > 0 ? static_cast<double>(cached) / static_cast<double>(pages) : 0;
  }

  void measure_with(int writers, int modes) {
    const auto remove_files = [&] {
      for (int worker = 0; worker < static_cast<int>(sizes_.size()); ++worker) folder_.remove(name_of(worker));
      sizes_.clear();
    };
    for (int direct = 0; direct < modes; ++direct) {
      remove_files();
      measure_sequential_write(writers, direct != 0);
      measure_sequential_read(writers, direct != 0);
    }
    for (const int64_t bytes : options_.block_bytes)
      for (const bool writes : {false, true})
        for (int direct = 0; direct < modes; ++direct) measure_random(writers, bytes, direct != 0, writes);
    remove_files();
    for (int direct = 0; direct < modes; ++direct) measure_small_files(writers, direct != 0);
  }

  void measure_sequential_write(int writers, bool direct) {
    constexpr int64_t kBytes = StorageOptions::kSequentialBytes;
    begin(label("sequential write", kBytes, writers, direct));
    sizes_.assign(static_cast<size_t>(writers), 0);
    std::vector<File> files;
    for (int worker = 0; worker < writers; ++worker) files.push_back(folder_.create(name_of(worker), mode(direct)));
    measure("sequential_write", kBytes, writers, direct, 0, [&](int worker, Share& share, Clock::time_point deadline) {
      const auto& file = files[static_cast<size_t>(worker)];
      Block block(kBytes);
      int64_t offset = 0;
      // At least one block, so that there is something to read.
      while (offset < options_.size_bytes / writers && (offset == 0 || go_on(deadline))) {
        block.change(kBytes, static_cast<uint64_t>(offset + worker));
        write_block(file, block, kBytes, offset, share);
        offset += kBytes;
      }
      sync(file, share);
      sizes_[static_cast<size_t>(worker)] = offset;
    });
  }

  void measure_sequential_read(int writers, bool direct) {
    constexpr int64_t kBytes = StorageOptions::kSequentialBytes;
    begin(label("sequential read", kBytes, writers, direct));
    const double cached = drop_caches(writers);
    measure("sequential_read", kBytes, writers, direct, direct ? 0 : cached, [&](int worker, Share& share, Clock::time_point deadline) {
      const auto file = folder_.open(name_of(worker), O_RDONLY | mode(direct));
      const Block block(kBytes);
      for (int64_t offset = 0; offset < sizes_[static_cast<size_t>(worker)] && go_on(deadline); offset += kBytes)
        read_block(file, block, kBytes, offset, share);
    });
  }

  // Each block of the files once at most, in a random order: none is in the cache because it was asked for before.
  void measure_random(int writers, int64_t bytes, bool direct, bool writes) {
    begin(label(writes ? "random write" : "random read", bytes, writers, direct));
    const double cached = drop_caches(writers);
    const int64_t blocks_of_file = *std::min_element(sizes_.begin(), sizes_.end()) / bytes, blocks = blocks_of_file * writers;
    const auto key = base::stream_key(static_cast<uint64_t>(bytes + writers), writes ? "writes" : "reads");
    const bool counts_cache = !direct && !writes;
    measure(writes ? "random_write" : "random_read", bytes, writers, direct, counts_cache ? cached : 0,
            [&](int worker, Share& share, Clock::time_point deadline) {
              std::vector<File> files;
              for (int w = 0; w < writers; ++w) {
                files.push_back(folder_.open(name_of(w), (writes ? O_RDWR : O_RDONLY) | mode(direct)));
                ::posix_fadvise(files.back().number(), 0, 0, POSIX_FADV_RANDOM);
              }
              Block block(bytes);
              for (int64_t i = worker; i < blocks && go_on(deadline); i += writers) {
                const auto place = static_cast<int64_t>(base::permute(key, static_cast<uint64_t>(i), static_cast<uint64_t>(blocks)));
                const auto& file = files[static_cast<size_t>(place / blocks_of_file)];
                const int64_t offset = place % blocks_of_file * bytes;
                if (!writes) {
                  read_block(file, block, bytes, offset, share);
                  continue;
                }
                block.change(bytes, static_cast<uint64_t>(i));
                write_block(file, block, bytes, offset, share);
              }
              for (const auto& file : files)
                if (writes) sync(file, share);
            });
  }

  void measure_small_files(int writers, bool direct) {
    constexpr int64_t kBytes = StorageOptions::kSmallFileBytes;
    const int64_t most = std::max<int64_t>(1, StorageOptions::kMostSmallFiles / writers);
    const auto name = [](int worker, int64_t i) { return fmt::format("small-{}-{}", worker, i); };
    std::vector<int64_t> made(static_cast<size_t>(writers), 0);
    begin(label("small files, create", kBytes, writers, direct));
    measure("create", kBytes, writers, direct, 0, [&](int worker, Share& share, Clock::time_point deadline) {
      Block block(kBytes);
      auto& count = made[static_cast<size_t>(worker)];
      while (count < most && (count == 0 || go_on(deadline))) {
        block.change(kBytes, static_cast<uint64_t>(count + worker * most));
        Share inner;
        const auto start = Clock::now();
        {
          const auto file = folder_.create(name(worker, count), mode(direct));
          write_block(file, block, kBytes, 0, inner);
          sync(file, inner);
        }
        count_whole(share, start, kBytes);
        ++count;
      }
      sync_folder(share);
    });
    begin(label("small files, read", kBytes, writers, direct));
    for (int worker = 0; worker < writers; ++worker)
      for (int64_t i = 0; i < made[static_cast<size_t>(worker)]; ++i)
        ::posix_fadvise(folder_.open(name(worker, i), O_RDONLY).number(), 0, 0, POSIX_FADV_DONTNEED);
    measure("open_read", kBytes, writers, direct, 0, [&](int worker, Share& share, Clock::time_point deadline) {
      const Block block(kBytes);
      for (int64_t i = 0; i < made[static_cast<size_t>(worker)] && go_on(deadline); ++i) {
        Share inner;
        const auto start = Clock::now();
        {
          const auto file = folder_.open(name(worker, i), O_RDONLY | mode(direct));
          read_block(file, block, kBytes, 0, inner);
        }
        count_whole(share, start, kBytes);
      }
    });
    begin(label("small files, unlink", kBytes, writers, direct));
    measure("unlink", kBytes, writers, direct, 0, [&](int worker, Share& share, Clock::time_point) {
      for (int64_t i = 0; i < made[static_cast<size_t>(worker)]; ++i) {
        const auto start = Clock::now();
        folder_.remove(name(worker, i));
        count_whole(share, start, 0);
      }
      sync_folder(share);
    });
  }

  static void count_whole(Share& share, Clock::time_point start, int64_t bytes) {
    share.times.push_back(seconds_since(start));
    ++share.operations;
    share.bytes += bytes;
  }
  void sync_folder(Share& share) {
    const auto start = Clock::now();
    folder_.sync();
    share.sync_s += seconds_since(start);
  }

  // As a checkpoint is written: blocks of 8 MiB, several under way, past the page cache where that is possible.
  void measure_checkpoint_write() {
    const checkpoint::BlockWriting how;
    begin(label("checkpoint write", kCheckpointBlock, 1, how.direct));
    const Block block(kCheckpointBlock);
    folder_.adopt("checkpoint");
    measure("checkpoint_write", kCheckpointBlock, 1, report_.direct_refusal.empty(), 0, [&](int, Share& share, Clock::time_point deadline) {
      const auto sink = checkpoint::local_storage().create_blocks(folder_.path() / "checkpoint", options_.size_bytes);
      std::vector<Clock::time_point> starts;
      const auto take = [&](bool wait) {
        const auto ticket = sink->finished(wait);
        if (ticket) count_whole(share, starts[*ticket], kCheckpointBlock);
        return ticket.has_value();
      };
      int64_t offset = 0;
      while (offset < options_.size_bytes && (offset == 0 || go_on(deadline))) {
        starts.push_back(Clock::now());
        sink->write(offset, reinterpret_cast<const std::byte*>(block.data()), kCheckpointBlock, starts.size() - 1);
        offset += kCheckpointBlock;
        while (take(false)) {
        }
      }
      while (take(true)) {
      }
      const auto start = Clock::now();
      sink->close(offset);
      share.sync_s = seconds_since(start);
    });
    folder_.remove("checkpoint");
  }

  static std::string label(const char* what, int64_t bytes, int writers, bool direct) {
    return fmt::format("{} {} x{}{}", what, base::format_bytes(bytes), writers, direct ? " O_DIRECT" : "");
  }

  const StorageOptions& options_;
  const StorageProgress& progress_;
  const std::function<bool()>& is_stopped_;
  StorageReport report_;
  ScratchFolder folder_;
  std::vector<int64_t> sizes_;  // of the files that are there, by worker
  size_t done_ = 0, all_ = 0;
  Clock::time_point started_ = Clock::now();
};

}  // namespace

void StorageOptions::check() const {
  if (writers.empty() || std::any_of(writers.begin(), writers.end(), [](int n) { return n < 1 || n > 256; }))
    throw UsageError("--writers: numbers from 1 to 256, such as 1,4");
  if (block_bytes.empty()) throw UsageError("--blocks: bytes of random reads and writes, such as 4K,64K");
  for (const int64_t bytes : block_bytes)
    if (bytes < kPage || bytes % kPage != 0 || bytes > int64_t{64} << 20)
      throw UsageError("--blocks {}: a block has 4K to 64M and is a multiple of 4K", bytes);
  const int64_t most_writers = *std::max_element(writers.begin(), writers.end());
  const int64_t least = most_writers * std::max(kSequentialBytes, *std::max_element(block_bytes.begin(), block_bytes.end()));
  if (size_bytes < least || size_bytes > int64_t{1} << 44)
    throw UsageError("--size {}: {} writers with these blocks need at least {}", base::format_bytes(size_bytes), most_writers,
                     base::format_bytes(least));
  if (!(seconds > 0 && seconds <= 3600)) throw UsageError("--seconds {}: from 0.001 to 3600", seconds);
}

int64_t StorageOptions::needed_bytes() const {
  const int64_t most_writers = *std::max_element(writers.begin(), writers.end());
  // Writers' last blocks, a checkpoint's last block, small files with as much again for what the file system keeps about them.
  return size_bytes + most_writers * kSequentialBytes + kCheckpointBlock + 2 * kMostSmallFiles * kSmallFileBytes;
}

StorageReport measure_storage(const StorageOptions& options, const StorageProgress& progress, const std::function<bool()>& is_stopped) {
  options.check();
  if (!fs::is_directory(options.folder))
    throw UsageError("{} is not a folder; make it, or name one that is there", options.folder.string());
  const int64_t needed = options.needed_bytes() + kSpareBytes, free = base::disk_space(options.folder).free_bytes;
  if (free < needed)
    throw UsageError("{} has {} free and the measurement wants {}; take a smaller --size (now {}) or another folder",
                     options.folder.string(), base::format_bytes(free), base::format_bytes(needed), base::format_bytes(options.size_bytes));
  return Bench(options, progress, is_stopped).run();
}

double quantile_of(std::vector<double>& values, double quantile) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(quantile * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

const StorageResult* StorageReport::best_random_read(int64_t block_bytes) const {
  const StorageResult* best = nullptr;
  for (const auto& result : results) {
    if (result.rate.operation != "random_read" || result.rate.block_bytes != block_bytes) continue;
    const bool better = !best || result.rate.direct > best->rate.direct ||
                        (result.rate.direct == best->rate.direct && result.rate.operations_per_s > best->rate.operations_per_s);
    if (better) best = &result;
  }
  return best;
}

}  // namespace ingot::bench
