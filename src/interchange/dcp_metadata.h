// The index of a PyTorch DCP checkpoint, `.metadata`: which tensors there are, of which chunks each is made, and where their
// archives lie. Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.11; format in docs of the
// folder (dcp.h). Plain values. What `decode_dcp` returns has passed every check that needs no other file.
#pragma once

#include <string>
#include <vector>

#include "interchange/pickle.h"
#include "tensor/logical_tensor.h"

namespace ingot::interchange {

inline constexpr const char* kDcpMetadataName = ".metadata";

/// One archive of torch.save within a data file.
struct DcpPlace {
  uint32_t file = 0;  // index into DcpMetadata::files
  int64_t offset = 0, size_bytes = 0;
};

struct DcpChunk {
  tensor::Box box;
  DcpPlace place;
};

struct DcpTensorRecord {
  tensor::LogicalTensor tensor;
  std::vector<DcpChunk> chunks;  // those that have elements
};

/// A pickled value that is no tensor.
struct DcpObjectRecord {
  std::string name;
  DcpPlace place;
};

/// A tensor whose dtype ingot has not.
struct DcpForeignTensor {
  std::string name, dtype;
};

struct DcpMetadata {
  std::vector<std::string> files;        // plain names
  std::vector<DcpTensorRecord> tensors;  // these three sorted by name
  std::vector<DcpObjectRecord> objects;
  std::vector<DcpForeignTensor> foreign;
};

/// Checks names, shapes, that the chunks of each tensor make it up exactly and are not larger than their archives, and that
/// archives do not overlap. Throws CheckpointError naming the file and the byte or the tensor.
DcpMetadata decode_dcp(const Pickle& pickle);

/// The pickle that torch reads. Tensors without elements get one chunk, as in torch: `hollow` says where its archive lies, in the
/// order of those tensors.
std::string encode_dcp(const DcpMetadata& metadata, const std::vector<DcpPlace>& hollow);

}  // namespace ingot::interchange
