#include "checkpoint/save/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/format/coding.h"
#include "checkpoint/ranks/balance.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

// A part of a rank, by what it is a part of.
struct Holding {
  uint64_t hash;  // of tensor and box
  uint32_t tensor, rank, part;
};

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

uint64_t hash_of(uint32_t tensor, const tensor::Box& box) {
  uint64_t hash = mix(0x243F6A8885A308D3u, tensor);
  for (size_t d = 0; d < box.offset.size(); ++d) {
    hash = mix(hash, static_cast<uint64_t>(box.offset[d]));
    hash = mix(hash, static_cast<uint64_t>(box.extent[d]));
  }
  return hash;
}

class Planner {
 public:
  Planner(const std::vector<Inventory>& inventories, const PlanOptions& options) : inventories_(inventories), options_(options) {}

  SavePlan run() {
    number_tensors();
    find_replicas();
    choose_writers();
    place();
    validate(plan_.metadata, "this save");
    return std::move(plan_);
  }

 private:
  const tensor::Box& box_of(const Holding& h) const { return inventories_[h.rank].parts[h.part].box; }

  // The tensors of all ranks, numbered by name.
  void number_tensors() {
    struct Known {
      const tensor::LogicalTensor* tensor;
      size_t rank;  // the first that has it
    };
    std::vector<Known> known;  // in the order in which they were met
    std::unordered_map<std::string_view, uint32_t> met;
    for (size_t rank = 0; rank < inventories_.size(); ++rank) {
      auto& own = numbers_.emplace_back();
      own.reserve(inventories_[rank].tensors.size());
      for (const auto& tensor : inventories_[rank].tensors) {
        const auto [entry, is_new] = met.try_emplace(tensor.name, static_cast<uint32_t>(known.size()));
        if (is_new) {
          check_size(tensor);
          known.push_back({&tensor, rank});
        }
        own.push_back(entry->second);
        const auto& [other, first] = known[entry->second];
        if (*other != tensor)
          throw CheckpointError("tensor '{}' is {} {} on rank {} and {} {} on rank {}", tensor.name, tensor::name_of(other->dtype),
                                tensor::to_string(other->shape), first, tensor::name_of(tensor.dtype), tensor::to_string(tensor.shape),
                                rank);
      }
    }
    std::vector<uint32_t> sorted(known.size()), place(known.size());
    std::iota(sorted.begin(), sorted.end(), 0u);
    std::sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) { return known[a].tensor->name < known[b].tensor->name; });
    for (const uint32_t number : sorted) {
      place[number] = static_cast<uint32_t>(plan_.metadata.tensors.size());
      plan_.metadata.tensors.push_back({*known[number].tensor, {}});
    }
    for (auto& own : numbers_)
      for (auto& number : own) number = place[number];
  }

  static void check_size(const tensor::LogicalTensor& tensor) {
    int64_t bytes = 0;
    try {
      bytes = tensor::element_count(tensor.shape);
    } catch (const base::ConfigError& wrong) {
      throw CheckpointError("tensor '{}': {}", tensor.name, wrong.what());
    }
    if (__builtin_mul_overflow(bytes, tensor::size_bytes(tensor.dtype), &bytes))
      throw CheckpointError("tensor '{}' of shape {} has more than 2^63 bytes", tensor.name, tensor::to_string(tensor.shape));
  }

  void find_replicas() {
    size_t total = 0;
    for (const auto& inventory : inventories_) total += inventory.parts.size();
    holdings_.reserve(total);
    for (uint32_t rank = 0; rank < inventories_.size(); ++rank)
      for (uint32_t part = 0; part < inventories_[rank].parts.size(); ++part) {
        const auto& held = inventories_[rank].parts[part];
        const uint32_t tensor = numbers_[rank][held.tensor];
        holdings_.push_back({hash_of(tensor, held.box), tensor, rank, part});
      }
    std::sort(holdings_.begin(), holdings_.end(), [](const Holding& a, const Holding& b) {
      return a.hash != b.hash ? a.hash < b.hash : a.rank != b.rank ? a.rank < b.rank : a.part < b.part;
    });
    separate_collisions();
    for (uint32_t i = 0; i < holdings_.size(); ++i) {
      const auto& h = holdings_[i];
      if (!uniques_.empty()) {
        const auto& first = holdings_[uniques_.back().begin];
        if (first.hash == h.hash && is_same(first, h)) {
          if (holdings_[i - 1].rank == h.rank)
            throw CheckpointError("tensor '{}' cannot be saved: two parts of rank {} overlap, both at {} of {}",
                                  plan_.metadata.tensors[h.tensor].tensor.name, h.rank, tensor::to_string(box_of(h).offset),
                                  tensor::to_string(box_of(h).extent));
          uniques_.back().end = i + 1;
          continue;
        }
      }
      uniques_.push_back(
          {tensor::element_count(box_of(h).extent) * tensor::size_bytes(plan_.metadata.tensors[h.tensor].tensor.dtype), i, i + 1});
    }
  }

  bool is_same(const Holding& a, const Holding& b) const { return a.tensor == b.tensor && box_of(a) == box_of(b); }

  // Different parts with the same hash lie mixed: sorted by what they are, replicas come side by side.
  void separate_collisions() {
    for (auto begin = holdings_.begin(); begin != holdings_.end();) {
      auto end = begin + 1;
      bool all_same = true;
      for (; end != holdings_.end() && end->hash == begin->hash; ++end) all_same = all_same && is_same(*begin, *end);
      if (!all_same)
        std::sort(begin, end, [&](const Holding& a, const Holding& b) {
          const auto &x = box_of(a), &y = box_of(b);
          return std::tie(a.tensor, x.offset, x.extent, a.rank, a.part) < std::tie(b.tensor, y.offset, y.extent, b.rank, b.part);
        });
      begin = end;
    }
  }

  void choose_writers() {
    std::vector<uint32_t> ranks;
    ranks.reserve(holdings_.size());
    for (const auto& holding : holdings_) ranks.push_back(holding.rank);
    written_.resize(inventories_.size());
    for (const uint32_t chosen : deal_out(uniques_, ranks, inventories_.size()))
      written_[holdings_[chosen].rank].push_back(holdings_[chosen].part);
    for (auto& parts : written_) std::sort(parts.begin(), parts.end());
  }

  // Lays each rank's parts out in its files.
  void place() {
    auto& metadata = plan_.metadata;
    plan_.shares.resize(inventories_.size());
    plan_.places.resize(inventories_.size());
    for (size_t rank = 0; rank < inventories_.size(); ++rank) {
      auto& share = plan_.shares[rank];
      share.first_file = static_cast<uint32_t>(metadata.files.size());
      for (const uint32_t number : written_[rank]) {
        const auto& part = inventories_[rank].parts[number];
        const uint32_t tensor = numbers_[rank][part.tensor];
        auto& record = metadata.tensors[tensor];
        const int64_t bytes = tensor::element_count(part.box.extent) * tensor::size_bytes(record.tensor.dtype);
        if (share.file_bytes.empty() ||
            (share.file_bytes.back() > kDataHeaderBytes && aligned(share.file_bytes.back(), bytes) + bytes > options_.file_limit_bytes))
          share.file_bytes.push_back(kDataHeaderBytes);
        const int64_t offset = aligned(share.file_bytes.back(), bytes);
        share.file_bytes.back() = offset + bytes;
        const auto file = share.first_file + static_cast<uint32_t>(share.file_bytes.size()) - 1;
        share.parts.push_back({number, file, offset});
        plan_.places[rank].push_back({tensor, static_cast<uint32_t>(record.pieces.size())});
        record.pieces.push_back({part.box, file, offset, {}});
      }
      for (const int64_t bytes : share.file_bytes)
        metadata.files.push_back({data_file_name(static_cast<uint32_t>(metadata.files.size())), bytes});
    }
    for (size_t rank = 0; rank < inventories_.size(); ++rank) {
      if (!inventories_[rank].has_extras) continue;
      plan_.shares[rank].extras_file = static_cast<int64_t>(metadata.files.size());
      metadata.files.push_back({data_file_name(static_cast<uint32_t>(metadata.files.size())), kDataHeaderBytes});
    }
  }

  const std::vector<Inventory>& inventories_;
  PlanOptions options_;
  std::vector<std::vector<uint32_t>> numbers_;  // of each rank's tensors, in the metadata
  std::vector<Holding> holdings_;               // replicas side by side
  std::vector<Task> uniques_;                   // each part once, and its holdings
  std::vector<std::vector<uint32_t>> written_;  // parts of each rank
  SavePlan plan_;
};

}  // namespace

std::string data_file_name(uint32_t file) { return fmt::format("data_{:05}.bin", file); }

std::string encode(const Inventory& inventory) {
  Encoder out;
  out.number(inventory.has_extras);
  out.number(static_cast<int64_t>(inventory.tensors.size()));
  for (const auto& tensor : inventory.tensors) put(out, tensor);
  out.number(static_cast<int64_t>(inventory.parts.size()));
  for (const auto& part : inventory.parts) {
    out.number(part.tensor);
    put(out, part.box);
  }
  return std::move(out.bytes);
}

Inventory decode_inventory(std::string_view bytes, const std::string& origin) {
  Decoder in(bytes, origin, "inventory");
  Inventory inventory;
  const int64_t has_extras = in.number();
  if (has_extras > 1) in.fail("has an impossible flag");
  inventory.has_extras = has_extras == 1;
  inventory.tensors.resize(in.count(3));
  for (auto& tensor : inventory.tensors) take(in, tensor);
  inventory.parts.resize(in.count(1));
  for (auto& part : inventory.parts) {
    const int64_t tensor = in.number();
    if (static_cast<uint64_t>(tensor) >= inventory.tensors.size()) in.fail("names a tensor that does not exist");
    part.tensor = static_cast<uint32_t>(tensor);
    const auto& shape = inventory.tensors[part.tensor].shape;
    take(in, shape.size(), part.box);
    if (!tensor::is_inside(part.box, shape)) in.fail("has a part outside its tensor");
  }
  in.finish();
  return inventory;
}

std::string encode(const Share& share) {
  Encoder out;
  out.number(share.first_file);
  out.number(static_cast<int64_t>(share.file_bytes.size()));
  for (const int64_t bytes : share.file_bytes) out.number(bytes);
  out.number(share.extras_file + 1);
  out.number(static_cast<int64_t>(share.parts.size()));
  for (const auto& part : share.parts) {
    out.number(part.part);
    out.number(part.file);
    out.number(part.offset);
  }
  return std::move(out.bytes);
}

Share decode_share(std::string_view bytes, const std::string& origin) {
  Decoder in(bytes, origin, "share");
  Share share;
  share.first_file = in.number32();
  share.file_bytes.resize(in.count(1));
  for (int64_t& file_bytes : share.file_bytes) file_bytes = in.number();
  share.extras_file = in.number() - 1;
  share.parts.resize(in.count(3));
  for (auto& part : share.parts) {
    part.part = in.number32();
    part.file = in.number32();
    part.offset = in.number();
  }
  in.finish();
  return share;
}

void check_fits(const Share& share, const Inventory& inventory, const std::string& origin) {
  std::vector<int64_t> ends(share.file_bytes.size(), kDataHeaderBytes);
  bool fits = (share.extras_file >= 0) == inventory.has_extras && share.extras_file <= UINT32_MAX;
  for (const auto& part : share.parts) {
    const size_t file = part.file - share.first_file;
    fits = fits && part.part < inventory.parts.size() && part.file >= share.first_file && file < ends.size();
    if (!fits) break;
    const auto& held = inventory.parts[part.part];
    const int64_t bytes = tensor::element_count(held.box.extent) * tensor::size_bytes(inventory.tensors[held.tensor].dtype);
    fits = part.offset >= ends[file] && part.offset - ends[file] < kLargeAlignment;
    ends[file] = part.offset + bytes;
  }
  if (!fits || ends != share.file_bytes)
    throw CheckpointError(
        "{}: the share is not one of what this rank holds; "
        "the message was damaged",
        origin);
}

SavePlan plan_save(const std::vector<Inventory>& inventories, const PlanOptions& options) { return Planner(inventories, options).run(); }

}  // namespace ingot::checkpoint
