#include <CLI/CLI.hpp>
#include <iostream>

#include "base/text.h"
#include "cli/options.h"
#include "cli/version.h"

namespace ingot::cli {
namespace {

void add_train(CLI::App& app, TrainOptions& o) {
  auto* verb = app.add_subcommand("train", "train a model as a configuration says");
  verb->add_option("config", o.config, "configuration, TOML (configs/ has some)");
  verb->add_option("--set", o.set, "key=value: override a setting; may be given several times")->allow_extra_args(false);
  verb->add_option("--run-dir", o.run_dir, "where checkpoints, metrics and the log go (default runs/<name of the config>)");
  verb->add_option("--resume", o.resume, "auto (the run directory's newest checkpoint), never, or a checkpoint's path");
  verb->add_flag("--dry-run", o.dry_run, "print the resolved plan: parameters, memory, FLOPs, predicted step time; train nothing");
  verb->add_flag("--settings", o.settings_help, "print every setting with its type, default and meaning");
  verb->add_flag("--markdown", o.markdown, "with --settings: as the page docs/settings.md");
}

void add_launch(CLI::App& app, LaunchOptions& o) {
  auto* verb = app.add_subcommand("launch", "start the ranks of a job on this machine and watch over them");
  verb->add_option("-n,--ranks", o.ranks, "ranks to start on this machine")->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb->add_option("--nnodes", o.nnodes, "machines; each runs this command")->check(CLI::Range(int64_t{1}, int64_t{65536}));
  verb->add_option("--node-rank", o.node_rank, "which of them this is, from 0")->check(CLI::NonNegativeNumber);
  verb->add_option("--rendezvous", o.rendezvous, "HOST:PORT of machine 0, where all meet (one machine: found by itself)");
  verb->add_option("--rendezvous-timeout", o.rendezvous_timeout_s, "seconds to wait for the other machines")->check(CLI::PositiveNumber);
  verb->add_option("--max-restarts", o.max_restarts, "how often all ranks are started again after a failure")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--grace", o.grace_s, "seconds from the first failure until the other ranks are killed")->check(CLI::PositiveNumber);
  verb->add_option("command", o.command, "-- and the command of a rank, for instance: -- ingot train configs/zaya1-nano.toml");
}

void add_generate(CLI::App& app, GenerateOptions& o) {
  auto* verb = app.add_subcommand("generate", "continue a text with a trained model");
  verb->add_option("--model", o.model, "an ingot checkpoint or run directory, or a Hugging Face folder")->required();
  verb->add_option("--prompt", o.prompt, "text to continue");
  verb->add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the model's own)");
  verb->add_option("--tokens", o.tokens, "most new tokens")->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb->add_option("--temperature", o.temperature, "0 = always the likeliest token")->check(CLI::Range(0.0, 100.0));
  verb->add_option("--top-k", o.top_k, "draw from the k likeliest; 0 = all")->check(CLI::NonNegativeNumber);
  verb->add_option("--top-p", o.top_p, "draw from the likeliest whose probabilities sum to p")->check(CLI::Range(0.0, 1.0));
  verb->add_option("--seed", o.seed, "of the draws")->check(CLI::NonNegativeNumber);
  verb->add_option("--dtype", o.dtype, "fp32 or bf16")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
}

void add_verify_options(CLI::App* verb, VerifyOptions& o) {
  verb->add_option("--fixture", o.fixture, "recorded reference, .safetensors")->required();
  verb->add_option("--dtype", o.dtype, "fp64, fp32 or bf16")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  verb->add_option("--device", o.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_option("--rtol", o.rtol, "allowed difference, relative to the tensor's largest magnitude");
  verb->add_option("--atol", o.atol, "allowed difference, absolute");
}

void add_verify(CLI::App& app, VerifyOptions& o) {
  auto* verb = app.add_subcommand("verify", "compare this machine's numbers with a recorded reference; status 3 past the tolerance");
  verb->require_subcommand(1);
  auto* model = verb->add_subcommand("model", "logits, loss, every gradient and greedy ids of a Hugging Face folder");
  model->add_option("folder", o.target, "model folder")->required();
  model->add_option("--set", o.set, "model.key=value")->allow_extra_args(false);
  auto* op = verb->add_subcommand("op", "single operators: muon, adamw, linear_attention");
  op->add_option("name", o.target, "operator")->required();
  auto* trajectory = verb->add_subcommand("trajectory", "a short training run from the weights of a folder");
  trajectory->add_option("folder", o.target, "model folder")->required();
  for (auto* kind : {model, op, trajectory}) {
    add_verify_options(kind, o);
    kind->callback([&o, kind] { o.kind = kind->get_name(); });
  }
}

void add_checkpoint(CLI::App& app, CheckpointOptions& o) {
  auto* verb = app.add_subcommand("checkpoint", "look at checkpoints, check, compare, thin out, export");
  verb->require_subcommand(1);
  auto* inspect = verb->add_subcommand("inspect", "what a checkpoint, run directory or Hugging Face folder holds");
  auto* verify = verb->add_subcommand("verify", "check every file and tensor without loading; status 3 when damaged");
  auto* diff = verb->add_subcommand("diff", "compare two checkpoints tensor by tensor; status 3 when they differ");
  auto* prune = verb->add_subcommand("prune", "remove old checkpoints of a run");
  auto* hf = verb->add_subcommand("export-hf", "write a Hugging Face folder");
  auto* from_hf = verb->add_subcommand("import-hf", "begin a run directory with the weights and the tokenizer of a Hugging Face folder");
  auto* to_dcp = verb->add_subcommand("export-dcp", "write a folder that torch.distributed.checkpoint loads");
  auto* from_dcp = verb->add_subcommand("import-dcp", "make a checkpoint of PyTorch's DCP or Megatron's torch_dist format ours");
  for (auto* action : {inspect, verify, diff, prune, hf, from_hf, to_dcp, from_dcp}) {
    action
        ->add_option("path", o.path,
                     action == from_dcp  ? "folder with .metadata"
                     : action == from_hf ? "folder with config.json and safetensors"
                                         : "checkpoint or run directory")
        ->required();
    action->callback([&o, action] { o.action = action->get_name(); });
  }
  inspect->add_option("--extra", o.extra, "print only this record, for instance config.toml");
  diff->add_option("--atol", o.atol, "numbers this close count as equal (default 0: the bytes must be)")->check(CLI::NonNegativeNumber);
  diff->add_option("--rows", o.rows, "how many differing tensors are listed")->check(CLI::NonNegativeNumber);
  diff->add_option("other", o.other, "the checkpoint to compare with")->required();
  prune->add_option("--keep", o.keep, "newest ones that stay")->required()->check(CLI::PositiveNumber);
  prune->add_option("--keep-every", o.keep_every, "steps that are multiples of this stay too")->check(CLI::NonNegativeNumber);
  prune->add_flag("--dry-run", o.dry_run, "only say what would go");
  for (auto* writing : {hf, to_dcp}) writing->add_option("-o,--output", o.output, "folder to write")->required();
  from_hf->add_option("-o,--output", o.output, "run directory; its first checkpoint must not be there yet")->required();
  to_dcp->add_option("--chunk-mib", o.chunk_mib, "longest piece of a tensor")->check(CLI::Range(1e-5, 1e6));
  to_dcp->add_option("--file-mib", o.file_mib, "longest file")->check(CLI::Range(1e-5, 1e9));
  from_dcp->add_option("-o,--output", o.output, "folder of checkpoints to write to")->required();
  from_dcp->add_option("--step", o.step, "step of the new checkpoint")->check(CLI::NonNegativeNumber);
  from_dcp->add_flag("--skip-foreign", o.skip_foreign, "leave out tensors of dtypes that ingot does not have");
  hf->add_option("--dtype", o.dtype, "of the weights: fp32 or bf16")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  hf->add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the run's own)");
  hf->add_option("--shard-gb", o.shard_gb, "largest file, 10^9 bytes")->check(CLI::Range(0.000001, 1e6));
}

// What a node is judged by, and where that is written.
void add_judgement(CLI::App& verb, BenchOptions& o) {
  verb.add_option("--floors", o.floors, "floors to judge by (JSON as in configs/floors; default: those of the device's name)");
  verb.add_option("--baseline", o.baseline, "judge by this earlier machine profile instead");
  verb.add_option("--tolerance", o.tolerance, "percent below an earlier profile that still pass")->check(CLI::Range(0.0, 99.0))->capture_default_str();
  verb.add_option("--device-name", o.device_name, "choose floors by this name (default: what the driver calls the device)");
  verb.add_option("--verdicts", o.verdicts, "write the verdict as FOLDER/HOST.json, for ingot bench verdict FOLDER");
}

void add_verdict(CLI::App& bench, BenchOptions& o) {
  auto* verb = bench.add_subcommand("verdict", "judge a profile; or put a folder of nodes' verdicts together: who passes, fails, lags behind or is missing");
  verb->add_option("target", o.target, "a machine profile, or the folder of --verdicts")->required()->check(CLI::ExistingPath);
  add_judgement(*verb, o);
  verb->add_option("--expect", o.expect, "file of the hosts that must have a verdict, one a line or as node[001-128]");
  verb->add_option("--max-age", o.max_age_hours, "hours after which a verdict is too old")->check(CLI::PositiveNumber)->capture_default_str();
  verb->add_option("--outlier", o.outlier, "percent below the nodes' median that make one fail although it passes its floors; 0: none")->check(CLI::Range(0.0, 99.0))->capture_default_str();
  verb->add_option("--pass-list", o.pass_list, "write the hosts that pass here, one a line");
  verb->add_option("--fail-list", o.fail_list, "write the others here");
  verb->add_flag("--slurm", o.slurm, "print --nodelist and --exclude for Slurm, and write the lists in its form, node[001-003,007]");
  verb->callback([&o] { o.kind = "verdict"; });
}

// Lists of sizes; all combinations are measured.
void add_sweep(CLI::App& verb, BenchOptions& o) {
  const auto list = [&](const char* flag, auto& values, const char* text) { verb.add_option(flag, values, text)->delimiter(','); };
  if (verb.get_name() == "gemm") {
    list("--m", o.m, "rows of a linear layer, such as 64,1K (K = 1024); with any of these flags only their combinations are measured");
    list("--n", o.n, "its outputs");
    list("--k", o.k, "its inputs");
    list("--kinds", o.kinds, "plain, batched (many products in one call), grouped (of experts one after another, whose rows are --m on average)");
    list("--passes", o.passes, "forward, grad_input, grad_weight (default: all)");
    list("--groups", o.groups, "how many products of batched ones, or experts of grouped ones (default 8)");
    list("--busiest", o.busiest, "rows of the busiest expert over their mean; 1: all have as many (default)");
    verb.add_flag("--libraries", o.libraries, "plain products through every library that can multiply here, by turns; kept for runs, which take the one that is clearly faster (train.gemm_backend)");
  } else if (verb.get_name() == "attention") {
    list("--seq", o.seq, "tokens of a sequence, such as 512,4K (K = 1024); with any of these flags only their combinations are measured");
    list("--heads", o.head_counts, "query heads (default 8)");
    list("--kv-heads", o.kv_head_counts, "key and value heads; those that do not divide the query heads are left out (default: as many)");
    list("--head-dim", o.head_dims, "width of a head (default 64)");
    list("--window", o.windows, "keys that a query sees at most; 0: all before it (default)");
    list("--batch", o.batches, "sequences at a time (default 1)");
  } else if (verb.get_name() == "memory") {
    list("--sizes", o.sizes, "bytes of one array, such as 64K,16M (K = 1024; default 16K to 256M)");
  }
}

void add_bench(CLI::App& app, BenchOptions& o) {
  auto* verb = app.add_subcommand("bench", "measure this machine: gemm, memory, attention, storage, or all; a training step: iteration; or ranks: collectives, and ways of spreading a layer over them, parallel");
  verb->require_subcommand(1);
  for (const auto& [name, text] :
       {std::pair{"gemm", "matrix products over shapes and dtypes: plain, batched and grouped"},
        std::pair{"memory", "copy, scale, add, triad, dot, read and write over sizes; beside a GPU its host, and copies between the two"},
        std::pair{"attention", "forward and backward over lengths, and where it turns from memory- to compute-bound"}, std::pair{"all", "everything, as a machine profile"}}) {
    auto* kind = verb->add_subcommand(name, text);
    kind->add_option("-o,--output", o.output, "write the machine profile here (JSON)");
    kind->add_option("--dtype", o.dtype, "fp32, bf16 or all")->check(CLI::IsMember({"fp32", "bf16", "all"}));
    kind->add_flag("--quick", o.quick, "a few sizes only: seconds; all in two minutes");
    add_sweep(*kind, o);
    if (std::string_view(name) == "all") {
      kind->add_option("--ranks", o.side_by_side, "measure so many ranks side by side, too, and their collectives, at a few sizes; 1: none (default: 2, 4 and 8, as far as the cores go)")
          ->delimiter(',')
          ->check(CLI::Range(1, 4096));
      kind->add_option("--as-rank", o.as_rank)->group("");
      add_judgement(*kind, o);
      kind->add_flag("--check", o.judge, "judge this node: by the floors of its device, or by its own earlier profile; status 3 when it fails");
    }
    kind->callback([&o, kind] { o.kind = kind->get_name(); });
  }
  add_verdict(*verb, o);
  auto* storage = verb->add_subcommand("storage", "reads, writes and small files in a folder, and whether that keeps up with a run's data");
  storage->add_option("folder,--folder", o.folder, "where a folder with the measurement's files is made and removed again")->capture_default_str();
  storage->add_option("--size", o.size, "bytes of the files of all writers together (K = 1024; default 256M, with --quick 32M)");
  storage->add_option("--writers", o.writers, "numbers of threads at work at once (default 1,4,16; with --quick 1,4)")->delimiter(',');
  storage->add_option("--blocks", o.blocks, "bytes of random reads and writes (default 4K,64K)")->delimiter(',');
  storage->add_option("--seconds", o.seconds, "longest of a measurement, without its fsync (default 0.5, with --quick 0.1)")->check(CLI::Range(0.001, 3600.0));
  storage->add_flag("--quick", o.quick, "a few seconds instead of half a minute");
  storage->add_option("--config", o.config, "configuration (TOML): can this folder feed that run?");
  storage->add_option("--set", o.set, "key=value over the configuration")->allow_extra_args(false);
  storage->add_option("--step-s", o.step_s, "seconds of an iteration (default: as this machine's profile predicts it)")->check(CLI::PositiveNumber);
  storage->add_option("--document-tokens", o.document_tokens, "mean length of a document where the data is not at hand and is simulated")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  storage->add_option("-o,--output", o.output, "write the JSON here, too");
  storage->callback([&o] { o.kind = "storage"; });
  auto* iteration = verb->add_subcommand("iteration", "where the time of a training step goes, by kind of work, beside what is predicted");
  iteration->add_option("config", o.config, "configuration (TOML)")->required();
  iteration->add_option("--set", o.set, "key=value over the configuration")->allow_extra_args(false);
  iteration->add_option("--steps", o.steps, "steps that are watched, and as many that are not")->check(CLI::Range(int64_t{1}, int64_t{10000}))->capture_default_str();
  iteration->add_flag("--random-data", o.random_data, "made-up tokens instead of the configuration's data");
  iteration->add_option("-o,--output", o.output, "write the JSON here, too");
  iteration->callback([&o] { o.kind = "iteration"; });
  auto* collectives = verb->add_subcommand("collectives", "all-reduce and others over sizes, groups and placements, with nccl-tests' flags and columns");
  collectives->add_option("operations", o.operations, "all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send_receive (default: all)");
  collectives->add_option("-b,--minbytes", o.min_bytes, "smallest size, such as 8, 4K, 1M (K = 1024)")->capture_default_str();
  collectives->add_option("-e,--maxbytes", o.max_bytes, "largest size")->capture_default_str();
  collectives->add_option("-i,--stepbytes", o.step_bytes, "added from size to size; 0 = sizes grow by -f");
  collectives->add_option("-f,--stepfactor", o.step_factor, "factor from size to size")->capture_default_str();
  collectives->add_option("-n,--iters", o.iterations, "timed calls of each size")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  collectives->add_option("-w,--warmup_iters", o.warmup, "calls before them")->check(CLI::Range(0, 1'000'000))->capture_default_str();
  collectives->add_option("-c,--check", o.check, "1: compare results with what they must be, to the bit")->check(CLI::Range(0, 1))->capture_default_str();
  collectives->add_option("-d,--datatype,--dtype", o.dtype, "fp32 (or float), bf16 (or bfloat16), all (default fp32)");
  collectives->add_option("-r,--root", o.root, "rank of a group that broadcasts and to which is reduced")->check(CLI::NonNegativeNumber);
  collectives->add_option("-a,--average", o.average, "time reported: 0 rank 0's, 1 the mean, 2 the least, 3 the largest of the ranks'")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  collectives->add_flag("-I,--per-iteration", o.per_iteration, "also least, median, p99 and largest time of single calls");
  collectives->add_option("--ranks", o.ranks, "how many ranks to start, where no launcher did")->delimiter(',')->expected(1)->check(CLI::Range(2, 4096));
  collectives->add_option("--group-sizes", o.group_sizes, "ranks of a group; all groups work at once (default: every size that divides the ranks)")->delimiter(',');
  collectives->add_option("--placements", o.placements, "where a group's ranks lie: neighbours, strided (default: both)")->delimiter(',');
  collectives->add_option("--backend", o.backend, "how ranks talk: threads of one process, or processes over shared_memory, gloo or nccl (default shared_memory)")
      ->check(CLI::IsMember({"threads", "shared_memory", "gloo", "nccl"}));
  collectives->add_option("-o,--output", o.output, "write the JSON here, too");
  collectives->add_option("--as-rank", o.as_rank)->group("");
  collectives->callback([&o, collectives] {
    o.kind = "collectives";
    if (collectives->count("--backend") == 0) o.backend = "shared_memory";
    if (collectives->count("--dtype") == 0) o.dtype = "fp32";
  });
  auto* parallel = verb->add_subcommand("parallel", "a layer or block under every way of spreading it over ranks, at the same sizes");
  parallel->add_option("--methods", o.methods, "tp, megatron-sp, sp, tp+sp, tsp, fsdp+cp, ring, ulysses, lasp1, lasp2, zeco (default: all)")->delimiter(',');
  parallel->add_option("--layers", o.layers, "attention, mlp, linear_attention, block (default: all)")->delimiter(',');
  parallel->add_option("--seq", o.lengths, "tokens of a sequence, such as 8K,16K (K = 1024; default 1K,2K,4K)")->delimiter(',');
  parallel->add_option("--ranks", o.ranks, "numbers of ranks")->delimiter(',')->check(CLI::Range(1, 4096))->capture_default_str();
  parallel->add_option("--hidden", o.hidden, "width of the residual stream")->check(CLI::PositiveNumber)->capture_default_str();
  parallel->add_option("--heads", o.heads, "query heads")->check(CLI::PositiveNumber)->capture_default_str();
  parallel->add_option("--kv-heads", o.kv_heads, "key and value heads")->check(CLI::PositiveNumber)->capture_default_str();
  parallel->add_option("--head-dim", o.head_dim, "width of a head; 0 = hidden / heads")->check(CLI::NonNegativeNumber);
  parallel->add_option("--ffn", o.ffn, "inner width of the gated MLP")->check(CLI::PositiveNumber)->capture_default_str();
  parallel->add_option("--batch", o.batch, "sequences at a time")->check(CLI::PositiveNumber)->capture_default_str();
  parallel->add_option("--dtype", o.dtype, "fp64, fp32 or bf16 (default fp32; bf16 with --cluster)")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  parallel->add_option("--pass", o.pass, "forward, backward or both")->check(CLI::IsMember({"forward", "backward", "both"}));
  parallel->add_option("--backend", o.backend, "how ranks talk: threads of one process, or processes over shared_memory, gloo or nccl")
      ->check(CLI::IsMember({"threads", "shared_memory", "gloo", "nccl"}));
  parallel->add_option("--cluster", o.cluster, "measure nothing: replay the schedules on this profile, such as configs/clusters/h100-64.json");
  parallel->add_option("--published", o.published, "what the papers publish beside the model; a folder of profiles, such as configs/clusters");
  parallel->add_option("--repeats", o.repeats, "timed runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  parallel->add_option("--latency-us", o.latency_us, "a wire slower by so much per message")->check(CLI::NonNegativeNumber);
  parallel->add_option("--bandwidth-gb", o.bandwidth_gb, "a wire of so many GB/s; 0 = as it is")->check(CLI::NonNegativeNumber);
  parallel->add_option("-o,--output", o.output, "write the JSON here, too");
  parallel->add_option("--as-rank", o.as_rank)->group("");  // of a process that this verb started: where rank 0 puts the results
  parallel->callback([&o] { o.kind = "parallel"; });
}

void add_sizing_flags(CLI::App* action, PlanOptions& o) {
  auto& s = o.sizing;
  auto* cluster = action->add_option("--cluster", o.cluster, "size for the devices of this profile, such as configs/clusters/mi300x-8.json (default: this machine, as ingot bench all measured it)");
  action->add_option("--profile", s.profile, "size for the machine that this profile was measured on (ingot bench all -o FILE)")->excludes(cluster);
  action->add_option("--devices", o.devices, "how many of the cluster's devices, whole nodes (default: all)")->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  action->add_option("--memory-gb", o.memory_gb, "10^9 bytes of a device, instead of the profile's")->check(CLI::PositiveNumber);
  action->add_option("--dtype", s.dtype, "fp32 or bf16 (default: bf16 with --cluster, else the faster one)")->check(CLI::IsMember({"fp32", "bf16"}));
  action->add_option("--seq", s.seq, "tokens of a sequence")->check(CLI::Range(int64_t{16}, int64_t{1} << 24));
  action->add_option("--vocab", s.vocab, "tokens of the vocabulary")->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  action->add_option("--multiple", s.multiple, "widths are multiples of this (default: as measured or assumed)")->check(CLI::Range(int64_t{1}, int64_t{4096}));
  action->add_option("--batch-tokens", s.batch_tokens, "tokens of a step on all devices, such as 4M");
  action->callback([&o, action] { o.action = action->get_name(); });
}

void add_sizing(CLI::App* verb, PlanOptions& o) {
  auto& s = o.sizing;
  auto* size = verb->add_subcommand("size", "the sizes of a model that suit a device, with the numbers behind each, and a configuration");
  size->add_option("--params", s.params, "parameters, all of them, such as 8B");
  size->add_option("--active", s.active, "parameters that a token meets, embeddings left out, such as 760M");
  size->add_option("--flops", s.flops, "FLOPs of the whole training, such as 1e21");
  size->add_option("--tokens", s.tokens, "tokens of the whole training, such as 100B");
  size->add_option("--family", s.family, "dense (llama) or moe (zaya1)")->check(CLI::IsMember({"dense", "moe"}));
  size->add_option("--experts", s.experts, "experts of a mixture (default: as many as cost little)")->expected(1)->check(CLI::Range(int64_t{1}, int64_t{4096}));
  size->add_option("--share", s.share, "of the best rate that products shall reach")->check(CLI::Range(0.1, 0.99))->capture_default_str();
  size->add_flag("--no-probe", s.no_probe, "do not measure neighbouring shapes (some seconds) where the profile is of this machine");
  size->add_option("-o,--output", o.output, "write the configuration (.toml), or everything (.json)");
  auto* width = verb->add_subcommand("moe-width", "width, number and use of a mixture's experts at equal FLOPs: throughput against latency");
  width->add_option("config", o.config, "configuration (TOML) to start from; or --hidden");
  width->add_option("--set", o.set, "key=value over the configuration")->allow_extra_args(false);
  width->add_option("--hidden", s.hidden, "without a configuration: a zaya1 of this width, with 16 experts as wide")->check(CLI::Range(int64_t{64}, int64_t{32768}));
  width->add_option("--layers", s.layers, "and so many layers (default: hidden / 51, as ZAYA1)")->check(CLI::Range(int64_t{1}, int64_t{1024}));
  width->add_option("--equal", s.equal, "what all have in common: flops (of training, a token) or active (parameters)")->check(CLI::IsMember({"flops", "active"}));
  width->add_option("--experts", s.experts, "numbers of experts (default 1,2,4,...,128)")->delimiter(',')->check(CLI::Range(int64_t{1}, int64_t{4096}));
  width->add_option("--top-k", s.top_k, "experts of a token (default 1,2,4,8)")->delimiter(',')->check(CLI::Range(int64_t{1}, int64_t{4096}));
  width->add_option("--context", s.context, "tokens behind which one is decoded (default: the sequence)")->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  width->add_option("--prompt", s.prompt, "tokens of a prompt (default: half the sequence)")->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  width->add_option("-o,--output", o.output, "write a page with plots (.html), or everything (.json)");
  for (auto* action : {size, width}) add_sizing_flags(action, o);
}

void add_plan(CLI::App& app, PlanOptions& o) {
  auto* verb = app.add_subcommand("plan", "predict a run, here or on a cluster that is not at hand: memory, time, the layouts that take least of it, or every rank's step");
  verb->require_subcommand(1);
  auto* memory = verb->add_subcommand("memory", "of every pipeline stage's ranks, by category");
  auto* time = verb->add_subcommand("time", "of a step, by kind of work and of message");
  auto* search = verb->add_subcommand("search", "the ways of spreading a run over devices that take least time, and what each needs");
  search->add_option("--top", o.top, "how many layouts to show")->check(CLI::Range(int64_t{1}, int64_t{1000}))->capture_default_str();
  auto* simulate = verb->add_subcommand("simulate", "a step of all ranks as events, with slow, uneven and dead ones, and what failures leave of a run's time");
  simulate->add_option("--topology", o.topology, "of the network: flat, fat_tree or rails (rails only)")->check(CLI::IsMember({"flat", "fat_tree", "rails"}))->capture_default_str();
  simulate->add_option("--nodes-per-leaf", o.nodes_per_leaf, "nodes on a leaf switch; 0 = all")->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  simulate->add_option("--oversubscription", o.oversubscription, "of a leaf: bandwidth to its nodes over bandwidth to the spines")->check(CLI::Range(1.0, 1e6))->capture_default_str();
  simulate->add_option("--hop-us", o.hop_us, "microseconds of each switch beyond the first")->check(CLI::Range(0.0, 1e6));
  simulate->add_option("--jitter", o.jitter, "standard deviation of the logarithm of every pass's time on every rank")->check(CLI::Range(0.0, 2.0));
  simulate->add_option("--slow-share", o.slow_share, "share of ranks, drawn at random, that are slower by --slow-factor")->check(CLI::Range(0.0, 1.0));
  simulate->add_option("--slow-factor", o.slow_factor, "how many times as long they take")->check(CLI::Range(1.0, 1e6));
  simulate->add_option("--slow", o.slow, "RANK=FACTOR: this rank takes so many times as long; may be given several times")->allow_extra_args(false);
  simulate->add_option("--fail", o.fail, "RANK@MS: this rank dies so many milliseconds into the step; may be given several times")->allow_extra_args(false);
  simulate->add_option("--steps", o.steps, "steps, each with draws of its own")->check(CLI::Range(int64_t{1}, int64_t{100'000}))->capture_default_str();
  simulate->add_option("--seed", o.seed, "of the draws")->check(CLI::NonNegativeNumber);
  simulate->add_option("--save-every-s", o.save_every_s, "between checkpoints; 0 = whatever is best")->check(CLI::Range(0.0, 1e9));
  simulate->add_option("--save-stall-s", o.save_stall_s, "that a checkpoint keeps training waiting")->check(CLI::Range(0.0, 1e7))->capture_default_str();
  for (auto* action : {time, simulate}) {
    action->add_option("--mtbf-hours", o.mtbf_h, "between failures of one device; 0 = none fail (default 50,000: 419 interruptions of 16,384 H100 in 54 days, Llama 3, arXiv 2407.21783)")->check(CLI::Range(0.0, 1e12));
    action->add_option("--restart-s", o.restart_s, "from a failure until the run computes again, noticing it included")->check(CLI::Range(0.0, 1e7))->capture_default_str();
  }
  for (auto* action : {memory, time, search, simulate}) {
    action->add_option("config", o.config, "configuration (TOML)")->required();
    action->add_option("--cluster", o.cluster, "profile of a cluster, such as configs/clusters/h100-64.json (default: this machine)");
    action->add_option("--devices", o.devices, "how many of its devices, whole nodes; more than it has: as many more nodes (default: all); on this machine: ranks (default: what the configuration says; search tries all that share its cores out evenly)")->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
    action->add_option("--expert-load", o.expert_load, "where ranks share experts: rows of the busiest over the mean; 1 = even, as in most published benchmarks (default 1.2: balanced by a router)")->check(CLI::Range(1.0, 1e6));
    action->add_option("--memory-gb", o.memory_gb, "10^9 bytes of a device, instead of the profile's")->check(CLI::PositiveNumber);
    action->add_option("--set", o.set, "key=value over the configuration")->allow_extra_args(false);
    action->add_option("-o,--output", o.output, "write the JSON here, too");
    action->callback([&o, action] { o.action = action->get_name(); });
  }
  auto* trace = verb->add_subcommand("trace", "of one rank's step: operations, FLOPs, bytes, communication, and what lives at the peak, counted by the program itself");
  trace->add_option("config", o.config, "configuration (TOML)")->required();
  trace->add_option("--cluster", o.cluster, "profile of a cluster, such as configs/clusters/h100-64.json: its kernels and rates (default: this machine's kernels)");
  trace->add_option("--devices", o.devices, "ranks (default: all of the cluster; here what the configuration says)")->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  trace->add_option("--rank", o.trace.rank, "whose step")->check(CLI::NonNegativeNumber)->capture_default_str();
  trace->add_option("--phase", o.trace.phase, "of the recipe, from 0")->check(CLI::NonNegativeNumber)->capture_default_str();
  trace->add_option("--expert-load", o.trace.expert_load, "where ranks share experts: rows that this rank's are sent over the mean")->check(CLI::Range(1.0, 1e6))->capture_default_str();
  trace->add_option("--top", o.top, "how many kernels and names of memory to show")->check(CLI::Range(int64_t{1}, int64_t{1000}))->capture_default_str();
  trace->add_flag("--operations", o.trace.operations, "every operation with its shapes, in the JSON");
  trace->add_option("--chrome", o.trace.chrome, "write a time line for chrome://tracing or ui.perfetto.dev, at the cluster's rates");
  trace->add_option("--set", o.set, "key=value over the configuration")->allow_extra_args(false);
  trace->add_option("-o,--output", o.output, "write the JSON here, too");
  trace->callback([&o] { o.action = "trace"; });
  auto* errors = verb->add_subcommand("errors", "how far predictions were from what this machine's runs measured, raw and calibrated");
  errors->add_option("-o,--output", o.output, "write the JSON here, too");
  errors->callback([&o] { o.action = "errors"; });
  add_sizing(verb, o);
}

void add_text_flags(CLI::App* verb, DataOptions& o) {
  verb->add_option("inputs", o.inputs, "text or .jsonl files")->required();
  verb->add_option("--format", o.format, "auto (by the file's ending), text or jsonl")->check(CLI::IsMember({"auto", "text", "jsonl"}));
  verb->add_option("--split", o.split,
                   "what a document of plain text is: document-per-file, line, or paragraph (ends at a blank line; default)")
      ->check(CLI::IsMember({"document-per-file", "line", "paragraph"}));
  verb->add_option("--field", o.field, "member of a JSON line that holds the text");
  verb->add_flag("--skip-bad", o.skip_bad, "pass over malformed JSON lines and count them");
  verb->add_flag("--strict-utf8", o.strict_utf8, "stop at bytes that are not UTF-8 instead of replacing them");
}

void add_data(CLI::App& app, DataOptions& o) {
  auto* verb = app.add_subcommand("data", "tokenizers and token files");
  verb->require_subcommand(1);
  auto* train = verb->add_subcommand("train-tokenizer", "train a SentencePiece tokenizer with byte fallback on texts");
  add_text_flags(train, o);
  train->add_option("-o,--output", o.output, "folder for tokenizer.model and tokenizer.json")->required();
  train->add_option("--vocab-size", o.vocab_size, "number of tokens")->check(CLI::Range(int64_t{300}, int64_t{1} << 22));
  train->add_option("--type", o.type, "unigram or bpe")->check(CLI::IsMember({"unigram", "bpe"}));
  train->add_option("--coverage", o.coverage, "share of characters that get tokens of their own; the rest falls back to bytes")
      ->check(CLI::Range(0.9, 1.0));
  train->add_option("--max-sentences", o.max_sentences, "sentences to sample")->check(CLI::PositiveNumber);
  train->add_option("--max-bytes", o.max_bytes, "bytes to sample")->check(CLI::PositiveNumber);
  train->add_option("--symbol", o.symbols, "a text that is always one token; may be given several times")->allow_extra_args(false);
  train->add_option("--seed", o.seed, "of the sampling")->check(CLI::NonNegativeNumber);
  train->add_flag("--join-digits", o.join_digits, "numbers may be one token (default: every digit its own)");
  train->add_flag("--whitespace-pieces", o.whitespace_pieces, "runs of spaces may be one token, as code needs");
  auto* tokenize = verb->add_subcommand("tokenize", "texts to .bin/.idx (Megatron's format)");
  add_text_flags(tokenize, o);
  tokenize->add_option("-o,--output", o.output, "prefix of the .bin and .idx files")->required();
  tokenize->add_option("--tokenizer", o.tokenizer, "tokenizer file or folder")->required();
  tokenize->add_option("--threads", o.threads, "0 = all cores")->check(CLI::Range(int64_t{0}, int64_t{4096}));
  tokenize->add_flag("--no-eos", o.no_eos, "do not end every document with the tokenizer's eos");
  tokenize->add_flag("--bos", o.bos, "begin every document with the tokenizer's bos");
  auto* inspect = verb->add_subcommand("inspect", "what a .bin/.idx pair holds");
  inspect->add_option("inputs", o.inputs, "prefix of the .bin and .idx files")->required()->expected(1);
  inspect->add_option("--tokenizer", o.tokenizer, "show documents as text, and check that the ids fit");
  inspect->add_option("--samples", o.samples, "how many documents to show")->check(CLI::NonNegativeNumber);
  auto* give = verb->add_subcommand("export-tokenizer", "a tokenizer as Hugging Face's tokenizer.json");
  give->add_option("tokenizer", o.tokenizer, "tokenizer file or folder")->required();
  give->add_option("-o,--output", o.output, "folder to write")->required();
  for (auto* action : {train, tokenize, inspect, give}) action->callback([&o, action] { o.action = action->get_name(); });
}

void add_report(CLI::App& app, ReportOptions& o) {
  auto* verb = app.add_subcommand("report", "one self-contained HTML page about runs, a machine profile or two, collectives, or results of bench parallel");
  verb->add_option("inputs", o.inputs, "run directories; or one or two machine profiles and files of ingot bench collectives -o; or files of ingot bench parallel -o")->required();
  verb->add_option("-o,--output", o.output, "the page to write (default report.html in the first run directory, or FILE.html beside the first FILE.json)");
}

// CLI11 lists what it did not understand; the nearest known name helps more.
std::string advice(const CLI::App& app, const std::vector<std::string>& extras) {
  if (extras.empty()) return "";
  std::vector<std::string> known;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) known.push_back(verb->get_name());
  return base::did_you_mean(extras.front().substr(0, extras.front().find('=')), known);
}

const CLI::App* innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return at;
}

}  // namespace

std::optional<int> parse(int argc, const char* const* argv, Options& options) {
  CLI::App app{"ingot pretrains language models: it measures a machine, plans, trains, survives, and hands the model on.", "ingot"};
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return std::string("ingot: ") + error.what() + "\nRun '" + (failed->get_name() == "ingot" ? "ingot" : "ingot " + failed->get_name()) +
           " --help' for what it takes.\n";
  });
  add_train(app, options.train);
  add_launch(app, options.launch);
  add_generate(app, options.generate);
  add_data(app, options.data);
  add_checkpoint(app, options.checkpoint);
  add_bench(app, options.bench);
  add_plan(app, options.plan);
  add_verify(app, options.verify);
  app.add_subcommand("doctor", "what this machine can run, and what is missing")
      ->add_option("--ledgers", options.doctor.ledgers, "a run directory whose ranks lost each other: which one went astray first");
  add_report(app, options.report);
  // --json is understood by every verb, wherever it stands.
  const std::function<void(CLI::App*)> add_json = [&](CLI::App* verb) {
    verb->add_flag("--json", options.json, "one JSON document on standard output");
    for (auto* inner : verb->get_subcommands([](const CLI::App*) { return true; })) add_json(inner);
  };
  for (auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) add_json(verb);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& extra) {
    const auto* at = innermost(app);
    const auto unknown = at->remaining();
    std::cerr << "ingot: unknown " << (!unknown.empty() && unknown.front().starts_with("-") ? "option" : "argument") << " '"
              << (unknown.empty() ? "" : unknown.front()) << "'" << advice(*at, unknown) << "\n";
    return 2;
  } catch (const CLI::RequiredError& missing) {
    const auto* at = innermost(app);
    const auto unknown = at->remaining();
    const auto verb = at == &app ? std::string() : " " + at->get_name();
    if (unknown.empty()) std::cerr << "ingot: " << missing.what() << "; ingot" << verb << " --help says what there is\n";
    else std::cerr << "ingot: unknown argument '" << unknown.front() << "'" << advice(*at, unknown) << "\n";
    return 2;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.verb = app.get_subcommands().front()->get_name();
  return std::nullopt;
}

}  // namespace ingot::cli
