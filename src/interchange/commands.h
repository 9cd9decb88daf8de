// `ingot checkpoint import-dcp` and `export-dcp` as functions: they print to `out` (one JSON document with `json`) and return the exit
// status. Errors are exceptions of base/error.h.
#pragma once

#include <iosfwd>

#include "interchange/convert.h"

namespace ingot::interchange {

struct ImportCommand {
  fs::path source;  // a DCP or torch_dist folder
  fs::path folder;  // of checkpoints, or a run directory to be
  int64_t step = 0;
  bool skip_foreign = false;
  bool json = false;
};
int import_dcp(const ImportCommand& command, std::ostream& out);

struct ExportCommand {
  fs::path source;  // whatever checkpoint::open_tensors accepts
  fs::path folder;  // absent or empty
  double chunk_mib = 64, file_mib = 4096;
  bool json = false;
};
int export_dcp(const ExportCommand& command, std::ostream& out);

}  // namespace ingot::interchange
