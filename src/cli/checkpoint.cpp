// `ingot checkpoint`: looks at checkpoints, checks, compares, thins out and converts them, without a model. In both of the program's files:
// those in buckets need a client whose libraries take 9 ms to load.
#include <iostream>

#include "checkpoint/commands.h"
#include "cli/verb.h"
#include "interchange/commands.h"
#ifdef INGOT_COMPUTES
#include "object_store/object_storage.h"
#endif

namespace ingot::cli {

struct CheckpointOptions {
  std::string path, other, output, extra;
  int64_t keep = 0, keep_every = 0, rows = 20, step = 0;
  double atol = 0, chunk_mib = 64, file_mib = 4096;
  bool dry_run = false, skip_foreign = false;
};

#ifndef INGOT_COMPUTES
void add_checkpoint(Flags& flags) {
  const auto values = std::make_shared<CheckpointOptions>();
  auto& o = *values;
  flags.group("checkpoint", "look at checkpoints, check, compare, thin out, export");
  const auto verb = [&](const char* name, const char* help, const char* path = "checkpoint or run directory") -> CLI::App& {
    auto& added = flags.verb("checkpoint", name, help, values);
    added.add_option("path", o.path, path)->required();
    return added;
  };
  auto& inspect = verb("inspect", "what a checkpoint, run directory or Hugging Face folder holds");
  inspect.add_option("--extra", o.extra, "print only this record, for instance config.toml");
  verb("verify", "check every file and tensor without loading; status 3 when damaged");
  auto& diff = verb("diff", "compare two checkpoints tensor by tensor; status 3 when they differ");
  diff.add_option("--atol", o.atol, "numbers this close count as equal (default 0: the bytes must be)")->check(kNotNegative);
  diff.add_option("--rows", o.rows, "how many differing tensors are listed")->check(kNotNegative);
  diff.add_option("other", o.other, "the checkpoint to compare with")->required();
  auto& prune = verb("prune", "remove old checkpoints of a run");
  prune.add_option("--keep", o.keep, "newest ones that stay")->required()->check(kPositive);
  prune.add_option("--keep-every", o.keep_every, "steps that are multiples of this stay too")->check(kNotNegative);
  prune.add_flag("--dry-run", o.dry_run, "only say what would go");
  auto& to_dcp = verb("export-dcp", "write a folder that torch.distributed.checkpoint loads");
  to_dcp.add_option("-o,--output", o.output, "folder to write")->required();
  to_dcp.add_option("--chunk-mib", o.chunk_mib, "longest piece of a tensor")->check(CLI::Range(1e-5, 1e6));
  to_dcp.add_option("--file-mib", o.file_mib, "longest file")->check(CLI::Range(1e-5, 1e9));
  auto& from_dcp = verb("import-dcp", "make a checkpoint of PyTorch's DCP or Megatron's torch_dist format ours", "folder with .metadata");
  from_dcp.add_option("-o,--output", o.output, "folder of checkpoints to write to")->required();
  from_dcp.add_option("--step", o.step, "step of the new checkpoint")->check(kNotNegative);
  from_dcp.add_flag("--skip-foreign", o.skip_foreign, "leave out tensors of dtypes that ingot does not have");
}
#endif

int run_checkpoint(const Call& call) {
  const auto& o = call.options<CheckpointOptions>();
#ifdef INGOT_COMPUTES
  const checkpoint::StorageOf storage_of = object_store::storage_of;
#else
  if (o.path.starts_with("s3://") || o.other.starts_with("s3://")) return run_in_library(call);
  const checkpoint::StorageOf storage_of = checkpoint::local_storage_of;
#endif
  if (call.action == "import-dcp") return interchange::import_dcp({o.path, o.output, o.step, o.skip_foreign, call.json}, std::cout);
  if (call.action == "export-dcp") return interchange::export_dcp({o.path, o.output, o.chunk_mib, o.file_mib, call.json}, std::cout);
  const auto* storage = &storage_of(o.path);
  if (call.action == "inspect") return checkpoint::inspect({o.path, o.extra, call.json, storage}, std::cout);
  if (call.action == "verify") return checkpoint::verify({o.path, call.json, storage}, std::cout);
  if (call.action == "diff")
    return checkpoint::diff({o.path, o.other, o.atol, o.rows, call.json, storage, &storage_of(o.other)}, std::cout);
  return checkpoint::prune({o.path, {o.keep, o.keep_every}, o.dry_run, call.json, storage}, std::cout);
}

}  // namespace ingot::cli
