#include "resilience/node_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/system_call.h"
#include "comm/store.h"

namespace ingot::resilience {
namespace {

namespace fs = std::filesystem;
using base::CommError;

class MemoryStore : public NodeStore {
 public:
  void put(const std::string& name, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    texts_[name] = text;
  }
  std::optional<std::string> get(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto found = texts_.find(name);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string create(const std::string& name, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    return texts_.emplace(name, text).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
};

// A text ends with a line end, by which a reader knows that it has all of it. What is replaced is written in place, for file systems
// that look a name up anew only after seconds.
class FolderStore : public NodeStore {
 public:
  explicit FolderStore(fs::path folder) : folder_(std::move(folder)) {
    try {
      base::make_directories(folder_);
    } catch (const base::FileError& failure) {
      throw CommError("nodes cannot meet in {}: {}", folder_.string(), failure.what());
    }
    std::random_device random;
    own_ = fmt::format("{}-{}-{:08x}", base::host_name(), getpid(), random());
  }
  void put(const std::string& name, const std::string& text) override { write(folder_ / name, text); }
  std::optional<std::string> get(const std::string& name) override {
    try {
      auto text = base::read_file(folder_ / name, kLongest);
      if (!text.ends_with('\n')) return std::nullopt;
      text.pop_back();
      return text;
    } catch (const base::Error&) {
      return std::nullopt;
    }
  }
  // A link is made of a whole file, or not at all, on every file system.
  std::string create(const std::string& name, const std::string& text) override {
    const auto aside = folder_ / fmt::format(".{}-{}", own_, name);
    write(aside, text);
    const bool is_first = link(aside.c_str(), (folder_ / name).c_str()) == 0;
    const int error = errno;
    std::error_code ignored;
    fs::remove(aside, ignored);
    if (is_first) return text;
    if (error != EEXIST) throw CommError("nodes cannot meet in {}: {}: {}", folder_.string(), name, std::strerror(error));
    if (auto found = get(name)) return *found;
    throw CommError("nodes cannot meet in {}: {} cannot be read", folder_.string(), name);
  }

 private:
  void write(const fs::path& path, const std::string& text) const {
    const auto line = text + "\n";
    const int descriptor = base::uninterrupted([&] { return open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644); });
    const bool is_written = descriptor >= 0 && pwrite(descriptor, line.data(), line.size(), 0) == static_cast<ssize_t>(line.size()) &&
                            ftruncate(descriptor, static_cast<off_t>(line.size())) == 0;
    const int error = errno;
    if (descriptor >= 0) close(descriptor);
    if (!is_written) throw CommError("nodes cannot meet in {}: {}: {}", folder_.string(), path.filename().string(), std::strerror(error));
  }

  static constexpr int64_t kLongest = 4 << 20;
  fs::path folder_;
  std::string own_;
};

class TcpStore : public NodeStore {
 public:
  TcpStore(const std::string& host, int port, bool is_server, std::chrono::duration<double> patience)
      : place_(fmt::format("{}:{}", host, port)) {
    try {
      store_ = comm::open_store(host, port, is_server, patience);
    } catch (const std::exception& failure) {
      const std::string cause = failure.what();
      throw CommError("{} {}: {}. {}", is_server ? "could not listen at" : "could not reach", place_, cause.substr(0, cause.find('\n')),
                      is_server ? "Is the port taken, or the address another machine's?"
                                : "Does the launcher of node 0 run, and does this machine reach that address and port?");
    }
  }
  void put(const std::string& name, const std::string& text) override {
    asked([&] {
      store_->set(name, std::vector<uint8_t>(text.begin(), text.end()));
      store_->check({name});  // set() returns when it has sent; an answer on the same connection says that the text is there
    });
  }
  std::optional<std::string> get(const std::string& name) override {
    std::optional<std::string> text;
    asked([&] {
      if (!store_->check({name})) return;
      const auto bytes = store_->get(name);
      text.emplace(bytes.begin(), bytes.end());
    });
    return text;
  }
  std::string create(const std::string& name, const std::string& text) override {
    std::string found;
    asked([&] {
      const auto bytes = store_->compareSet(name, {}, {text.begin(), text.end()});
      found.assign(bytes.begin(), bytes.end());
    });
    return found;
  }

 private:
  template <class Request>
  void asked(const Request& request) const {
    try {
      request();
    } catch (const std::exception&) {
      throw CommError("the launcher of node 0, which holds the meeting place {}, is gone", place_);
    }
  }
  std::string place_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::shared_ptr<NodeStore> make_memory_store() { return std::make_shared<MemoryStore>(); }
std::shared_ptr<NodeStore> make_folder_store(const fs::path& folder) { return std::make_shared<FolderStore>(folder); }
std::shared_ptr<NodeStore> make_tcp_store(const std::string& host, int port, bool is_server, std::chrono::duration<double> patience) {
  return std::make_shared<TcpStore>(host, port, is_server, patience);
}

}  // namespace ingot::resilience
