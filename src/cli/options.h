// Every verb's options, as the command line gives them. Plain values, free of torch: the front program parses them and only
// then loads the library that computes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ingot::cli {

struct TrainOptions {
  std::string config;
  std::vector<std::string> set;
  std::string run_dir, resume = "auto";
  bool dry_run = false, settings_help = false, markdown = false;
};

struct GenerateOptions {
  std::string model, prompt, tokenizer, dtype = "fp32";
  int64_t tokens = 100, top_k = 0, seed = 0;
  double temperature = 0, top_p = 1;
};

struct VerifyOptions {
  std::string kind;  // model, op, trajectory
  std::string target, fixture, dtype = "", device = "cpu";
  std::optional<double> rtol, atol;
  std::vector<std::string> set;
};

struct CheckpointOptions {
  std::string action;  // inspect, verify, diff, prune, export-hf, import-hf, import-dcp, export-dcp
  std::string path, other, output, dtype = "bf16", tokenizer, extra;
  int64_t keep = 0, keep_every = 0, rows = 20;
  int64_t step = 0;
  double shard_gb = 5, atol = 0, chunk_mib = 64, file_mib = 4096;
  bool dry_run = false, skip_foreign = false;
};

struct BenchOptions {
  std::string kind;  // gemm, memory, attention, storage, iteration, collectives, parallel, all
  std::string output, dtype = "all";
  bool quick = false;
  std::vector<int> side_by_side;  // of all: so many ranks measure at the same time, too
  // Of gemm, attention and memory: lists of counts, such as 4K; empty ones: the usual.
  std::vector<std::string> m, n, k, kinds, passes, groups;
  std::vector<double> busiest;
  bool libraries = false;
  std::vector<std::string> seq, head_counts, kv_head_counts, head_dims, windows, batches, sizes;
  // Of parallel; empty lists: all, or the usual ones.
  std::vector<std::string> methods, layers, lengths;
  std::vector<int> ranks = {2};
  int64_t hidden = 512, heads = 8, kv_heads = 8, head_dim = 0, ffn = 2048, batch = 1, repeats = 5;
  std::string pass = "both", backend = "threads", cluster, published, as_rank;
  double latency_us = 0, bandwidth_gb = 0;  // of an artificially slow wire
  // Of collectives, by nccl-tests' names.
  std::vector<std::string> operations, placements;
  std::vector<int> group_sizes;
  std::string min_bytes = "8", max_bytes = "64M", step_bytes = "0";
  double step_factor = 2;
  int iterations = 20, warmup = 5, check = 1, root = 0, average = 1;
  bool per_iteration = false;
  // Of all --check and verdict.
  bool judge = false, slurm = false;
  std::string target, floors, baseline, device_name, verdicts, expect, pass_list, fail_list;
  double tolerance = 10, max_age_hours = 24, outlier = 10;
  // Of storage and iteration.
  std::string folder = ".", size, config;
  std::vector<int> writers;
  std::vector<std::string> blocks, set;
  double seconds = 0, step_s = 0;
  int64_t document_tokens = 1000;
  int64_t steps = 5;
  bool random_data = false;
};

// Of plan size and plan moe-width; counts as text, such as 8B or 1e21.
struct SizingOptions {
  std::string profile, dtype, family = "dense", equal = "flops";
  std::string params, active, flops, tokens, batch_tokens;
  std::vector<int64_t> experts, top_k;
  int64_t seq = 0, vocab = 0, multiple = 0, hidden = 0, layers = 0, context = 0, prompt = 0;
  double share = 0.9;
  bool no_probe = false;
};

struct TraceOptions {
  int64_t rank = 0, phase = 0;
  double expert_load = 1;
  bool operations = false;
  std::string chrome;
};

struct PlanOptions {
  std::string action;  // memory, time, search, simulate, trace, errors, size, moe-width
  std::string config, cluster, output;
  std::vector<std::string> set;
  int64_t devices = 0, top = 10;
  double memory_gb = 0;
  // Of simulate.
  std::string topology = "flat";
  int64_t nodes_per_leaf = 0, steps = 1, seed = 0;
  double oversubscription = 1, hop_us = 0, jitter = 0, slow_share = 0, slow_factor = 1;
  std::vector<std::string> slow, fail;
  double expert_load = 1.2;
  double mtbf_h = 50000, restart_s = 300, save_every_s = 0, save_stall_s = 0.1;
  SizingOptions sizing;
  TraceOptions trace;
};

struct DataOptions {
  std::string action;  // train-tokenizer, tokenize, inspect, export-tokenizer
  std::vector<std::string> inputs, symbols;
  std::string output, tokenizer, format = "auto", split = "paragraph", field = "text", type = "unigram";
  int64_t vocab_size = 8192, threads = 0, samples = 3, seed = 0, max_sentences = 1'000'000, max_bytes = int64_t{64} << 20;
  double coverage = 0.9995;
  bool skip_bad = false, strict_utf8 = false, join_digits = false, whitespace_pieces = false, no_eos = false, bos = false;
};

struct DoctorOptions {
  std::string ledgers;
};

struct LaunchOptions {
  int64_t ranks = 1, nnodes = 1, node_rank = 0, max_restarts = 0;
  std::string rendezvous;
  double grace_s = 10, rendezvous_timeout_s = 300;
  std::vector<std::string> command;
};

struct ReportOptions {
  std::vector<std::string> inputs;
  std::string output;
};

struct Options {
  std::string verb;
  bool json = false;
  TrainOptions train;
  GenerateOptions generate;
  VerifyOptions verify;
  CheckpointOptions checkpoint;
  BenchOptions bench;
  PlanOptions plan;
  DataOptions data;
  ReportOptions report;
  LaunchOptions launch;
  DoctorOptions doctor;
};

/// Fills `options` from the command line. A value is the exit status of a call that is already answered (--help, --version,
/// a usage error, which has then been printed).
std::optional<int> parse(int argc, const char* const* argv, Options& options);

}  // namespace ingot::cli
