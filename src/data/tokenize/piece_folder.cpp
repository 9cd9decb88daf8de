#include "data/tokenize/piece_folder.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "data/dataset_files.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char *kPlan = "plan.json", *kLock = ".lock", *kRecord = ".json", *kClaim = ".claim", *kOfPlan = "plan.";

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string random_owner() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// "000012.json": 12.
std::optional<size_t> piece_of_record(const std::string& name) {
  size_t piece = 0;
  const auto end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, piece);
  return error == std::errc() && std::string_view(rest, end) == kRecord ? std::optional(piece) : std::nullopt;
}

// Of what lies in a folder by now; nothing of one that is gone.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ended;
  for (fs::directory_iterator entry(folder, ended), end; !ended && entry != end; entry.increment(ended))
    names.push_back(entry->path().filename().string());
  return names;
}

fs::path folder_of(const fs::path& prefix) { return prefix.string() + ".pieces"; }

}  // namespace

PieceClaim::PieceClaim(size_t piece, fs::path file, std::optional<base::FileLock> lock, double lease_s)
    : piece_(piece), file_(std::move(file)), lock_(std::move(lock)), every_s_(lease_s / 10) {
  beat();
}

PieceClaim::~PieceClaim() {
  std::error_code ignored;
  if (!lock_) fs::remove(file_, ignored);
}

void PieceClaim::beat() {
  if (seconds_since(beaten_) < every_s_) return;
  std::error_code ignored;  // then another takes it away
  fs::last_write_time(file_, fs::file_time_type::clock::now(), ignored);
  beaten_ = Clock::now();
}

PieceFolder::PieceFolder(const fs::path& prefix, const TokenizePlan& plan, bool overwrite, double lease_s)
    : plan_(plan), folder_(folder_of(dataset_prefix(prefix))), owner_(random_owner()), lease_s_(lease_s) {
  base::make_directories(folder_);
  const auto start = Clock::now();
  std::unique_ptr<PieceClaim> lock;
  while (!(lock = claim(plan_.pieces.size() + 1, "plan"))) {
    if (seconds_since(start) > 2 * lease_s_ + 1) throw base::FileError("another process keeps {} busy: try again", folder_.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  begin(overwrite);
  refresh();
}

void PieceFolder::begin(bool overwrite) {
  const auto before = read_json_object(folder_ / kPlan);
  if (before == plan_.made_from && !plan_.has_pipe) return remove_leftovers();
  if (!before.is_null() && !overwrite && !is_idle())
    throw base::UsageError(
        "{} holds pieces of another call: {}; finish that one with its own inputs and settings, name another --output, or pass --overwrite "
        "to begin anew",
        folder_.string(), plan_.has_pipe ? "a pipe cannot be read again" : difference(before, plan_.made_from));
  std::error_code ignored;  // a record of another plan does not count
  for (const auto& name : names_in(folder_))
    if (!name.starts_with(kOfPlan)) fs::remove(folder_ / name, ignored);
  write_json(folder_ / kPlan, plan_.made_from);
}

Json PieceFolder::plan_in(const fs::path& prefix) { return read_json_object(folder_of(prefix) / kPlan); }

// What killed processes did not finish: NNNNNN.OWNER.bin.tmp. Nobody writes it whose lock is free.
void PieceFolder::remove_leftovers() const {
  if (!has_locks_) return;
  std::error_code ignored;
  for (const auto& name : names_in(folder_)) {
    const auto stem = name.substr(0, name.find('.'));
    const bool is_of_an_owner = std::count(name.begin(), name.end(), '.') >= 2;
    if (is_of_an_owner && !base::FileLock::is_held(folder_ / (stem + kLock))) fs::remove(folder_ / name, ignored);
  }
}

bool PieceFolder::is_idle() const {
  const auto names = names_in(folder_);
  return std::none_of(names.begin(), names.end(), [&](const auto& name) {
    if (name.starts_with(kOfPlan)) return false;
    return piece_of_record(name) || name.ends_with(kClaim) || (name.ends_with(kLock) && base::FileLock::is_held(folder_ / name));
  });
}

bool PieceFolder::has_files_of(size_t piece, const PieceRecord& record) const {
  const auto prefix = prefix_of(piece).string();
  std::error_code none;
  const auto bytes = static_cast<int64_t>(fs::file_size(prefix + ".bin", none));
  return !none && bytes == record.counts.tokens * size_bytes(plan_.token_type) && fs::exists(prefix + ".idx", none) &&
         fs::exists(prefix + ".mask", none) == record.has_mask;
}

void PieceFolder::refresh() {
  for (const auto& name : names_in(folder_)) {
    const auto piece = piece_of_record(name);
    if (!piece || *piece >= plan_.pieces.size() || records_.contains(*piece)) continue;
    const auto json = read_json_object(folder_ / name);
    if (!json.is_object() || json.value("made_from", Json()) != plan_.fingerprint) continue;
    const auto record = record_of(json);
    if (!record || !has_files_of(*piece, *record)) continue;
    records_.emplace(*piece, *record);
    finished_bytes_ += plan_.pieces[*piece].bytes;
  }
}

std::string PieceFolder::name_of(size_t piece) { return fmt::format("{:06}", piece); }

// A holder that has given no sign of life for a lease, by this process's own clock, loses what it holds: of those who wait, one can
// rename it.
bool PieceFolder::take_away(size_t piece, const fs::path& held) {
  std::error_code error;
  const auto time = fs::last_write_time(held, error);
  if (error) return false;
  const auto [beat, is_new] = beats_.try_emplace(piece, Beat{time, Clock::now()});
  if (beat->second.time != time) beat->second = {time, Clock::now()};
  if (seconds_since(beat->second.since) < lease_s_) return false;
  beats_.erase(beat);
  const auto taken = aside(held.filename().string());
  fs::rename(held, taken, error);
  if (error) return false;
  fs::remove(taken, error);
  base::log_warning("who holds {} has given no sign of life for {:.0f} s: its work is done anew", held.string(), lease_s_);
  return true;
}

std::unique_ptr<PieceClaim> PieceFolder::claim(size_t piece, const std::string& name) {
  const auto file = folder_ / (name + kLock), claimed = folder_ / (name + kClaim);
  if (has_locks_) {
    try {
      auto lock = base::FileLock::try_take(file);
      if (!lock && take_away(piece, file)) lock = base::FileLock::try_take(file);
      return lock ? std::make_unique<PieceClaim>(piece, file, std::move(lock), lease_s_) : nullptr;
    } catch (const base::FileError& failure) {
      if (!fs::exists(file)) throw;
      base::log_warning("{}; what a killed process was at will be free in {:.0f} s", failure.what(), lease_s_);
      has_locks_ = false;
    }
  }
  std::error_code error;
  bool is_new = fs::create_directory(claimed, error);
  if (!is_new && !error && take_away(piece, claimed)) is_new = fs::create_directory(claimed, error);
  // It was there, and its owner took it away before it could be looked at.
  if (error == std::errc::file_exists && !fs::exists(claimed)) return nullptr;
  if (error) throw base::FileError("cannot create the folder {}: {}", claimed.string(), error.message());
  return is_new ? std::make_unique<PieceClaim>(piece, claimed, std::nullopt, lease_s_) : nullptr;
}

std::unique_ptr<PieceClaim> PieceFolder::claim_piece() {
  if (!fs::exists(folder_ / kPlan))
    throw base::FileError("{} was removed while this process was at work in it: call it again", folder_.string());
  const size_t count = plan_.pieces.size();
  while (records_.contains(first_)) ++first_;
  for (size_t piece = first_; piece < count; ++piece) {
    if (records_.contains(piece)) continue;
    auto claimed = claim(piece, name_of(piece));
    if (!claimed) continue;
    if (fs::exists(prefix_of(piece).string() + kRecord)) refresh();  // it was finished meanwhile, or has a record that does not count
    if (!records_.contains(piece)) return claimed;
  }
  return nullptr;
}

void PieceFolder::finish(size_t piece, const PieceRecord& record) {
  dataset_files::rename_files(aside(name_of(piece)), "", record.has_mask, prefix_of(piece));
  Json json = {{"made_from", plan_.fingerprint}};
  json.update(to_json(record));
  write_json(prefix_of(piece).string() + kRecord, json);
  if (!records_.emplace(piece, record).second) return;
  finished_bytes_ += plan_.pieces[piece].bytes;
}

void PieceFolder::remove() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void PieceFolder::remove_if_idle() {
  if (is_idle()) remove();
}

}  // namespace ingot::data
