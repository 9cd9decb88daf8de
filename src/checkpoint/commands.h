// The verbs of `ingot checkpoint` that need no model, as functions: they print to `out` (one JSON document with `json`) and
// return the exit status: 0 done, 3 a verification failed. Errors are exceptions of base/error.h.
#pragma once

#include <iosfwd>

#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {

struct InspectOptions {
  fs::path path;      // whatever open_tensors accepts
  std::string extra;  // print only the content of this extra state
  bool json = false;
  const Storage* storage = &local_storage();
};
int inspect(const InspectOptions& options, std::ostream& out);

struct VerifyOptions {
  fs::path path;  // a checkpoint, or a folder of them or a run directory: then all are verified
  bool json = false;
  const Storage* storage = &local_storage();
};
int verify(const VerifyOptions& options, std::ostream& out);

struct PruneOptions {
  fs::path path;  // a folder of checkpoints or a run directory
  Retention retention;
  bool dry_run = false;  // say what would go
  bool json = false;
  const Storage* storage = &local_storage();
};
int prune(const PruneOptions& options, std::ostream& out);

struct DiffOptions {
  fs::path a, b;      // whatever open_tensors accepts
  double atol = 0;    // numbers this close count as equal; with 0 the bytes must be
  int64_t rows = 20;  // how many differing tensors the text lists
  bool json = false;
  const Storage *storage_a = &local_storage(), *storage_b = &local_storage();
};
/// Status 3 when names, shapes or numbers differ. Equal shapes of different dtypes are compared as numbers.
int diff(const DiffOptions& options, std::ostream& out);

}  // namespace ingot::checkpoint
