#include "data/remote/block_cache.h"

#include <chrono>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "data/loader.h"
#include "data/prefetcher.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::DataError;
using base::FileError;

// Files in memory, and what a network does to them.
class Network : public RemoteFiles {
 public:
  std::map<std::string, std::string> files;
  std::string version = "1";
  std::function<void(const std::string& url, int64_t offset, int64_t size)> before_read;

  std::vector<std::pair<int64_t, int64_t>> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void forget() const {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }

  std::unique_ptr<RemoteFile> open(const std::string& url) const override {
    if (!is_there(url)) throw FileError("{} is not there", url);
    return std::make_unique<File>(*this, url);
  }
  bool is_there(const std::string& url) const override { return files.contains(url); }
  std::vector<std::string> names_in(const std::string&) const override { return {}; }

 private:
  struct File : RemoteFile {
    File(const Network& net, std::string name) : network(net), url(std::move(name)), known_version(net.version) {}
    int64_t size_bytes() const override { return static_cast<int64_t>(network.files.at(url).size()); }
    std::string version() const override { return known_version; }
    void read_at(int64_t offset, void* destination, int64_t size) const override {
      if (network.before_read) network.before_read(url, offset, size);
      {
        const std::lock_guard lock(network.mutex_);
        network.requests_.emplace_back(offset, size);
      }
      ASSERT_LE(offset + size, size_bytes());
      std::memcpy(destination, network.files.at(url).data() + offset, static_cast<size_t>(size));
    }
    const Network& network;
    std::string url, known_version;
  };
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<int64_t, int64_t>> requests_;
};

std::string noise(size_t size, uint64_t seed) {
  std::mt19937_64 draw(seed);
  std::string text(size, 0);
  for (auto& c : text) c = static_cast<char>(draw());
  return text;
}

struct Cached : ::testing::Test {
  TemporaryFolder folder;
  Network network;
  CacheOptions options;
  void SetUp() override {
    network.files["https://host/file"] = noise(1000, 1);
    set_remote_files(network);
    options = {.folder = folder / "cache", .limit_bytes = 1 << 20, .block_bytes = 16, .in_memory_bytes = 160, .connections = 4};
  }
  std::string& content() { return network.files["https://host/file"]; }
  std::string read(const CachedFile& file, int64_t offset, int64_t size) {
    std::string out(static_cast<size_t>(size), 0);
    file.read(offset, std::as_writable_bytes(std::span(out)));
    return out;
  }
  std::vector<fs::path> kept_blocks() {
    std::vector<fs::path> all;
    for (const auto& entry : fs::recursive_directory_iterator(options.folder))
      if (entry.is_regular_file() && entry.path().filename() != ".lock") all.push_back(entry.path());
    return all;
  }
};

TEST_F(Cached, files_have_their_bytes_wherever_they_are_read) {
  const CachedFile file(std::make_shared<BlockCache>(options), "https://host/file");
  ASSERT_EQ(file.size_bytes(), 1000);
  std::mt19937_64 draw(7);
  for (int i = 0; i < 500; ++i) {
    const auto offset = static_cast<int64_t>(draw() % 1001), size = static_cast<int64_t>(draw() % static_cast<uint64_t>(1001 - offset));
    ASSERT_EQ(read(file, offset, size), content().substr(static_cast<size_t>(offset), static_cast<size_t>(size)));
  }
  for (int64_t at = 0; at < 1000; at += 7)  // one after another
    ASSERT_EQ(read(file, at, std::min<int64_t>(7, 1000 - at)), content().substr(static_cast<size_t>(at), 7));
  expect_error<DataError>([&] { read(file, 999, 2); }, {"https://host/file", "999 to 1001 of 1000"});
  expect_error<DataError>([&] { read(file, -1, 1); }, {"-1"});
}

TEST_F(Cached, bytes_come_once_for_all_processes_of_a_machine) {
  for (int process = 0; process < 3; ++process) {
    const auto cache = std::make_shared<BlockCache>(options);
    const CachedFile file(cache, "https://host/file"), again(cache, "https://host/file");
    EXPECT_EQ(read(file, 0, 1000), content());
    EXPECT_EQ(read(again, 0, 1000), content());
    EXPECT_EQ(cache->fetched_bytes(), process == 0 ? 1000 : 0);
  }
  network.version = "2";
  content()[0] = static_cast<char>(content()[0] ^ 1);
  const auto cache = std::make_shared<BlockCache>(options);
  EXPECT_EQ(read(CachedFile(cache, "https://host/file"), 0, 1000), content()) << "another object under the same name";
  EXPECT_EQ(cache->fetched_bytes(), 1000);
}

TEST_F(Cached, what_the_disk_has_damaged_comes_again) {
  read(CachedFile(std::make_shared<BlockCache>(options), "https://host/file"), 0, 1000);
  const auto blocks = kept_blocks();
  ASSERT_EQ(blocks.size(), 63u);
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto bytes = content_of(blocks[i]);
    if (i % 3 == 0) bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    if (i % 3 == 1) bytes.resize(i % bytes.size());
    std::ofstream(blocks[i], std::ios::binary) << bytes;
  }
  const auto cache = std::make_shared<BlockCache>(options);
  EXPECT_EQ(read(CachedFile(cache, "https://host/file"), 0, 1000), content());
  EXPECT_GE(cache->fetched_bytes(), 41 * 16);
  EXPECT_LT(cache->fetched_bytes(), 43 * 16);
}

TEST_F(Cached, a_block_under_the_name_of_another_does_not_pass_for_it) {
  read(CachedFile(std::make_shared<BlockCache>(options), "https://host/file"), 0, 1000);
  auto blocks = kept_blocks();
  for (size_t i = 0; i + 1 < blocks.size(); ++i) fs::copy_file(blocks[i], blocks[i + 1], fs::copy_options::overwrite_existing);
  const auto cache = std::make_shared<BlockCache>(options);
  EXPECT_EQ(read(CachedFile(cache, "https://host/file"), 0, 1000), content());
  EXPECT_GE(cache->fetched_bytes(), 61 * 16);
}

TEST_F(Cached, what_others_have_in_the_folder_stays) {
  options.limit_bytes = 64;
  fs::create_directories(options.folder / "0123456789abcdef0123456789abcdef");
  const auto theirs = options.folder / "0123456789abcdef0123456789abcdef/1";
  std::ofstream(theirs) << noise(5000, 2);
  fs::last_write_time(theirs, fs::file_time_type::clock::now() - std::chrono::hours(1000));
  read(CachedFile(std::make_shared<BlockCache>(options), "https://host/file"), 0, 1000);
  EXPECT_TRUE(fs::exists(theirs));
  EXPECT_LT(kept_blocks().size(), 10u) << "of its own there is little";
}

TEST_F(Cached, files_without_a_version_are_kept_for_one_process) {
  network.version.clear();
  const auto cache = std::make_shared<BlockCache>(options);
  const CachedFile file(cache, "https://host/file");
  EXPECT_EQ(read(file, 0, 1000), content());
  EXPECT_EQ(read(CachedFile(cache, "https://host/file"), 0, 1000), content());
  EXPECT_EQ(cache->fetched_bytes(), 1000);
}

TEST_F(Cached, processes_do_not_fetch_a_copy_twice_and_a_failure_leaves_nothing) {
  network.before_read = [](const auto&, int64_t, int64_t) { throw FileError("the cable is cut"); };
  EXPECT_THROW(CachedFile(std::make_shared<BlockCache>(options), "https://host/file").local_copy(), FileError);
  for (const auto& path : kept_blocks()) EXPECT_TRUE(path.string().ends_with(".lock")) << path;
  network.before_read = [](const auto&, int64_t, int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  std::atomic<int64_t> fetched = 0;
  {
    std::vector<std::jthread> processes;
    for (int i = 0; i < 4; ++i)
      processes.emplace_back([&] {
        const auto cache = std::make_shared<BlockCache>(options);
        EXPECT_EQ(content_of(CachedFile(cache, "https://host/file").local_copy()), content());
        fetched += cache->fetched_bytes();
      });
  }
  EXPECT_EQ(fetched, 1000);
}

TEST_F(Cached, what_was_asked_for_ahead_stays_until_it_is_taken) {
  const auto cache = std::make_shared<BlockCache>(options);  // ten blocks in memory
  const CachedFile file(cache, "https://host/file");
  file.read_ahead(0, 480);  // thirty
  while (cache->fetched_bytes() < 480) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::error_code none;
  for (int i = 0; i < 20; ++i) {  // the last blocks may be on their way to the disk
    fs::remove_all(options.folder, none);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (int64_t at = 0; at < 480; at += 48) EXPECT_EQ(read(file, at, 8), content().substr(static_cast<size_t>(at), 8));
  EXPECT_EQ(cache->fetched_bytes(), 480);
}

TEST_F(Cached, a_copy_of_the_whole_is_made_once_and_checked) {
  const auto copy = [&](int64_t fetched) {
    const auto cache = std::make_shared<BlockCache>(options);
    const auto path = CachedFile(cache, "https://host/file").local_copy();
    EXPECT_EQ(content_of(path), content());
    EXPECT_EQ(cache->fetched_bytes(), fetched);
    return path;
  };
  copy(1000);
  const auto path = copy(0);
  auto bytes = content();
  bytes[500] = static_cast<char>(bytes[500] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
  copy(1000);
  fs::resize_file(path, 999);
  copy(1000);
  fs::remove(path.string() + ".xxh3");
  copy(1000);
}

TEST_F(Cached, blocks_that_nobody_has_used_for_longest_make_room) {
  options.limit_bytes = 1280;  // sums count as well: 53 blocks of 24
  const auto large = network.files["https://host/large"] = noise(4000, 3);
  {
    const CachedFile file(std::make_shared<BlockCache>(options), "https://host/large");
    for (int64_t at = 0; at < 4000; at += 16) {
      read(file, at, 16);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the clock of the file system is coarse
    }
  }
  int64_t kept = 0;
  for (const auto& block : kept_blocks()) kept += static_cast<int64_t>(fs::file_size(block));
  EXPECT_LE(kept, 1280 + 1280 / 64 + 24);
  EXPECT_GE(kept, 1000);
  const auto cache = std::make_shared<BlockCache>(options);
  const CachedFile file(cache, "https://host/large");
  EXPECT_EQ(read(file, 3840, 160), large.substr(3840));
  EXPECT_EQ(cache->fetched_bytes(), 0) << "the last ones are still there";
  EXPECT_EQ(read(file, 0, 160), large.substr(0, 160));
  EXPECT_EQ(cache->fetched_bytes(), 160) << "the first ones are not";
}

TEST_F(Cached, a_folder_that_may_not_be_written_costs_time_and_no_bytes) {
  std::ofstream(folder / "cache") << "a file in the place of the folder";
  const auto cache = std::make_shared<BlockCache>(options);
  const CachedFile file(cache, "https://host/file");
  EXPECT_EQ(read(file, 0, 1000), content());
  EXPECT_EQ(read(file, 0, 1000), content());
  EXPECT_THROW(file.local_copy(), FileError);
}

TEST_F(Cached, what_fails_is_an_error_for_who_waits_and_is_asked_for_again_by_the_next) {
  std::atomic<int> failures = 5;
  network.before_read = [&](const auto& url, int64_t, int64_t) {
    if (failures-- > 0) throw FileError("{}: the cable is cut", url);
  };
  const CachedFile file(std::make_shared<BlockCache>(options), "https://host/file");
  file.read_ahead(0, 16);  // nobody waits: nobody is told
  while (failures > 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 4; ++i) expect_error<FileError>([&] { read(file, 32, 8); }, {"the cable is cut"});
  EXPECT_EQ(read(file, 32, 8), content().substr(32, 8));
  EXPECT_EQ(read(file, 0, 8), content().substr(0, 8));
}

TEST_F(Cached, neighbours_come_in_one_request_and_strangers_side_by_side) {
  std::atomic<int> at_a_time = 0, most = 0;
  network.before_read = [&](const auto&, int64_t, int64_t) {
    const int now = ++at_a_time;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    --at_a_time;
  };
  const CachedFile file(std::make_shared<BlockCache>(options), "https://host/file");
  read(file, 0, 320);
  EXPECT_LE(network.requests().size(), 3u);
  network.forget();
  for (int64_t at = 400; at < 1000; at += 64) file.read_ahead(at, at + 8);
  for (int64_t at = 400; at < 1000; at += 64) EXPECT_EQ(read(file, at, 8), content().substr(static_cast<size_t>(at), 8));
  EXPECT_EQ(network.requests().size(), 10u);
  EXPECT_GE(most, 3);
}

TEST_F(Cached, threads_and_faults_change_no_byte) {
  std::atomic<uint64_t> count = 0;
  network.before_read = [&](const auto&, int64_t, int64_t) {
    if ((++count * 0x9e3779b97f4a7c15ull) >> 62 == 0) throw FileError("fault");
    if (count % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  };
  const auto cache = std::make_shared<BlockCache>(options);
  const CachedFile file(cache, "https://host/file");
  std::atomic<int64_t> wrong = 0, failed = 0;
  {
    std::vector<std::jthread> readers;
    for (uint64_t reader = 0; reader < 6; ++reader)
      readers.emplace_back([&, reader] {
        std::mt19937_64 draw(reader);
        for (int i = 0; i < 400; ++i) {
          const auto offset = static_cast<int64_t>(draw() % 900), size = static_cast<int64_t>(draw() % 100);
          if (draw() % 3 == 0) file.read_ahead(offset, offset + size);
          try {
            wrong += read(file, offset, size) != content().substr(static_cast<size_t>(offset), static_cast<size_t>(size));
          } catch (const FileError&) {
            ++failed;
          }
          std::error_code none;
          if (i % 50 == 0) fs::remove_all(options.folder, none);  // somebody tidies up
        }
      });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(failed, 0);
}

// What a data set gives from afar is what it gives from the disk.
struct FromAfar : Cached {
  DataConfig local, remote;
  std::shared_ptr<BlockCache> cache;  // with small blocks, for the loaders
  void SetUp() override {
    Cached::SetUp();
    options.block_bytes = 64, options.in_memory_bytes = 4096;
    cache = BlockCache::of(options);
    std::mt19937_64 draw(3);
    std::vector<int> lengths(200);
    for (auto& length : lengths) length = static_cast<int>(1 + draw() % 60);
    counting_dataset(folder, "tokens", lengths);
    for (const char* suffix : {".idx", ".bin"})
      network.files["s3://bucket/tokens" + std::string(suffix)] = content_of((folder / "tokens").string() + suffix);
    local.sources = {{(folder / "tokens").string(), 1}};
    local.seq_len = 16;
    remote = local;
    remote.sources = {{"s3://bucket/tokens", 1}};
    remote.cache = options.folder.string();
  }
};

TEST_F(FromAfar, batches_are_those_of_local_files_in_every_packing) {
  for (const char* packing : {"stream", "best_fit"}) {
    local.packing = remote.packing = packing;
    const Loader here(local, Split::train), there(remote, Split::train);
    ASSERT_EQ(there.samples(), here.samples());
    Prefetcher ahead(there, 3, 8);
    for (int64_t first = 0; first < 3 * here.samples(); first += 8) {
      const auto expected = here.batch(first, 8), got = ahead.get(first, 8);
      ASSERT_EQ(got.inputs, expected.inputs) << packing << " " << first;
      ASSERT_EQ(got.targets, expected.targets);
      ASSERT_EQ(got.document_starts, expected.document_starts);
    }
  }
}

TEST_F(FromAfar, masks_come_too_and_what_is_missing_is_said) {
  network.files["s3://bucket/tokens.mask"] = "INGOTMSK";
  EXPECT_THROW(Loader(remote, Split::train), DataError) << "a mask of other tokens";
  network.files.erase("s3://bucket/tokens.mask");
  network.files.erase("s3://bucket/tokens.bin");
  expect_error<FileError>([&] { Loader(remote, Split::train); }, {"s3://bucket/tokens.bin"});
  expect_error<FileError>([&] { check_is_there("s3://bucket/tokens"); }, {"s3://bucket/tokens.bin"});
  remote.packing = "pairs";
  expect_error<base::ConfigError>([&] { Loader(remote, Split::train); }, {"s3://bucket/tokens", "copy"});
}

TEST_F(FromAfar, a_batch_that_could_not_be_read_is_there_when_it_is_asked_for_again) {
  const Loader here(local, Split::train), there(remote, Split::train);
  std::atomic<bool> is_cut = false;
  network.before_read = [&](const auto&, int64_t, int64_t) {
    if (is_cut) throw FileError("the cable is cut");
  };
  Prefetcher ahead(there, 2, 8);
  int failures = 0;
  for (int64_t first = 0; first < 320; first += 8) {
    if (first % 80 == 16) is_cut = true;
    try {
      ASSERT_EQ(ahead.get(first, 8).inputs, here.batch(first, 8).inputs);
    } catch (const FileError&) {
      ++failures;
      is_cut = false;
      ASSERT_EQ(ahead.get(first, 8).inputs, here.batch(first, 8).inputs);
    }
  }
  EXPECT_GE(failures, 3);
}

}  // namespace
}  // namespace ingot::data
