#include <iostream>

#include "checkpoint/commands.h"
#include "cli/verbs.h"
#include "interchange/commands.h"

namespace ingot::cli {

int run_checkpoint(const Options& all, StorageOf storage_of) {
  const auto& o = all.checkpoint;
  const auto* storage = &storage_of(o.path);
  if (o.action == "inspect") return checkpoint::inspect({o.path, o.extra, all.json, storage}, std::cout);
  if (o.action == "verify") return checkpoint::verify({o.path, all.json, storage}, std::cout);
  if (o.action == "diff")
    return checkpoint::diff({o.path, o.other, o.atol, o.rows, all.json, storage, &storage_of(o.other)}, std::cout);
  if (o.action == "import-dcp") return interchange::import_dcp({o.path, o.output, o.step, o.skip_foreign, all.json}, std::cout);
  if (o.action == "export-dcp") return interchange::export_dcp({o.path, o.output, o.chunk_mib, o.file_mib, all.json}, std::cout);
  return checkpoint::prune({o.path, {o.keep, o.keep_every}, o.dry_run, all.json, storage}, std::cout);
}

}  // namespace ingot::cli
