// The metadata of a checkpoint: which tensors there are, of which pieces each is made, and where the bytes of each piece
// lie. Encoded as described byte by byte in docs/checkpoint-format.md. Binary rather than JSON: a million pieces are 30 MB
// and decode in a fraction of a second, and there is exactly one encoding of a value, so every changed bit is seen.
// Plain values. `decode` trusts nothing: what it returns has passed every check that needs no other file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/boxes.h"
#include "checkpoint/format/digest.h"
#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr const char* kMetadataName = "metadata.bin";
inline constexpr int64_t kDataHeaderBytes = 64;
inline constexpr int64_t kSmallAlignment = 64, kLargeAlignment = 4096;  // of pieces; large from kLargePieceBytes on
inline constexpr int64_t kLargePieceBytes = 65536;

/// 128 random bits that all files of one checkpoint share, so that files of two checkpoints cannot be mixed unseen.
struct CheckpointId {
  uint64_t low = 0, high = 0;
  bool operator==(const CheckpointId&) const = default;
};
CheckpointId random_id();
/// 32 hexadecimal digits.
std::string to_string(const CheckpointId& id);
/// Of what to_string gave; throws CheckpointError for anything else.
CheckpointId id_from(const std::string& text);

struct FileRecord {
  std::string name;  // plain, without folders
  int64_t size_bytes = 0;
};

struct PieceRecord {
  tensor::Box box;
  uint32_t file = 0;  // index into Metadata::files
  int64_t offset = 0;
  Digest digest;
};

struct TensorRecord {
  tensor::LogicalTensor tensor;
  std::vector<PieceRecord> pieces;
};

/// A named blob: JSON text or anything else that is not a tensor.
struct ExtraRecord {
  std::string name;
  uint32_t file = 0;
  int64_t offset = 0, size_bytes = 0;
  Digest digest;
};

struct Metadata {
  CheckpointId id;
  int64_t step = 0;
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;  // sorted by name
  std::vector<ExtraRecord> extras;    // sorted by name
};

/// Bytes that a piece occupies.
int64_t size_bytes(const TensorRecord& tensor, const PieceRecord& piece);

std::string encode(const Metadata& metadata);

/// Throws CheckpointError naming `origin` (the file) and the tensor.
Metadata decode(std::string_view bytes, const std::string& origin);

/// The same for what one of several ranks has written: tensors need not be complete.
Metadata decode_part(std::string_view bytes, const std::string& origin);

/// Everything that must hold of metadata, however it was made: names, bounds, exact tiling of each tensor, byte ranges that
/// do not overlap and fill their files but for padding. Throws CheckpointError.
void validate(const Metadata& metadata, const std::string& origin);

/// The 64 bytes with which a data file begins.
std::array<std::byte, kDataHeaderBytes> data_header(const CheckpointId& id, int64_t step, uint32_t file);

/// Where the next range may begin in a file that so far ends at `end`.
int64_t aligned(int64_t end, int64_t size_bytes);

/// A used range of a data file and what it holds, for messages.
struct Range {
  int64_t begin, end;
  const std::string* owner;  // a name within the metadata
  bool is_tensor;            // else an extra
  Digest digest;
};
/// The used ranges of each file, by offset.
std::vector<std::vector<Range>> ranges_of(const Metadata& metadata);

}  // namespace ingot::checkpoint
