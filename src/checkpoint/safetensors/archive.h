// A safetensors file that a program maps and computes from: every tensor begins at a multiple of 64 bytes, small files lie among the
// tensors as bytes, and each tensor has a digest, which is compared only when someone asks (`ingot checkpoint verify`). Whoever reads
// safetensors reads it; what is no tensor of the model has a name that begins with "ingot/":
//
//   ingot/padding/0 …   before a tensor that would begin elsewhere: the format has no holes
//   ingot/files/NAME    the bytes of a file
//   ingot/digests       [items + 1, 16] XXH3-128 of the metadata, then of every tensor before it, in the order of the file
//
// The format of what is in it, `ingot_archive` in the metadata, is the writer's.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/load/verify.h"
#include "checkpoint/safetensors/safetensors.h"

namespace ingot::checkpoint {

constexpr int64_t kArchiveAlignment = 64;

/// Writes aside, fsyncs, renames. Throws CheckpointError, FileError, or what an item's `bytes` throws, and leaves nothing behind.
void write_archive(const fs::path& file, const std::vector<SafetensorsItem>& items, const std::map<std::string, std::string>& files,
                   std::map<std::string, std::string> metadata);

bool is_archive(const SafetensorsReader& reader);
/// Whether a tensor is of the archive itself rather than of the model.
bool is_of_archive(std::string_view name);
/// Copies of the files in it, by their names, which are plain ones. Throws CheckpointError.
std::map<std::string, std::string> files_in(const SafetensorsReader& reader);

/// Reads every byte. Throws CheckpointError when it is no archive; damage is in the summary.
VerifySummary verify_archive(const fs::path& file);

}  // namespace ingot::checkpoint
