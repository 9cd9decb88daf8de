// Who reads what, and who passes which part of it on to whom. All ranks make the same plan from what all of them want. Pure.
//
// For N pairs of a wanted box and a piece that it touches: N·log N.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/metadata.h"

namespace ingot::checkpoint {

/// What one rank wants: boxes of tensors of the metadata.
struct Wants {
  struct Want {
    uint32_t tensor = 0;
    tensor::Box box;
    bool operator==(const Want&) const = default;
  };
  std::vector<Want> wants;
  std::string machine;  // the rank's; ranks of one machine read storage through one cache. "": through none
  bool operator==(const Wants&) const = default;
};

std::string encode(const Wants& wants);
/// Throws CheckpointError naming `origin`.
Wants decode_wants(std::string_view bytes, const Metadata& metadata, const std::string& origin);

/// A part of a piece on its way to a rank, maybe the reader itself.
struct Delivery {
  uint32_t rank = 0, want = 0;  // and which of its wants
  tensor::Box common;
  int64_t bytes = 0;
};

struct ReadTask {
  uint32_t tensor = 0, piece = 0;
  uint32_t reader = 0;
  int64_t bytes = 0;       // of the piece
  bool is_cached = false;  // another rank of the reader's machine reads it from storage
  bool is_shared = false;  // others of the reader's machine read it too
  std::vector<Delivery> deliveries;
};

/// Rounds of reads; between two of them ranks exchange. Within a round and a reader, tasks are in the order of files and offsets.
struct LoadPlan {
  std::vector<std::vector<ReadTask>> rounds;
};

/// Of each file the ranks that can read it; nothing: all can.
using Readers = std::vector<std::vector<uint32_t>>;

/// The reader of a piece is the one with the least to read of the ranks that want it or, with `readers`, of those that can. Ranks of its
/// machine that want the best part of it take it from the machine's cache themselves: cheaper than a message, and storage is asked once.
LoadPlan plan_load(const Metadata& metadata, const std::vector<Wants>& wants, int64_t batch_bytes, const Readers& readers = {});

}  // namespace ingot::checkpoint
