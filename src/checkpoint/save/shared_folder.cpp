#include "checkpoint/save/shared_folder.h"

#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "checkpoint/save/save_plan.h"

namespace ingot::checkpoint {
namespace {

template <class Function>
void log_failures(const char* what, Function&& function) {
  try {
    function();
  } catch (const base::Error& failure) {
    base::log_warning("{}: {}", what, failure.what());
  }
}

}  // namespace

// Removes itself unless it was committed.
class SharedFolder::Hidden {
 public:
  Hidden(const Storage& storage, fs::path path) : storage_(storage), path_(std::move(path)) {
    try {
      storage_.make_folder(path_);
      lease_ = storage_.hold(path_, false);
    } catch (...) {
      remove();
      throw;
    }
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;
  ~Hidden() {
    if (!committed_) remove();
  }
  const fs::path& path() const { return path_; }
  void commit(const fs::path& target) {
    replaced_ = storage_.publish(path_, target);
    committed_ = true;
  }
  bool committed() const { return committed_; }
  /// True when a former checkpoint of the same name now lies in the hidden folder.
  bool replaced() const { return replaced_; }

 private:
  void remove() noexcept {
    try {
      storage_.remove_folder(path_);
    } catch (const std::exception& failure) {
      base::log_warning("an unfinished checkpoint is left behind until the next save: {}", failure.what());
    }
  }
  const Storage& storage_;
  fs::path path_;
  std::unique_ptr<Lease> lease_;
  bool committed_ = false, replaced_ = false;
};

SharedFolder::SharedFolder(fs::path folder, const Storage& storage, const Team& team, const Retention& retention, double grace_s)
    : folder_(std::move(folder)), storage_(storage), team_(team), retention_(retention), grace_s_(grace_s) {}

SharedFolder::~SharedFolder() = default;

std::string SharedFolder::name_of_file(const CheckpointId& id, uint32_t file) const {
  return storage_.needs_unique_names() ? fmt::format("data_{:05}-{}.bin", file, to_string(id).substr(0, 12)) : data_file_name(file);
}

void SharedFolder::lock_writers() {
  try {
    writers_ = storage_.lock_writers(folder_, fmt::format("process {} on {}", ::getpid(), base::host_name()), std::chrono::seconds(0));
  } catch (const base::ConfigError& in_use) {
    throw base::CheckpointError("{}", in_use.what());
  }
}

Destination::Place SharedFolder::begin(int64_t step, const std::optional<CheckpointId>& id) {
  step_ = step;
  const auto chosen = on_first(team_, [&] {
    const auto text = to_string(id.value_or(random_id()));
    storage_.make_folder(folder_);
    lock_writers();
    log_failures("looking for leftovers of earlier saves", [&] { collect_leftovers(folder_, grace_s_, storage_); });
    hidden_ = std::make_unique<Hidden>(storage_, folder_ / hidden_name(step_name(step), text));
    return text;
  });
  return {id_from(chosen), folder_ / hidden_name(step_name(step), chosen)};
}

void SharedFolder::commit(const std::function<Written&()>& written) {
  try {
    on_first(team_, [&] {
      auto& all = written();
      const std::string encoded = encode(all.metadata);
      all.metadata_bytes = static_cast<int64_t>(encoded.size());
      const auto sink = storage_.create(hidden_->path() / kMetadataName);
      sink->write(encoded.data(), all.metadata_bytes);
      sink->finish();
      hidden_->commit(path_of(step_));
      return std::string();
    });
  } catch (const base::CommError& silence) {
    if (!hidden_ || !hidden_->committed()) throw;
    base::log_warning("{} is complete, but not all ranks could be told: {}", path_of(step_).string(), silence.what());
  }
}

void SharedFolder::clean() {
  if (!hidden_) return;
  if (hidden_->replaced()) log_failures("removing the checkpoint that was replaced", [&] { remove_unused(hidden_->path(), storage_); });
  hidden_.reset();
  log_failures("removing old checkpoints", [&] { prune(folder_, retention_, storage_); });
}

void SharedFolder::abandon() { hidden_.reset(); }

}  // namespace ingot::checkpoint
