// Reads the JSON that `ingot bench parallel --json -o FILE.json` writes; docs/parallel-methods.md lists its fields. The file is hostile
// until it has been read: whatever is missing, of a wrong type or out of range is a DataError that names the file and the field.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "schedule/sweep.h"

namespace ingot::report {

struct ParallelFile {
  std::string name;             // of the file
  std::string mode, machine;    // "measured" or "modelled", and where
  schedule::SweepResult sweep;  // `layer` of a crossover is empty in files from before it was written; Result::ops has what was used
};

/// `name` is what errors call the file. Throws DataError.
ParallelFile parse_parallel(std::string_view content, const std::string& name);

/// Throws FileError where there is no file, DataError for one that is too large or that parse_parallel() refuses.
ParallelFile read_parallel(const std::filesystem::path& path);

}  // namespace ingot::report
