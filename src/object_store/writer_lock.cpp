#include "object_store/writer_lock.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/process_stat.h"
#include "object_store/encoding.h"

namespace ingot::object_store {
namespace {

using nlohmann::json;

constexpr int64_t kContentLimitBytes = 4096;
constexpr double kLongestLease_s = 600;
constexpr const char* kNoSuchEtag = "00000000000000000000000000000000";

std::chrono::steady_clock::duration seconds(double value) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(value));
}

std::string random_owner() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string first_line_of(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Among what processes a number counts: a boot of a machine, and a container of it.
std::string scope_of_processes() {
  char name[64] = {};
  const auto length = ::readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return first_line_of("/proc/sys/kernel/random/boot_id") + " " + (length > 0 ? name : "");
}

// In ticks since boot; 0: there is no such process.
int64_t started(int64_t process) { return base::process_stat(process).value_or(base::ProcessStat()).start_ticks; }

// What another wrote: it may hold anything.
struct Held {
  std::string etag, holder = "another process, which has not said which";
  double lease_s = 0;
  bool is_dead = false;
};

// `usual_s`: the lease of one that does not say its own.
Held held_of(const std::string& etag, const std::string& content, double usual_s) {
  Held held{.etag = etag, .lease_s = usual_s};
  const auto document = json::parse(content, nullptr, false);
  if (!document.is_object()) return held;
  const auto text = [&](const char* name) {
    const auto found = document.find(name);
    return found != document.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [&](const char* name) {
    const auto found = document.find(name);
    return found != document.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  if (const auto holder = text("holder"); !holder.empty()) held.holder = printable(holder);
  if (const double lease_s = number("lease_s"); lease_s > 0) held.lease_s = std::min(lease_s, kLongestLease_s);
  const double process = number("process"), began = number("began");
  const bool is_near = !text("scope").empty() && text("scope") == scope_of_processes();
  held.is_dead =
      is_near && process >= 1 && process < 1e9 && began > 0 && started(static_cast<int64_t>(process)) != static_cast<int64_t>(began);
  return held;
}

// Nothing without the object.
std::optional<Held> look(const Client& client, const std::string& key, double usual_s) {
  try {
    const auto info = client.find(key);
    if (!info) return std::nullopt;
    if (info->size_bytes > kContentLimitBytes) return held_of(info->etag, "", usual_s);
    std::string content(static_cast<size_t>(info->size_bytes), '\0');
    client.get_range(key, 0, std::as_writable_bytes(std::span(content)), info->etag);
    return held_of(info->etag, content, usual_s);
  } catch (const ObjectStoreError& failure) {
    if (failure.failure() != Failure::changed && failure.failure() != Failure::no_such_key) throw;
    return Held{.lease_s = usual_s};  // of this moment nothing is known: it is looked at again
  }
}

bool is_another_s(const ObjectStoreError& failure) {
  return failure.failure() == Failure::changed || failure.failure() == Failure::already_exists || failure.failure() == Failure::no_such_key;
}

}  // namespace

WriterLock::WriterLock(Taken, const Client& client, std::string key, const std::string& holder, double lease_s)
    : client_(client), key_(std::move(key)), holder_(holder), owner_(random_owner()), lease_s_(lease_s) {}

std::string WriterLock::content() {
  return json{{"holder", holder_},
              {"owner", owner_},
              {"lease_s", lease_s_},
              {"writes", ++writes_},
              {"process", ::getpid()},
              {"began", started(::getpid())},
              {"scope", scope_of_processes()}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

bool WriterLock::write(const PutOptions& condition) {
  const auto start = Clock::now();
  try {
    etag_ = client_.put(key_, bytes_of(content()), condition);
  } catch (const ObjectStoreError& failure) {
    if (is_another_s(failure)) return false;
    throw;
  }
  valid_until_ = start + seconds(lease_s_);
  return true;
}

// Whether what must be refused is: a store that does not know the conditions may carry out every write.
bool WriterLock::is_conditional() {
  const auto is_refused = [&](const PutOptions& condition) {
    try {
      client_.put(key_, bytes_of(content()), condition);
      return false;
    } catch (const ObjectStoreError& failure) {
      if (!is_another_s(failure)) throw;
      return true;
    }
  };
  return is_refused({.only_if_absent = true}) && is_refused({.only_if_etag = kNoSuchEtag});
}

std::shared_ptr<WriterLock> WriterLock::take(const Client& client, const std::string& key, const std::string& holder, double lease_s,
                                             std::chrono::duration<double> patience) {
  auto lock = std::make_shared<WriterLock>(Taken(), client, key, holder, lease_s);
  const auto name = Location{client.options().bucket, key}.to_string();
  const auto start = Clock::now();
  auto since = start;
  Held held{.lease_s = lease_s};  // as it was found last
  bool lives = false;
  try {
    for (bool has_said = false;; std::this_thread::sleep_for(seconds(std::min(0.5, lease_s / 20)))) {
      if (lock->write({.only_if_absent = true})) break;
      const auto now = Clock::now();
      const auto found = look(client, key, lease_s);
      if (!found) continue;
      if (!found->etag.empty()) {  // else it was changed while it was read
        lives = lives || (!held.etag.empty() && found->etag != held.etag);
        if (found->etag != held.etag) since = now;
        held = *found;
      }
      const bool is_over = held.is_dead || now - since > seconds(held.lease_s);
      if (is_over && !held.etag.empty() && lock->write({.only_if_etag = held.etag})) {
        base::log_warning("{}: {} has ended without giving it back; this process takes it over", name, held.holder);
        break;
      }
      const bool is_endless = now - start > patience + 2 * seconds(held.lease_s);
      if ((lives && now - start >= patience) || is_endless)
        throw base::ConfigError(
            "{} says that this folder is in use by {}. Two jobs would overwrite each other's checkpoints: stop that one, "
            "wait for its end, or choose another checkpoint.folder",
            name, held.holder);
      if (!has_said) base::log_info("waiting for {}: it is in use by {}, if that still lives", name, held.holder);
      has_said = true;
    }
    if (!lock->is_conditional()) {
      client.remove(key);
      base::log_warning(
          "{}: this store carries out conditional writes whatever the condition; nothing keeps a second job out of this folder", name);
      return nullptr;
    }
  } catch (const ObjectStoreError& failure) {
    if (failure.failure() != Failure::refused) throw;
    if (!lock->etag_.empty()) client.remove(key);
    base::log_warning("{}; this store seems to have no conditional writes: nothing keeps a second job out of this folder", failure.what());
    return nullptr;
  }
  lock->renewer_ = std::thread([it = lock.get()] { it->run(); });
  return lock;
}

WriterLock::~WriterLock() {
  {
    const std::lock_guard guard(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (!renewer_.joinable()) return;
  renewer_.join();
  const double left_s = std::chrono::duration<double>(valid_until_ - Clock::now()).count();
  if (lost_ || left_s < lease_s_ / 3) return;
  try {
    client_.remove_if(key_, etag_, left_s / 2);
  } catch (const base::Error& failure) {
    base::log_debug("the next writer waits until this lock is over: {}", failure.what());
  }
}

// Throws ObjectStoreError; sets lost_ first when another has it.
void WriterLock::renew(double deadline_s) {
  const auto start = Clock::now();
  try {
    etag_ = client_.put(key_, bytes_of(content()), {.only_if_etag = etag_, .deadline_s = deadline_s});
    valid_until_ = start + seconds(lease_s_);
  } catch (const ObjectStoreError& failure) {
    lost_ = is_another_s(failure);
    throw;
  }
}

void WriterLock::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, seconds(lease_s_ / 4), [&] { return closing_; })) {
    if (lost_) return;
    try {
      renew(lease_s_ / 4);
    } catch (const ObjectStoreError& failure) {
      if (lost_) base::log_error("{}; another job has taken over this folder: this one saves no more in it", failure.what());
      else base::log_debug("{}", failure.what());
    }
  }
}

bool WriterLock::is_lost() {
  const std::lock_guard guard(mutex_);
  return lost_;
}

void WriterLock::confirm() {
  const std::lock_guard guard(mutex_);
  try {
    while (!lost_) {
      const auto start = Clock::now();
      renew(client_.options().deadline_s);
      if (Clock::now() - start < seconds(lease_s_ / 3)) return;
    }
  } catch (const ObjectStoreError&) {
    if (!lost_) throw;
  }
  const auto name = Location{client_.options().bucket, key_}.to_string();
  const auto held = look(client_, key_, lease_s_);
  throw base::CheckpointError(
      "{} was taken over by {}: only one job may save into a folder; stop one of them, or choose another checkpoint.folder", name,
      held ? held->holder : "somebody who has removed it since");
}

}  // namespace ingot::object_store
