// What a power cut can leave of a save. All changes that two ranks make to the file system are recorded with their bytes; then, for
// each moment, folders are made of them as a disk may hold them that promises no more than fsync does: what was not synced may be there or
// not, in any combination, written bytes may be zero or half there. Whatever it is, the newest checkpoint that is found is whole.
#include <gmock/gmock.h>

#include <random>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_faults.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// One change of the file system, by inodes: names may change later. Or a sync, which makes all earlier changes of its inode durable.
struct Change {
  enum class Kind { add, write, resize, rename, exchange, remove, sync } kind;
  int inode;  // of the file, or of the folder whose names change
  std::string name, to;
  int child = -1, other = -1;  // what has the names
  int64_t offset = 0;
  std::string bytes;  // of a write; of a resize only the number counts
  fs::path path;      // at the time, for people
};

struct Node {
  bool is_folder = false;
  std::string content;
  std::map<std::string, int> names;
};
constexpr int kRoot = 0;
using Disk = std::map<int, Node>;

// What a change that was not synced may have become.
enum class Fate { whole, lost, zero, torn };

void apply(Disk& disk, const Change& change, Fate fate) {
  using Kind = Change::Kind;
  if (fate == Fate::lost) return;
  Node& node = disk[change.inode];
  switch (change.kind) {
    case Kind::add:
      disk[change.child].is_folder = change.to == "folder";
      node.names[change.name] = change.child;
      break;
    case Kind::write: {
      auto bytes = change.bytes;
      if (fate == Fate::zero) bytes.assign(bytes.size(), '\0');
      if (fate == Fate::torn) bytes.resize(bytes.size() / 2);
      const auto offset = static_cast<size_t>(change.offset);
      if (node.content.size() < offset + bytes.size()) node.content.resize(offset + bytes.size(), '\0');
      node.content.replace(offset, bytes.size(), bytes);
      break;
    }
    case Kind::resize: node.content.resize(static_cast<size_t>(change.offset), '\0'); break;
    case Kind::rename:
      if (const auto at = node.names.find(change.name); at != node.names.end() && at->second == change.child) node.names.erase(at);
      node.names[change.to] = change.child;
      break;
    case Kind::exchange:
      node.names[change.name] = change.other;
      node.names[change.to] = change.child;
      break;
    case Kind::remove:
      if (const auto at = node.names.find(change.name); at != node.names.end() && at->second == change.child) node.names.erase(at);
      break;
    case Kind::sync: break;
  }
}

// A disk as a storage to read from.
class DiskStorage : public Storage {
 public:
  DiskStorage(const Disk& disk, fs::path root) : disk_(disk), root_(std::move(root)) {}
  std::unique_ptr<Source> open(const fs::path& file) const override {
    const Node* node = find(file);
    if (!node || node->is_folder) throw base::CheckpointError("cannot open {}: No such file or directory", file.string());
    return std::make_unique<Bytes>(node->content);
  }
  std::vector<FolderEntry> list(const fs::path& folder) const override {
    std::vector<FolderEntry> entries;
    if (const Node* node = find(folder))
      for (const auto& [name, inode] : node->names) entries.push_back({name, disk_.at(inode).is_folder, 0});
    return entries;
  }
  std::unique_ptr<Lease> hold(const fs::path&, bool) const override { return std::make_unique<Held>(); }
  std::unique_ptr<Sink> create(const fs::path&) const override { return nullptr; }
  std::unique_ptr<BlockSink> create_blocks(const fs::path&, int64_t) const override { return nullptr; }
  void make_folder(const fs::path&) const override {}
  bool publish(const fs::path&, const fs::path&) const override { return false; }
  void hide(const fs::path&, const fs::path&) const override {}
  void remove_folder(const fs::path&) const override {}

 private:
  struct Held : Lease {
    bool certain() const override { return true; }
  };
  struct Bytes : Source {
    explicit Bytes(const std::string& content) : bytes(content) {}
    int64_t size_bytes() const override { return static_cast<int64_t>(bytes.size()); }
    void read_at(int64_t offset, void* destination, int64_t size) const override {
      if (offset + size > size_bytes()) throw base::CheckpointError("the file ends too early");
      std::memcpy(destination, bytes.data() + offset, static_cast<size_t>(size));
    }
    const std::string& bytes;
  };
  const Node* find(const fs::path& path) const {
    int inode = kRoot;
    if (path == root_) return &disk_.at(inode);
    for (const auto& part : path.lexically_relative(root_)) {
      const auto& names = disk_.at(inode).names;
      const auto at = names.find(part);
      if (at == names.end()) return nullptr;
      inode = at->second;
    }
    return &disk_.at(inode);
  }
  const Disk& disk_;
  fs::path root_;
};

// A storage that passes everything on to the file system and writes down what it changes, system call by system call: the calls come
// from PosixStorage by its hook, what they say by this interface.
class Recorder : public Storage, public CallHook {
 public:
  Recorder(const fs::path& root, bool can_exchange)
      : root_(root), no_exchange_(*this), posix_(can_exchange ? static_cast<CallHook*>(this) : &no_exchange_, 4096, {.direct = false}) {
    now_[kRoot].is_folder = true;
    take_in(root, kRoot);
    before_ = now_;
  }

  std::vector<Change> changes;
  size_t published = 0;  // changes until a checkpoint was durable and visible
  const Disk& before_all() const { return before_; }
  const Disk& after_all() const { return now_; }

  std::unique_ptr<Sink> create(const fs::path& file) const override {
    begin(file);
    return std::make_unique<Stream>(*this, file, posix_.create(file));
  }
  std::unique_ptr<BlockSink> create_blocks(const fs::path& file, int64_t size_bytes) const override {
    begin(file);
    return std::make_unique<Blocks>(*this, file, posix_.create_blocks(file, size_bytes));
  }
  std::unique_ptr<Source> open(const fs::path& file) const override { return posix_.open(file); }
  std::vector<FolderEntry> list(const fs::path& folder) const override { return posix_.list(folder); }
  void make_folder(const fs::path& folder) const override { posix_.make_folder(folder); }
  std::unique_ptr<Lease> hold(const fs::path& folder, bool exclusive) const override { return posix_.hold(folder, exclusive); }
  bool publish(const fs::path& aside, const fs::path& target) const override {
    moving_ = {aside, target};
    const bool replaced = posix_.publish(aside, target);
    auto& self = const_cast<Recorder&>(*this);
    self.published = changes.size();
    return replaced;
  }
  void hide(const fs::path& folder, const fs::path& aside) const override {
    moving_ = {folder, aside};
    posix_.hide(folder, aside);
  }
  void remove_folder(const fs::path& folder) const override { posix_.remove_folder(folder); }

  int before(Call call, const fs::path& path, size_t& size_bytes) override {
    const std::lock_guard lock(mutex_);
    if (call == Call::list || call == Call::read || call == Call::lock || call == Call::status || call == Call::close) return 0;
    if (path == root_.parent_path()) return 0;  // which is there and stays
    const int folder = path == root_ ? -1 : inode_of(path.parent_path());
    const std::string name = path.filename();
    switch (call) {
      case Call::make_folder:
        if (path != root_ && !now_[folder].names.contains(name)) add(folder, name, true, path);
        break;
      case Call::open:
        if (streams_.contains(path) && !now_[folder].names.contains(name)) add(folder, name, false, path);
        break;
      case Call::write: {
        auto& stream = streams_.at(path);
        note({Change::Kind::write, inode_of(path), "", "", -1, -1, static_cast<int64_t>(stream.written),
              stream.bytes.substr(stream.written, size_bytes), path});
        stream.written += size_bytes;
        EXPECT_LE(stream.written, stream.bytes.size()) << "writes do not follow one another";
        break;
      }
      case Call::resize: note({Change::Kind::resize, inode_of(path), "", "", -1, -1, streams_.at(path).size_bytes, "", path}); break;
      case Call::sync: note({Change::Kind::sync, inode_of(path), "", "", -1, -1, 0, "", path}); break;
      case Call::rename: {
        const auto& [from, to] = moving_;
        const fs::path waiting = to.parent_path() / waiting_name(to.filename());
        const fs::path other = path == from ? to : path == to ? waiting : from;
        note({Change::Kind::rename, folder, name, other.filename(), inode_of(path), -1, 0, "", path});
        break;
      }
      case Call::exchange:
        if (!exchanges_) break;
        note({Change::Kind::exchange, folder, name, moving_.second.filename(), inode_of(path), inode_of(moving_.second), 0, "", path});
        break;
      case Call::remove: note({Change::Kind::remove, folder, name, "", inode_of(path), -1, 0, "", path}); break;
      default: break;
    }
    return 0;
  }
  void without_exchange() { exchanges_ = false; }

 private:
  struct Content {
    std::string bytes;  // what was given to write so far
    size_t written = 0;
    int64_t size_bytes = 0;
  };
  class Stream : public Sink {
   public:
    Stream(const Recorder& to, fs::path file, std::unique_ptr<Sink> sink) : to_(to), file_(std::move(file)), sink_(std::move(sink)) {}
    void write(const void* data, int64_t size_bytes) override {
      to_.give(file_, static_cast<const char*>(data), size_bytes);
      sink_->write(data, size_bytes);
    }
    void finish() override { sink_->finish(); }

   private:
    const Recorder& to_;
    fs::path file_;
    std::unique_ptr<Sink> sink_;
  };
  class Blocks : public BlockSink {
   public:
    Blocks(const Recorder& to, fs::path file, std::unique_ptr<BlockSink> sink) : to_(to), file_(std::move(file)), sink_(std::move(sink)) {}
    void write(int64_t offset, const std::byte* data, int64_t size_bytes, uint64_t ticket) override {
      EXPECT_EQ(to_.given(file_), offset);
      to_.give(file_, reinterpret_cast<const char*>(data), size_bytes);
      sink_->write(offset, data, size_bytes, ticket);
    }
    std::optional<uint64_t> finished(bool wait) override { return sink_->finished(wait); }
    void close(int64_t size_bytes) override {
      to_.resize(file_, size_bytes);
      sink_->close(size_bytes);
    }

   private:
    const Recorder& to_;
    fs::path file_;
    std::unique_ptr<BlockSink> sink_;
  };

  void begin(const fs::path& file) const {
    const std::lock_guard lock(mutex_);
    streams_[file] = {};
  }
  void give(const fs::path& file, const char* data, int64_t size_bytes) const {
    const std::lock_guard lock(mutex_);
    streams_.at(file).bytes.append(data, static_cast<size_t>(size_bytes));
  }
  int64_t given(const fs::path& file) const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(streams_.at(file).bytes.size());
  }
  void resize(const fs::path& file, int64_t size_bytes) const {
    const std::lock_guard lock(mutex_);
    streams_.at(file).size_bytes = size_bytes;
  }

  int inode_of(const fs::path& path) const {
    int inode = kRoot;
    if (path == root_) return inode;
    for (const auto& part : path.lexically_relative(root_)) inode = now_.at(inode).names.at(part);
    return inode;
  }
  void note(Change change) {
    apply(now_, change, Fate::whole);
    changes.push_back(std::move(change));
  }
  void add(int folder, const std::string& name, bool is_folder, const fs::path& path) {
    note({Change::Kind::add, folder, name, is_folder ? "folder" : "file", next_inode_++, -1, 0, "", path});
  }
  void take_in(const fs::path& folder, int inode) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const int child = next_inode_++;
      now_[inode].names[entry.path().filename()] = child;
      now_[child].is_folder = entry.is_directory();
      if (entry.is_directory()) take_in(entry.path(), child);
      else now_[child].content = content_of(entry.path());
    }
  }

  fs::path root_;
  NoExchange no_exchange_;
  PosixStorage posix_;
  bool exchanges_ = true;
  mutable std::mutex mutex_;
  mutable std::map<fs::path, Content> streams_;
  mutable std::pair<fs::path, fs::path> moving_;  // by rank 0 alone
  int next_inode_ = kRoot + 1;
  Disk now_, before_;
};

using Ignored = std::function<bool(const Change& sync)>;

class PowerCut : public TemporaryFolder {
 protected:
  PowerCut() : TemporaryFolder(memory_folder()) {}
  const Sample old_ = mixed_sample(1), new_ = mixed_sample(2);
  static constexpr int kRanks = 2;

  void SetUp() override {
    TemporaryFolder::SetUp();
    base::set_log_level(base::LogLevel::error);  // thousands of checkpoints are passed over
    for (const int64_t step : {10, 20, 30}) save_by_all(step, old_, "old", nullptr);
  }
  void TearDown() override {
    base::set_log_level(base::LogLevel::info);
    TemporaryFolder::TearDown();
  }

  void save_by_all(int64_t step, const Sample& sample, const std::string& mark, const Storage* storage) const {
    const auto errors = run_team(kRanks, [&](const Team& team) {
      Extras extras = {{fmt::format("of rank {}", team.rank()), "note"}};
      if (team.rank() == 0) extras["x"] = mark;
      save(folder, step, mixed_items(sample, team.rank(), team.size()), extras,
           {.retention = {.keep = 2},
            .piece_limit_bytes = 1500,
            .file_limit_bytes = 6000,
            .grace_s = 0,
            .block_bytes = 4096,
            .storage = storage,
            .team = &team});
    });
    for (const auto& error : errors) ASSERT_EQ(error, "");
  }

  // What is wrong with the checkpoint that a reader would take; "" when nothing.
  std::string fault_of(const Disk& disk, int64_t step, bool returned) const {
    const DiskStorage storage(disk, folder);
    const auto newest = latest(folder, storage);
    if (!newest) return "there is no checkpoint";
    try {
      const bool is_new = Reader(newest->path, {.storage = &storage}).extra("x") == "new";
      if (!verify(newest->path, storage).sound()) return "the newest one is damaged";
      if (!(is_new ? new_ : old_).is_in(newest->path, storage)) return "the newest one has other bytes";
      if (is_new && newest->step != step) return "the newest one has another step";
      if (returned && !is_new) return "the save had returned, but the old one is there";
    } catch (const base::CheckpointError& error) {
      return error.what();
    }
    return "";
  }

  struct Findings {
    size_t states = 0, different = 0;
    std::vector<std::string> faults;  // the first one of each moment
  };

  // All moments, and of each: nothing unsynced is there, or all of it, all but one change, one alone, and some random mixtures.
  Findings cut_everywhere(const Recorder& log, int64_t step, const Ignored& ignored = nullptr) const {
    Findings findings;
    std::set<std::string> seen;  // what was found to be sound already
    std::mt19937_64 random(7);
    for (size_t moment = 0; moment <= log.changes.size(); ++moment) {
      // From the last one on: is there a sync of the same inode behind it?
      std::set<int> synced;
      std::vector<bool> durable(moment);
      std::vector<size_t> open;
      for (size_t i = moment; i-- > 0;) {
        const auto& change = log.changes[i];
        if (change.kind == Change::Kind::sync) {
          if (!ignored || !ignored(change)) synced.insert(change.inode);
          continue;
        }
        durable[i] = synced.contains(change.inode);
        if (!durable[i]) open.push_back(i);
      }
      bool failed = false;
      const auto attempt = [&](const std::function<Fate(size_t)>& fate) {
        Disk disk = log.before_all();
        for (size_t i = 0; i < moment; ++i) apply(disk, log.changes[i], durable[i] ? Fate::whole : fate(i));
        ++findings.states;
        const bool returned = moment >= log.published;
        if (failed || !seen.insert(visible_part(disk) + (returned ? "+" : "-")).second) return;
        ++findings.different;
        const auto fault = fault_of(disk, step, returned);
        if (fault.empty()) return;
        failed = true;
        findings.faults.push_back(fmt::format("after {} changes, the last to {}: {}", moment,
                                              moment > 0 ? log.changes[moment - 1].path.string() : "nothing", fault));
      };
      attempt([](size_t) { return Fate::lost; });
      attempt([](size_t) { return Fate::whole; });
      for (const size_t one : open) {
        attempt([&](size_t i) { return i == one ? Fate::lost : Fate::whole; });
        attempt([&](size_t i) { return i == one ? Fate::whole : Fate::lost; });
        if (log.changes[one].kind != Change::Kind::write) continue;
        attempt([&](size_t i) { return i == one ? Fate::zero : Fate::whole; });
        attempt([&](size_t i) { return i == one ? Fate::torn : Fate::whole; });
      }
      for (int i = open.size() < 2 ? 0 : base::tests_run_at_night() ? 5000 : 100; i > 0; --i)
        attempt([&](size_t) { return random() % 2 ? Fate::whole : static_cast<Fate>(random() % 4); });
    }
    return findings;
  }

  // Names and contents of all that a reader looks at.
  static std::string visible_part(const Disk& disk) {
    std::string key;
    for (const auto& [step, inode] : disk.at(kRoot).names) {
      if (step.starts_with('.')) continue;
      key += step + "/";
      for (const auto& [name, file] : disk.at(inode).names) {
        const auto& content = disk.at(file).content;
        const auto digest = digest_of(content.data(), static_cast<int64_t>(content.size()));
        key += fmt::format("{}:{}:{:x}{:x} ", name, content.size(), digest.high, digest.low);
      }
    }
    return key;
  }

  std::unique_ptr<Recorder> recorded(int64_t step, bool can_exchange = true) const {
    auto log = std::make_unique<Recorder>(folder, can_exchange);
    if (!can_exchange) log->without_exchange();
    save_by_all(step, new_, "new", log.get());
    // The log is complete: played back, it gives what is on the disk.
    EXPECT_EQ(visible_part(log->after_all()), visible_part(Recorder(folder, true).after_all()));
    EXPECT_GT(log->published, 30u);
    EXPECT_GT(log->changes.size(), log->published) << "removing the oldest comes afterwards";
    return log;
  }
};

TEST_F(PowerCut, at_any_moment_leaves_the_old_or_the_new_checkpoint_whole) {
  const auto findings = cut_everywhere(*recorded(40), 40);
  EXPECT_THAT(findings.faults, IsEmpty());
  EXPECT_GT(findings.states, 3000u);
  EXPECT_GT(findings.different, 10u);
}

TEST_F(PowerCut, while_a_step_is_replaced_leaves_the_old_or_the_new_one_whole) {
  EXPECT_THAT(cut_everywhere(*recorded(30), 30).faults, IsEmpty());
}

TEST_F(PowerCut, while_a_step_is_replaced_without_exchange_leaves_an_older_or_the_new_one_whole) {
  EXPECT_THAT(cut_everywhere(*recorded(30, false), 30).faults, IsEmpty());
}

// That the model would notice: each kind of sync that the commit needs, left out, makes it find a damaged or lost checkpoint.
TEST_F(PowerCut, is_noticed_for_each_sync_that_is_left_out) {
  const auto log = recorded(40);
  const std::string hidden = ".step_00000040.tmp-";
  const std::pair<const char*, Ignored> needed[] = {
      {"data files", [](const Change& sync) { return sync.path.filename().string().starts_with("data_"); }},
      {"the extras of the other rank", [](const Change& sync) { return sync.path.filename() == "data_00005.bin"; }},
      {"the metadata", [](const Change& sync) { return sync.path.filename() == kMetadataName; }},
      {"the hidden folder", [&](const Change& sync) { return sync.path.filename().string().starts_with(hidden); }},
      {"the parent", [&](const Change& sync) { return sync.path == folder; }}};
  for (const auto& [what, ignored] : needed) EXPECT_THAT(cut_everywhere(*log, 40, ignored).faults, Not(IsEmpty())) << what;
  EXPECT_THAT(cut_everywhere(*log, 40, needed[4].second).faults.at(0), HasSubstr("the save had returned"));
  // And for syncs that come too late: the data's only after the rename.
  auto late = recorded(50);
  auto& changes = late->changes;
  std::stable_partition(changes.begin(), changes.begin() + static_cast<ptrdiff_t>(late->published), [](const Change& change) {
    return change.kind != Change::Kind::sync || change.path.filename() != "data_00000.bin";
  });
  EXPECT_THAT(cut_everywhere(*late, 50).faults, Not(IsEmpty()));
}

}  // namespace
}  // namespace ingot::checkpoint
