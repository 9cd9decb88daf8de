#include "checkpoint/ranks/host_memory.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/format/coding.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {

using base::CheckpointError;

namespace {

// Threads and the page cache: a tmpfs is memory already.
const Storage& memory_backed() {
  static const PosixStorage storage(nullptr, int64_t{8} << 20, {.uring = false, .direct = false, .depth = 2});
  return storage;
}

std::string rank_name(int rank) { return fmt::format("rank_{:05}", rank); }

// A stretch of a rank's files that is sent at once.
struct Chunk {
  uint32_t file;
  int64_t offset, bytes;
};

std::vector<Chunk> chunks_of(const Metadata& metadata, const std::vector<uint32_t>& writers, uint32_t rank, int64_t batch_bytes) {
  std::vector<Chunk> chunks;
  for (uint32_t file = 0; file < writers.size(); ++file) {
    if (writers[file] != rank) continue;
    const int64_t size = metadata.files[file].size_bytes;
    for (int64_t at = 0; at < size; at += batch_bytes) chunks.push_back({file, at, std::min(batch_bytes, size - at)});
  }
  return chunks;
}

}  // namespace

PeerCopy peer_copy_from_name(const std::string& name) {
  if (name == "auto") return PeerCopy::other_machine;
  if (name == "always") return PeerCopy::always;
  if (name == "never") return PeerCopy::never;
  throw base::ConfigError("'{}' is not one of auto, always, never", name);
}

std::vector<int> keepers(const std::vector<std::string>& machines, PeerCopy mode) {
  const int ranks = static_cast<int>(machines.size());
  std::vector<int> keeper(machines.size(), -1);
  if (mode == PeerCopy::never || ranks < 2) return keeper;
  std::vector<std::vector<int>> by_machine;  // in the order in which machines appear
  std::map<std::string, size_t> place;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto [at, is_new] = place.try_emplace(machines[static_cast<size_t>(rank)], by_machine.size());
    if (is_new) by_machine.emplace_back();
    by_machine[at->second].push_back(rank);
  }
  if (by_machine.size() == 1) {
    if (mode == PeerCopy::always)
      for (int rank = 0; rank < ranks; ++rank) keeper[static_cast<size_t>(rank)] = (rank + 1) % ranks;
    return keeper;
  }
  for (size_t m = 0; m < by_machine.size(); ++m) {
    const auto& next = by_machine[(m + 1) % by_machine.size()];
    for (size_t i = 0; i < by_machine[m].size(); ++i) keeper[static_cast<size_t>(by_machine[m][i])] = next[i % next.size()];
  }
  return keeper;
}

HostMemory::HostMemory(const HostMemoryOptions& options, const Team& team)
    : options_(options),
      team_(team),
      storage_(options.storage ? *options.storage : memory_backed()),
      own_(options.folder / rank_name(team.rank())) {
  keepers_ = keepers(gather_everywhere(team_, [&] { return options_.machine; }), options_.peer_copy);
}

fs::path HostMemory::path_of(int64_t step) const { return own_ / step_name(step); }
std::string HostMemory::name_of_file(const CheckpointId&, uint32_t file) const { return data_file_name(file); }

int HostMemory::copies() const {
  std::vector<int> kept(keepers_.size(), 1);
  for (const int keeper : keepers_)
    if (keeper >= 0) ++kept[static_cast<size_t>(keeper)];
  return *std::max_element(kept.begin(), kept.end());
}

Destination::Place HostMemory::begin(int64_t step, const std::optional<CheckpointId>& id) {
  step_ = step;
  const auto chosen = on_first(team_, [&] { return to_string(id.value_or(random_id())); });
  for_all(team_, [&] {
    // Nobody else writes here: whatever is hidden was left behind.
    for (const auto& entry : storage_.list(own_))
      if (entry.name.starts_with('.')) storage_.remove_folder(own_ / entry.name);
    hidden_ = own_ / hidden_name(step_name(step), chosen);
    storage_.make_folder(hidden_);
  });
  return {id_from(chosen), hidden_};
}

void HostMemory::commit(const std::function<Written&()>& written) {
  const auto told = on_first(team_, [&] {
    auto& all = written();
    Encoder out;
    const auto metadata = encode(all.metadata);
    all.metadata_bytes = static_cast<int64_t>(metadata.size());
    out.text(metadata);
    for (const uint32_t writer : all.writers) out.number(writer);
    return std::move(out.bytes);
  });
  Decoder in(told, "rank 0", "metadata of a checkpoint in memory");
  const auto encoded = in.text();
  const auto metadata = decode(encoded, "the metadata of rank 0");
  std::vector<uint32_t> writers;
  for (size_t file = 0; file < metadata.files.size(); ++file) writers.push_back(static_cast<uint32_t>(in.number()));
  const auto fault = pass_to_keepers(metadata, writers);
  for_all(team_, [&] {
    if (!fault.empty()) throw CheckpointError("{}", fault);
    const auto sink = storage_.create(hidden_ / kMetadataName);
    sink->write(encoded.data(), static_cast<int64_t>(encoded.size()));
    sink->finish();
  });
  // Nothing but a rename is left, on all of them.
  for_all(team_, [&] {
    if (storage_.publish(hidden_, path_of(step_))) storage_.remove_folder(hidden_);  // the same step again
    hidden_.clear();
  });
}

// In rounds of one chunk from each rank, so that little memory is needed besides the copies. A rank that cannot read or write still takes
// part; what went wrong is returned.
std::string HostMemory::pass_to_keepers(const Metadata& metadata, const std::vector<uint32_t>& writers) {
  const auto ranks = static_cast<uint32_t>(team_.size()), own = static_cast<uint32_t>(team_.rank());
  if (std::all_of(keepers_.begin(), keepers_.end(), [](int keeper) { return keeper < 0; })) return "";
  std::vector<std::vector<Chunk>> chunks;
  size_t rounds = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    chunks.push_back(chunks_of(metadata, writers, rank, options_.batch_bytes));
    rounds = std::max(rounds, keepers_[rank] >= 0 ? chunks.back().size() : 0);
  }
  std::string fault;
  std::unique_ptr<Source> source;
  std::map<uint32_t, std::unique_ptr<Sink>> sinks;  // of each rank whose files come here
  std::vector<std::byte> leaving, arriving;
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<int64_t> to(ranks, 0), from(ranks, 0);
    const bool sends = keepers_[own] >= 0 && round < chunks[own].size();
    if (sends) to[static_cast<size_t>(keepers_[own])] = chunks[own][round].bytes;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (keepers_[rank] == static_cast<int>(own) && round < chunks[rank].size()) from[rank] = chunks[rank][round].bytes;
    leaving.resize(static_cast<size_t>(std::accumulate(to.begin(), to.end(), int64_t{0})));
    arriving.resize(static_cast<size_t>(std::accumulate(from.begin(), from.end(), int64_t{0})));
    try {
      if (sends && fault.empty()) {
        const auto& chunk = chunks[own][round];
        if (chunk.offset == 0) source = storage_.open(hidden_ / metadata.files[chunk.file].name);
        source->read_at(chunk.offset, leaving.data(), chunk.bytes);
      }
    } catch (const base::Error& failure) {
      fault = failure.what();
    }
    team_.all_to_all(leaving.data(), to, arriving.data(), from);
    try {
      const std::byte* data = arriving.data();
      for (uint32_t rank = 0; rank < ranks && fault.empty(); ++rank) {
        if (from[rank] == 0) continue;
        const auto& chunk = chunks[rank][round];
        auto& sink = sinks[rank];
        if (chunk.offset == 0) sink = storage_.create(hidden_ / metadata.files[chunk.file].name);
        sink->write(data, chunk.bytes);
        if (chunk.offset + chunk.bytes == metadata.files[chunk.file].size_bytes) sink->finish();
        data += chunk.bytes;
      }
    } catch (const base::Error& failure) {
      fault = failure.what();
    }
  }
  return fault;
}

void HostMemory::clean() {
  try {
    for (const auto& one : all(own_, storage_))
      if (one.step != step_) storage_.remove_folder(one.path);
  } catch (const base::Error& failure) {
    base::log_warning("an old checkpoint in memory stays: {}", failure.what());
  }
}

void HostMemory::abandon() {
  if (hidden_.empty()) return;
  try {
    storage_.remove_folder(hidden_);
  } catch (const base::Error& failure) {
    base::log_warning("an unfinished checkpoint in memory is left behind until the next one: {}", failure.what());
  }
  hidden_.clear();
}

// -- finding one again -----------------------------------------------------------------------------------------------------

namespace {

// What this machine has of one checkpoint.
struct Found {
  std::string metadata;
  std::vector<std::vector<fs::path>> files;  // of each the places where it seems to lie
};

using Key = std::pair<int64_t, std::string>;  // step and id

std::map<Key, Found> look(const fs::path& folder, int64_t newer_than, const Storage& storage) {
  std::map<Key, Found> found;
  for (const auto& rank : storage.list(folder)) {
    if (!rank.is_folder || !rank.name.starts_with("rank_")) continue;
    for (const auto& one : all(folder / rank.name, storage)) {
      if (one.step <= newer_than) continue;
      try {
        const auto bytes = read_metadata(one.path, storage);
        const auto metadata = decode(bytes, (one.path / kMetadataName).string());
        if (metadata.step != one.step) continue;
        auto& entry = found[{metadata.step, to_string(metadata.id)}];
        entry.metadata = bytes;
        entry.files.resize(metadata.files.size());
        std::set<std::string> there;
        for (const auto& file : storage.list(one.path)) there.insert(file.name);
        for (size_t file = 0; file < metadata.files.size(); ++file)
          if (there.contains(metadata.files[file].name)) entry.files[file].push_back(one.path / metadata.files[file].name);
      } catch (const base::Error& damage) {
        base::log_warning("passing over a checkpoint in memory: {}", damage.what());
      }
    }
  }
  return found;
}

// Of all ranks: which files of which checkpoint each of them sees.
using Sightings = std::map<Key, std::vector<std::set<uint32_t>>>;  // of each file the ranks

Sightings gather_sightings(const Team& team, const std::map<Key, Found>& found) {
  Sightings sightings;
  const auto all = gather_everywhere(team, [&] {
    Encoder out;
    out.number(static_cast<int64_t>(found.size()));
    for (const auto& [key, entry] : found) {
      out.number(key.first);
      out.text(key.second);
      out.number(static_cast<int64_t>(entry.files.size()));
      for (const auto& places : entry.files) out.number(!places.empty());
    }
    return std::move(out.bytes);
  });
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    Decoder in(all[rank], fmt::format("rank {}", rank), "list of checkpoints in memory");
    for (size_t left = in.count(1); left > 0; --left) {
      const int64_t step = in.number();
      auto& files = sightings[{step, in.text()}];
      const size_t count = in.count(1);
      files.resize(std::max(files.size(), count));
      for (size_t file = 0; file < count; ++file)
        if (in.number() != 0) files[file].insert(rank);
    }
    in.finish();
  }
  return sightings;
}

// Of each file a rank that has not failed to read it, by turns; empty when there is none for some file.
std::vector<uint32_t> assign(const std::vector<std::set<uint32_t>>& sighted, size_t ranks) {
  std::vector<uint32_t> readers;
  std::vector<int> load(ranks, 0);
  for (const auto& candidates : sighted) {
    if (candidates.empty()) return {};
    const auto chosen = *std::min_element(candidates.begin(), candidates.end(), [&](uint32_t a, uint32_t b) { return load[a] < load[b]; });
    ++load[chosen];
    readers.push_back(chosen);
  }
  return readers;
}

}  // namespace

std::optional<HostCopy> newest_host_copy(const fs::path& folder, const Team& team, int64_t newer_than, const Storage* given) {
  const Storage& storage = given ? *given : memory_backed();
  const auto own = static_cast<uint32_t>(team.rank());
  std::map<Key, Found> found;
  try {
    found = look(folder, newer_than, storage);
  } catch (const base::Error& failure) {
    base::log_warning("no checkpoint is taken from memory: {}", failure.what());
  }
  auto sightings = gather_sightings(team, found);
  // The same on all ranks from here on: each decides from what all have told.
  for (auto at = sightings.rbegin(); at != sightings.rend(); ++at) {
    auto& [key, sighted] = *at;
    while (true) {
      const auto readers = assign(sighted, static_cast<size_t>(team.size()));
      if (readers.empty()) break;
      HostCopy copy{key.first, folder / step_name(key.first), {}, std::vector<fs::path>(readers.size()), {}};
      const auto mine = found.find(key);
      const auto texts = gather_everywhere(team, [&] { return mine == found.end() ? std::string() : mine->second.metadata; });
      copy.metadata = *std::find_if(texts.begin(), texts.end(), [](const auto& text) { return !text.empty(); });
      const auto metadata = decode(copy.metadata, copy.path.string());
      const auto ranges = ranges_of(metadata);
      // What this rank is to read: the first of the places where it is sound.
      Encoder bad;
      for (uint32_t file = 0; file < readers.size(); ++file) {
        if (readers[file] != own) continue;
        for (const auto& place : mine->second.files[file]) {
          if (!copy.files[file].empty()) break;
          VerifySummary summary;
          verify_file(place, metadata, file, ranges[file], storage, summary);
          if (summary.sound()) copy.files[file] = place;
          else base::log_warning("{}", summary.damage.front().description);
        }
        if (copy.files[file].empty()) bad.number(file);
      }
      const auto all_bad = gather_everywhere(team, [&] { return bad.bytes; });
      bool is_whole = true;
      for (uint32_t rank = 0; rank < all_bad.size(); ++rank) {
        Decoder in(all_bad[rank], fmt::format("rank {}", rank), "list of damaged files");
        while (in.left() > 0) {
          const auto file = static_cast<size_t>(in.number());
          if (file >= sighted.size()) in.fail("names a file that does not exist");
          sighted[file].erase(rank);
          is_whole = false;
        }
      }
      if (!is_whole) continue;  // another rank may have a sound copy
      for (const uint32_t reader : readers) copy.readers.push_back({reader});
      return copy;
    }
    if (team.rank() == 0)
      base::log_warning("the checkpoint of step {} in memory is not whole any more; looking for an older one", key.first);
  }
  return std::nullopt;
}

void forget_host_copies(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

}  // namespace ingot::checkpoint
