#include "object_store/object_storage.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "base/environment.h"
#include "base/log.h"
#include "checkpoint/format/metadata.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/storage/folder.h"
#include "object_store/encoding.h"
#include "object_store/multipart.h"

namespace ingot::object_store {
namespace {

namespace fs = std::filesystem;
using base::CheckpointError;

constexpr const char* kLock = ".lock";
constexpr const char* kLeftover = "unfinished";  // in place of an id, in the hidden names of what dead writers have left

// What is said of storage is said by CheckpointErrors.
template <class Function>
auto guarded(Function&& function) {
  try {
    return function();
  } catch (const ObjectStoreError& failure) {
    throw CheckpointError("{}", failure.what());
  }
}

// ".step_7.tmp-<id>" is the folder step_7 while it is written or removed.
std::string visible_name(const std::string& name) {
  const auto suffix = name.find(".tmp-");
  return name.starts_with('.') && suffix != std::string::npos ? name.substr(1, suffix - 1) : name;
}

bool is_hidden(const fs::path& folder) { return folder.filename().string().starts_with('.'); }

double age_of(int64_t modified_s) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return modified_s > 0 ? static_cast<double>(now - modified_s) : 0;
}

// Small contents go out with one put, longer ones in parts while the next are collected.
class Outgoing {
 public:
  Outgoing(const Client& client, std::string key, int64_t part_bytes) : client_(client), key_(std::move(key)), part_bytes_(part_bytes) {}
  void add(const void* data, int64_t size_bytes) {
    const auto* next = static_cast<const std::byte*>(data);
    while (size_bytes > 0) {
      const int64_t room = part_bytes_ - static_cast<int64_t>(part_.size()), taken = std::min(room, size_bytes);
      part_.insert(part_.end(), next, next + taken);
      next += taken;
      size_bytes -= taken;
      if (static_cast<int64_t>(part_.size()) == part_bytes_) send();
    }
  }
  void finish() {
    if (!parts_) {
      client_.put(key_, part_);
      return;
    }
    if (!part_.empty()) send();
    parts_->complete();
  }

 private:
  void send() {
    if (!parts_) parts_.emplace(client_, key_);
    parts_->add_part(++sent_, std::exchange(part_, {}));
    part_.reserve(static_cast<size_t>(part_bytes_));
  }
  const Client& client_;
  std::string key_;
  int64_t part_bytes_;
  std::vector<std::byte> part_;
  std::optional<MultipartUpload> parts_;
  int sent_ = 0;
};

class ObjectSink : public checkpoint::Sink {
 public:
  ObjectSink(const Client& client, std::string key, int64_t part_bytes) : upload_(client, std::move(key), part_bytes) {}
  void write(const void* data, int64_t size_bytes) override {
    guarded([&] { upload_.add(data, size_bytes); });
  }
  void finish() override {
    guarded([&] { upload_.finish(); });
  }

 private:
  Outgoing upload_;
};

// Blocks come in file order (checkpoint/writer.cpp); each is copied into its part, so it is finished at once.
class ObjectBlockSink : public checkpoint::BlockSink {
 public:
  ObjectBlockSink(const Client& client, std::string key, int64_t size_bytes, int64_t part_bytes)
      : upload_(client, std::move(key), part_bytes_for(size_bytes, part_bytes)), size_bytes_(size_bytes) {}
  void write(int64_t offset, const std::byte* data, int64_t size_bytes, uint64_t ticket) override {
    if (offset != end_) throw CheckpointError("blocks of an object must come in order");
    const int64_t wanted = std::min(size_bytes, size_bytes_ - offset);
    guarded([&] { upload_.add(data, wanted); });
    end_ += size_bytes;
    finished_.push_back(ticket);
  }
  std::optional<uint64_t> finished(bool) override {
    if (finished_.empty()) return std::nullopt;
    const uint64_t ticket = finished_.front();
    finished_.pop_front();
    return ticket;
  }
  void close(int64_t size_bytes) override {
    if (size_bytes != size_bytes_ || end_ < size_bytes) throw CheckpointError("an object was announced with another size");
    guarded([&] { upload_.finish(); });
  }

 private:
  Outgoing upload_;
  int64_t size_bytes_, end_ = 0;
  std::deque<uint64_t> finished_;
};

class ObjectSource : public checkpoint::Source {
 public:
  ObjectSource(const Client& client, ObjectInfo info) : client_(client), info_(std::move(info)) {}
  int64_t size_bytes() const override { return info_.size_bytes; }
  std::string version() const override { return info_.etag; }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override {
    if (offset + size_bytes > info_.size_bytes) throw CheckpointError("{} ends at byte {}; it was truncated", info_.key, info_.size_bytes);
    if (size_bytes == 0) return;
    guarded([&] { client_.read(info_.key, offset, {static_cast<std::byte*>(destination), static_cast<size_t>(size_bytes)}, info_.etag); });
  }

 private:
  const Client& client_;
  ObjectInfo info_;
};

// Metadata of a save under way: it stays here until publish puts it where it makes the checkpoint visible.
class MemorySink : public checkpoint::Sink {
 public:
  explicit MemorySink(std::function<void(std::string)> keep) : keep_(std::move(keep)) {}
  void write(const void* data, int64_t size_bytes) override {
    content_.append(static_cast<const char*>(data), static_cast<size_t>(size_bytes));
  }
  void finish() override { keep_(std::move(content_)); }

 private:
  std::function<void(std::string)> keep_;
  std::string content_;
};

// Of readers nothing is known; writers are known to be dead when this process has their lock.
class ObjectLease : public checkpoint::Lease {
 public:
  explicit ObjectLease(bool certain) : certain_(certain) {}
  bool certain() const override { return certain_; }

 private:
  bool certain_;
};

// The id in the name of a data file (SharedFolder::name_of_file); "" in others.
std::string id_in(const std::string& name) {
  const auto dash = name.rfind('-'), dot = name.rfind(".bin");
  return name.starts_with("data_") && dash != std::string::npos && dot != std::string::npos && dash < dot
             ? name.substr(dash + 1, dot - dash - 1)
             : "";
}

// What is found of one step: its files by a listing, and uploads that have not ended.
struct StepContent {
  bool is_visible = false;  // has metadata.bin
  int64_t visible_since_s = 0, newest_s = 0;
  std::set<std::string> ids;  // of data files
  bool has_others = false;    // which no checkpoint has

  void add(const std::string& name, int64_t modified_s) {
    if (name == checkpoint::kMetadataName) {
      is_visible = true;
      visible_since_s = modified_s;
      return;
    }
    newest_s = std::max(newest_s, modified_s);
    if (const auto id = id_in(name); !id.empty()) ids.insert(id);
    else if (!name.starts_with("data_")) has_others = true;
  }
  void add_upload(int64_t begun_s) {
    newest_s = std::max(newest_s, begun_s);
    has_others = true;
  }
  bool has_leftovers() const { return !is_visible || has_others || ids.size() > 1; }
};

bool is_content(const Client& client, const std::string& key, const std::string& content) {
  try {
    const auto info = client.find(key);
    return info && info->size_bytes == static_cast<int64_t>(content.size()) && client.get(key) == content;
  } catch (const ObjectStoreError&) {
    return false;
  }
}

}  // namespace

ObjectStorage::ObjectStorage(ClientOptions options, const StorageOptions& storage_options)
    : client_(std::move(options)), options_(storage_options) {}
ObjectStorage::~ObjectStorage() = default;

std::string ObjectStorage::key_of(const fs::path& path) const {
  const auto location = parse_location(path.string());
  if (location.bucket != client_.options().bucket)
    throw CheckpointError("{} is not in the bucket {}", path.string(), client_.options().bucket);
  std::string key;
  for (const auto& part : fs::path(location.prefix)) {
    if (!key.empty()) key += '/';
    key += visible_name(part.string());
  }
  return key;
}

std::unique_ptr<checkpoint::Sink> ObjectStorage::create(const fs::path& file) const {
  const auto folder = file.parent_path();
  if (file.filename() != checkpoint::kMetadataName || !is_hidden(folder))
    return std::make_unique<ObjectSink>(client_, key_of(file), options_.part_bytes);
  return std::make_unique<MemorySink>([this, key = folder.string()](std::string metadata) {
    const std::lock_guard guard(mutex_);
    writing_[key] = std::move(metadata);
  });
}

std::unique_ptr<checkpoint::BlockSink> ObjectStorage::create_blocks(const fs::path& file, int64_t size_bytes) const {
  return std::make_unique<ObjectBlockSink>(client_, key_of(file), size_bytes, options_.part_bytes);
}

std::unique_ptr<checkpoint::Source> ObjectStorage::open(const fs::path& file) const {
  return guarded([&] { return std::make_unique<ObjectSource>(client_, client_.head(key_of(file))); });
}

bool ObjectStorage::is_there(const fs::path& file) const {
  return guarded([&] {
    try {
      return client_.find(key_of(file)).has_value();
    } catch (const ObjectStoreError& failure) {  // so do stores answer those who may not list, for what is not there
      if (failure.failure() == Failure::access_denied) return false;
      throw;
    }
  });
}

std::unique_ptr<checkpoint::Source> ObjectStorage::open_listed(const fs::path& file, const checkpoint::FolderEntry& entry) const {
  return std::make_unique<ObjectSource>(client_, ObjectInfo{key_of(file), entry.size_bytes, entry.version});
}

checkpoint::Reading ObjectStorage::reading() const { return {client_.options().range_bytes, client_.options().connections}; }

std::vector<checkpoint::FolderEntry> ObjectStorage::list(const fs::path& folder) const { return entries_of(folder, false); }

std::vector<checkpoint::FolderEntry> ObjectStorage::list_leftovers(const fs::path& folder) const { return entries_of(folder, true); }

// A save does not depend on the right to list them, which is one of its own.
std::vector<PendingUpload> ObjectStorage::uploads_in(const std::string& prefix) const {
  try {
    return client_.pending_uploads(prefix);
  } catch (const ObjectStoreError& failure) {
    if (failure.failure() != Failure::access_denied && failure.failure() != Failure::refused) throw;
    if (!uploads_said_.exchange(true))
      base::log_warning("{}; what dead writers have left of uploads stays until a lifecycle rule of the bucket aborts them",
                        failure.what());
    return {};
  }
}

// One listing tells what lies in the folder, one more what lies in all the steps among it.
std::vector<checkpoint::FolderEntry> ObjectStorage::entries_of(const fs::path& folder, bool with_leftovers) const {
  return guarded([&] {
    const auto base = key_of(folder).empty() ? "" : key_of(folder) + "/", steps = base + "step_";
    std::vector<checkpoint::FolderEntry> entries;
    std::map<std::string, StepContent> found;
    const auto step_in = [&](const std::string& key) { return key.substr(base.size(), key.find('/', base.size()) - base.size()); };
    const auto listing = client_.list(base, "/");
    for (const auto& object : listing.objects)
      entries.push_back({object.key.substr(base.size()), false, age_of(object.last_modified_s), object.size_bytes, object.etag});
    for (const auto& below : listing.folders) {
      if (checkpoint::step_of(step_in(below))) found[step_in(below)];
      else entries.push_back({step_in(below), true, 0});
    }
    if (!found.empty())
      for (const auto& object : client_.list(steps).objects)
        if (const auto slash = object.key.find('/', base.size()); slash != std::string::npos && checkpoint::step_of(step_in(object.key)))
          found[step_in(object.key)].add(object.key.substr(slash + 1), object.last_modified_s);
    if (with_leftovers)
      for (const auto& upload : uploads_in(steps))
        if (checkpoint::step_of(step_in(upload.key))) found[step_in(upload.key)].add_upload(upload.initiated_s);
    for (const auto& [name, step] : found) {
      if (step.is_visible) entries.push_back({name, true, age_of(step.visible_since_s)});
      if (!step.is_visible || (with_leftovers && step.has_leftovers()))
        entries.push_back({checkpoint::hidden_name(name, kLeftover), true, age_of(step.newest_s)});
    }
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  });
}

// A folder is there when something is in it. From now on this one, of a save, is known to be this process's.
void ObjectStorage::make_folder(const fs::path& folder) const {
  if (!is_hidden(folder)) return;
  const std::lock_guard guard(mutex_);
  writing_[folder.string()];
}

std::unique_ptr<checkpoint::Lease> ObjectStorage::hold(const fs::path& folder, bool exclusive) const {
  return std::make_unique<ObjectLease>(exclusive && lock_of(folder.parent_path()));
}

std::shared_ptr<WriterLock> ObjectStorage::lock_of(const fs::path& folder) const {
  const auto key = key_of(folder);
  const std::lock_guard guard(mutex_);
  const auto known = locks_.find(key);
  auto lock = known == locks_.end() ? nullptr : known->second.lock();
  return lock && !lock->is_lost() ? lock : nullptr;
}

std::shared_ptr<void> ObjectStorage::lock_writers(const fs::path& folder, const std::string& holder,
                                                  std::chrono::duration<double> patience) const {
  if (auto known = lock_of(folder)) return known;
  const auto key = key_of(folder);
  {
    const std::lock_guard guard(mutex_);
    if (unlockable_.contains(key)) return nullptr;
  }
  return guarded([&]() -> std::shared_ptr<void> {
    auto lock = WriterLock::take(client_, key.empty() ? kLock : key + "/" + kLock, holder, options_.lease_s, patience);
    const std::lock_guard guard(mutex_);
    if (lock) locks_[key] = lock;
    else unlockable_.insert(key);
    return lock;
  });
}

bool ObjectStorage::publish(const fs::path& aside, const fs::path& target) const {
  return guarded([&] {
    std::string metadata;
    {
      const std::lock_guard guard(mutex_);
      metadata = writing_[aside.string()];
    }
    if (metadata.empty()) throw CheckpointError("{} has no metadata to publish", aside.string());
    const auto lock = lock_of(target.parent_path());
    const bool replaces = put_visible(key_of(target) + "/" + checkpoint::kMetadataName, metadata, lock.get());
    const std::lock_guard guard(mutex_);
    writing_.erase(aside.string());
    return replaces;
  });
}

// The one put that makes a checkpoint visible; true when another one was there. With a lock it is carried out while nobody else can have
// that, and only upon what was there. A put whose answer never came is looked for: what is visible must not be called failed.
bool ObjectStorage::put_visible(const std::string& key, const std::string& metadata, WriterLock* lock) const {
  const auto start = std::chrono::steady_clock::now();
  const auto before = client_.find(key);
  while (true) {
    PutOptions how;
    if (lock) {
      lock->confirm();
      how.deadline_s = lock->lease_s() / 2;
      if (before) how.only_if_etag = before->etag;
      else how.only_if_absent = true;
    }
    try {
      client_.put(key, bytes_of(metadata), how);
      return before.has_value();
    } catch (const ObjectStoreError& failure) {
      if (is_content(client_, key, metadata)) {
        base::log_warning("{}, but it is there", failure.what());
        return before.has_value();
      }
      const bool may_pass = failure.failure() == Failure::timed_out || failure.failure() == Failure::unavailable;
      const auto spent = std::chrono::steady_clock::now() - start;
      if (!lock || !may_pass || spent > std::chrono::duration<double>(client_.options().deadline_s)) throw;
    }
  }
}

void ObjectStorage::hide(const fs::path& folder, const fs::path&) const {
  guarded([&] { client_.remove(key_of(folder) + "/" + checkpoint::kMetadataName); });
}

// All that the visible metadata does not name: of a folder without any, everything. Of a save that this process gives up only what it wrote
// itself: another job may have taken over.
void ObjectStorage::remove_folder(const fs::path& folder) const {
  bool is_given_up = false;
  {
    const std::lock_guard guard(mutex_);
    is_given_up = writing_.erase(folder.string()) > 0;
  }
  guarded([&] {
    const auto base = key_of(folder) + "/", hidden = folder.filename().string();
    const auto id = hidden.substr(std::min(hidden.find(".tmp-") + 5, hidden.size()));
    std::set<std::string> named;
    if (client_.find(base + checkpoint::kMetadataName)) {
      named.insert(base + checkpoint::kMetadataName);
      const auto path = folder.parent_path() / visible_name(folder.filename());
      for (const auto& file : checkpoint::load_metadata(path, *this).files) named.insert(base + file.name);
    }
    const auto goes = [&](const std::string& key) {
      const auto of_file = id_in(key.substr(base.size()));
      return is_given_up ? !of_file.empty() && id.starts_with(of_file) && !named.contains(key) : !named.contains(key);
    };
    std::vector<std::string> keys;
    for (const auto& object : client_.list(base).objects)
      if (goes(object.key)) keys.push_back(object.key);
    client_.remove(keys);
    for (const auto& upload : uploads_in(base))
      if (!is_given_up || goes(upload.key)) client_.abort_upload({upload.key, upload.id, ""});
  });
}

const checkpoint::Storage& storage_of(const fs::path& path) {
  if (!is_object_url(path.string())) return checkpoint::local_storage();
  return object_storage_of(path.string());
}

const ObjectStorage& object_storage_of(const std::string& url) {
  static std::mutex mutex;
  static std::map<std::string, ObjectStorage> storages;  // by bucket
  const auto bucket = parse_location(url).bucket;
  const std::lock_guard lock(mutex);
  auto known = storages.find(bucket);
  if (known == storages.end()) {
    ClientOptions options;
    options.bucket = bucket;
    const auto load = [] { return load_account([](const char* name) { return base::environment().aws_variable(name); }); };
    options.account = load();
    options.renew = [load] { return load().credentials; };
    known = storages.try_emplace(bucket, std::move(options)).first;
  }
  return known->second;
}

}  // namespace ingot::object_store
