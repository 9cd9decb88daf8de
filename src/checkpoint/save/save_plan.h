// Who writes what. Each rank says which parts of which tensors it holds; where several hold the same part, one of them writes it,
// so that every byte is written once and no rank has much more to write than another. Pure functions and plain values: the same
// inventories give the same plan, whatever the order of threads.
//
// For N parts of all ranks: N·log N.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/metadata.h"

namespace ingot::checkpoint {

/// What one rank holds, whole and row-major, cut to the size of pieces.
struct Inventory {
  struct Part {
    uint32_t tensor = 0;  // index into tensors
    tensor::Box box;
    bool operator==(const Part&) const = default;
  };
  std::vector<tensor::LogicalTensor> tensors;  // sorted by name
  std::vector<Part> parts;
  bool has_extras = false;  // named blobs, which this rank writes itself

  bool operator==(const Inventory&) const = default;
};

std::string encode(const Inventory& inventory);
/// Throws CheckpointError naming `origin`.
Inventory decode_inventory(std::string_view bytes, const std::string& origin);

/// Where a part lies in the files of its writer.
struct Placed {
  uint32_t part = 0;  // of the writer's inventory
  uint32_t file = 0;  // of the checkpoint
  int64_t offset = 0;
  bool operator==(const Placed&) const = default;
};

/// A writer's share: parts in the order in which they lie in its files.
struct Share {
  uint32_t first_file = 0;          // its data files are numbered from here on
  std::vector<int64_t> file_bytes;  // of each, header included
  int64_t extras_file = -1;         // its file of extras; -1: none
  std::vector<Placed> parts;
  bool operator==(const Share&) const = default;
};

std::string encode(const Share& share);
Share decode_share(std::string_view bytes, const std::string& origin);
/// Throws CheckpointError unless it is a share of what the rank holds: its parts, each in one of its files behind the one before.
void check_fits(const Share& share, const Inventory& inventory, const std::string& origin);

struct SavePlan {
  std::vector<Share> shares;  // of each rank
  /// Everything but step, id, digests and the sizes of files of extras, checked.
  Metadata metadata;
  /// Of each rank's parts in the order of its share: tensor and piece in `metadata`.
  struct Place {
    uint32_t tensor, piece;
  };
  std::vector<std::vector<Place>> places;
};

struct PlanOptions {
  int64_t file_limit_bytes = int64_t{4} << 30;  // longer files are cut, to be written and read in parallel
};

/// Throws CheckpointError naming tensor and ranks when ranks disagree about a tensor, or the parts do not make it up exactly: parts of
/// two ranks must be the same or have nothing in common. Parts with the fewest holders are dealt out first, then the largest, each to the
/// holder with the fewest bytes: no rank has more than the average and one part more, when all hold the same.
SavePlan plan_save(const std::vector<Inventory>& inventories, const PlanOptions& options = {});

/// "data_00012.bin".
std::string data_file_name(uint32_t file);

}  // namespace ingot::checkpoint
