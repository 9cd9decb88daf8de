#include "comm/ledger.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace ingot::comm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using base::DataError;

constexpr int kFormat = 1;
constexpr int64_t kLargestFileBytes = 16 << 20;

double seconds_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

Json to_json(const LedgerEntry& e) {
  return {{"group", e.group},         {"members", e.members},
          {"sequence", e.sequence},   {"kind", e.kind},
          {"bytes", e.bytes},         {"dtype", e.dtype},
          {"peer", e.peer},           {"step", e.step},
          {"started_s", e.started_s}, {"finished_s", e.finished_s > 0 ? Json(e.finished_s) : Json()}};
}

LedgerEntry entry_of(const Json& json) {
  const auto& finished = json.at("finished_s");
  return {.group = json.at("group").get<std::string>(),
          .members = json.at("members").get<std::vector<int>>(),
          .sequence = json.at("sequence").get<uint64_t>(),
          .kind = json.at("kind").get<std::string>(),
          .dtype = json.at("dtype").get<std::string>(),
          .bytes = json.at("bytes").get<int64_t>(),
          .peer = json.at("peer").get<int>(),
          .step = json.at("step").get<int64_t>(),
          .started_s = json.at("started_s").get<double>(),
          .finished_s = finished.is_null() ? 0 : finished.get<double>()};
}

bool is_collective(const LedgerEntry& e) { return e.kind != "send" && e.kind != "receive"; }

std::string in_words(const LedgerEntry& e) { return fmt::format("{} of {} {}", e.kind, base::format_bytes(e.bytes), e.dtype); }

}  // namespace

void Ledger::set_step(int64_t step) {
  heartbeat_.set_step(step);
  const std::lock_guard lock(mutex_);
  step_ = step;
}

int64_t Ledger::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

uint64_t Ledger::start(const std::string& group, const std::vector<int>& members, const Operation& o) {
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty() && under_way_.front().second()) {
    finish_locked(under_way_.front().first);
    under_way_.pop_front();
  }
  entries_.push_back({.group = group,
                      .members = members,
                      .sequence = o.sequence,
                      .kind = std::string(name_of(o.kind)),
                      .dtype = at::toString(o.dtype()),
                      .bytes = o.bytes(),
                      .peer = o.peer,
                      .step = step_,
                      .started_s = seconds_now()});
  if (entries_.size() > capacity_) {
    entries_.pop_front();
    ++first_ticket_;
  }
  return first_ticket_ + entries_.size() - 1;
}

void Ledger::finish_locked(uint64_t ticket) const {
  if (ticket < first_ticket_) return;  // pushed out by later ones
  auto& entry = entries_[ticket - first_ticket_];
  if (entry.finished_s == 0) entry.finished_s = seconds_now();
}

void Ledger::finish(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  finish_locked(ticket);
}

void Ledger::finish_when(uint64_t ticket, std::function<bool()> is_done) {
  const std::lock_guard lock(mutex_);
  under_way_.emplace_back(ticket, std::move(is_done));
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [ticket, is_done] : under_way_)
    if (is_done()) finish_locked(ticket);
  return {entries_.begin(), entries_.end()};
}

void Ledger::write(const fs::path& folder, int world, const std::string& reason) const {
  Json list = Json::array();
  for (const auto& entry : entries()) list.push_back(to_json(entry));
  base::write_file_atomically(
      folder / fmt::format("ledger-rank-{}.json", rank_),
      Json{{"format", kFormat}, {"rank", rank_}, {"world", world}, {"reason", reason}, {"entries", list}}.dump() + "\n");
}

LedgerFile read_ledger(const fs::path& path) {
  try {
    const auto json = Json::parse(base::read_file(path, kLargestFileBytes));
    if (const int format = json.at("format").get<int>(); format != kFormat)
      throw DataError("{}: flight recorder format {}, but this program reads {}", path.string(), format, kFormat);
    LedgerFile file{json.at("rank").get<int>(), json.at("world").get<int>(), json.at("reason").get<std::string>(), {}};
    for (const auto& entry : json.at("entries")) file.entries.push_back(entry_of(entry));
    return file;
  } catch (const Json::exception& broken) {
    throw DataError("{} is not a flight recording of collectives: {}", path.string(), broken.what());
  }
}

std::vector<LedgerFile> read_ledgers(const fs::path& folder) {
  std::vector<LedgerFile> all;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("ledger-rank-") && name.ends_with(".json")) all.push_back(read_ledger(entry.path()));
  }
  if (failure) throw DataError("cannot list {}: {}", folder.string(), failure.message());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return all;
}

namespace {

using GroupKey = std::pair<std::string, std::vector<int>>;
using Collectives = std::map<uint64_t, const LedgerEntry*>;  // by sequence

struct Finding {
  double time = 0;  // when the others started the operation that went wrong
  Divergence divergence;
};

// What one rank says of a collective, so that ranks can be counted by it.
std::string signature(const LedgerEntry& e) {
  return fmt::format("{}|{}|{}|{}", e.kind, e.bytes, e.dtype, e.kind == "broadcast" ? e.peer : -1);
}

// `silent`: ranks without a ledger, of which nothing can be said here.
std::optional<Finding> first_of_group(const GroupKey& key, const std::map<int, Collectives>& by_rank, const std::vector<int>& silent) {
  std::map<uint64_t, std::map<int, const LedgerEntry*>> by_sequence;
  uint64_t oldest_common = 0;  // a ring buffer forgets: before this some rank's record is gone, which is no divergence
  for (const auto& [rank, collectives] : by_rank) {
    if (!collectives.empty()) oldest_common = std::max(oldest_common, collectives.begin()->first);
    for (const auto& [sequence, entry] : collectives) by_sequence[sequence][rank] = entry;
  }
  for (const auto& [sequence, entries] : by_sequence) {
    if (sequence < oldest_common) continue;
    std::map<std::string, std::vector<int>> votes;
    for (const auto& [rank, entry] : entries) votes[signature(*entry)].push_back(rank);
    const auto usual =
        std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const auto& expected = *entries.at(usual->second.front());
    double time = expected.started_s;
    for (const auto& [rank, entry] : entries) time = std::min(time, entry->started_s);
    const auto where = [&] { return fmt::format("operation {} of group {} {}, step {}", sequence, key.first, key.second, expected.step); };
    for (const int member : key.second) {
      if (std::find(silent.begin(), silent.end(), member) != silent.end()) continue;
      const auto found = entries.find(member);
      if (found == entries.end()) {
        const bool has_ledger = by_rank.contains(member) && !by_rank.at(member).empty();
        const auto last = has_ledger ? fmt::format("its last one there was number {}, {}", by_rank.at(member).rbegin()->first,
                                                   in_words(*by_rank.at(member).rbegin()->second))
                                     : std::string("it left no record of this group");
        return Finding{time, {member, fmt::format("rank {} did not come to {} ({}): {}", member, in_words(expected), where(), last)}};
      }
      if (signature(*found->second) != usual->first)
        return Finding{time,
                       {member, fmt::format("rank {} did {} where the others did {} ({})", member, in_words(*found->second),
                                            in_words(expected), where())}};
    }
  }
  return std::nullopt;
}

}  // namespace

Divergence compare(const std::vector<LedgerFile>& ledgers) {
  std::map<GroupKey, std::map<int, Collectives>> groups;
  const LedgerEntry* waiting = nullptr;  // the first operation that someone never finished
  int waiting_rank = -1;
  std::vector<int> silent;
  for (int rank = 0; !ledgers.empty() && rank < ledgers.front().world; ++rank)
    if (std::none_of(ledgers.begin(), ledgers.end(), [&](const auto& file) { return file.rank == rank; })) silent.push_back(rank);
  for (const auto& file : ledgers) {
    for (const auto& entry : file.entries) {
      if (!is_collective(entry)) continue;
      groups[{entry.group, entry.members}][file.rank][entry.sequence] = &entry;
      if (entry.finished_s == 0 && (!waiting || entry.started_s < waiting->started_s)) waiting = &entry, waiting_rank = file.rank;
    }
  }
  std::optional<Finding> first;
  for (const auto& [key, by_rank] : groups) {
    const auto finding = first_of_group(key, by_rank, silent);
    if (finding && (!first || finding->time < first->time)) first = finding;
  }
  if (first && silent.empty()) return first->divergence;
  if (!silent.empty()) {
    const auto waited = waiting ? fmt::format("; rank {} waited in {} of group {} {}, step {}", waiting_rank, in_words(*waiting),
                                              waiting->group, waiting->members, waiting->step)
                                : std::string();
    return {silent.front(), fmt::format("rank {} left no flight recording, so it was killed or is cut off{}{}", fmt::join(silent, ", "),
                                        waited, first ? "\namong the others, " + first->divergence.explanation : "")};
  }
  return {-1, "all ranks agree on the operations that their flight recordings share"};
}

}  // namespace ingot::comm
