// What has been measured of one machine, with a fixed number of threads: the only thing that predictions are calibrated
// from. Values; `ingot bench` fills one, the cache keeps it, docs/prediction.md describes the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ingot::plan {

/// One GEMM [m, k] x [k, n] as layers call it: "forward" (x W^T), "grad_input" (g W) or "grad_weight" (g^T x, added
/// to fp32), with the conversions that the dtype needs. Or many at once: "batched" (`groups` GEMMs of these sizes in one call) or
/// "grouped" (those of as many experts, which share out the rows: m or, of grad_weight, k is their mean).
struct GemmRate {
  std::string dtype, kind = "plain", pass = "forward";  // kind: plain, batched or grouped
  int64_t m = 0, n = 0, k = 0;
  double flops_per_s = 0;  // of all groups together
  int64_t groups = 1;
  double imbalance = 1;  // of grouped ones: rows of the largest group over their mean
};

/// Causal attention of `batch` rows of `seq` tokens.
struct AttentionTime {
  std::string dtype;
  int64_t batch = 1, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double forward_s = 0, backward_s = 0;
  int64_t window = 0;  // keys that a query sees at most, its own included; 0: all before it
};

/// BabelStream's operations, read and write; bytes are those of one array, the rate counts every array moved (copy 2, scale 2, add 3,
/// triad 3, dot 2, read 1, write 1). They are of the profile's device; a GPU's host has host_copy, host_read and host_write. Copies between
/// the two count the bytes once.
struct MemoryRate {
  std::string operation;
  int64_t bytes = 0;
  double bytes_per_s = 0;
};

/// A kernel or small layer by the name of its operator (kernels/operator.h), on [rows, width] elements, `count` of them at once.
struct KernelTime {
  std::string name, dtype;
  int64_t rows = 0, width = 0, count = 1;
  double forward_s = 0, backward_s = 0;
  double forward_bytes = 0, backward_bytes = 0;  // that all operations of the measured call read and write; 0: of an older file
  double forward_flops = 0, backward_flops = 0;  // of its matmuls and own kernels
};

/// One call of a collective in groups of `ranks` of which `groups` were at work at once. Bytes as nccl-tests counts them: a rank's buffer
/// for all_reduce, broadcast, reduce, all_to_all and send_receive, what all ranks' make together for all_gather and reduce_scatter.
struct CollectiveTime {
  std::string operation, dtype, placement;  // placement: neighbours or strided (bench/collectives.h)
  int64_t ranks = 0, groups = 1, bytes = 0;
  double seconds = 0;
};

/// What `writers` threads at once did to files of a folder: bench/storage.h. Rates count until the last fsync, times are of single
/// operations.
struct StorageRate {
  std::string operation;    // sequential_write, sequential_read, random_write, random_read, create, open_read, unlink, checkpoint_write
  std::string folder_type;  // ext4, xfs, nfs4 …
  int64_t block_bytes = 0, writers = 1;
  bool direct = false;  // past the page cache
  double bytes_per_s = 0, operations_per_s = 0;
  double p50_s = 0, p99_s = 0;
};

/// A plain GEMM (GemmRate's sizes) by one of the libraries of kernels/gemm_backend.h, which were measured by turns: the median and the
/// middle half of its rates.
struct GemmBackendRate {
  std::string dtype, library, pass = "forward";
  int64_t m = 0, n = 0, k = 0;
  double flops_per_s = 0, low_flops_per_s = 0, high_flops_per_s = 0;
};

/// What work of a kind (base/work_kind.h) took within training steps, and what the rest of the profile gives for these, the messages of
/// several ranks included: sums over the models of bench/step_probe.h, seconds a step.
struct WithinSteps {
  std::string dtype, kind;
  double measured_s = 0, predicted_s = 0;
};

struct MachineProfile {
  static constexpr int64_t kVersion = 4, kOldestVersion = 2;

  std::string host, cpu, device = "cpu", torch, program, date;  // program: stamp of the build that measured; date: ISO 8601, UTC
  int64_t cores = 0, threads = 0;
  int64_t ranks = 1;  // processes of the machine that measured side by side, each with `threads` threads
  bool quick = false;
  double foreign_load = 0;  // share of the machine's cores that others used meanwhile
  std::vector<std::string> commands;
  std::vector<GemmRate> gemm;
  std::vector<AttentionTime> attention;
  std::vector<MemoryRate> memory;
  std::vector<KernelTime> kernels;
  std::vector<CollectiveTime> collectives;
  std::vector<StorageRate> storage;
  std::vector<GemmBackendRate> libraries;  // of ingot bench gemm --libraries, and of bench all on a GPU
  std::vector<WithinSteps> within_steps;
  double operation_s = 0;  // of a linear layer too small to have other costs, forward and backward

  /// The best measured rate of a dtype's plain GEMMs, FLOP/s: the denominator of MFU. 0 when none was measured.
  double peak_gemm(const std::string& dtype) const;

  std::string to_json() const;
  /// Throws ProfileError naming `origin`, the member and what it should be.
  static MachineProfile from_json(const std::string& text, const std::string& origin);
};

/// This machine with `ranks` processes of `threads` threads, nothing measured yet. device: "cpu" or "cuda:0".
MachineProfile describe_machine(int64_t threads, int64_t ranks, const std::string& device);

/// <folder>/profile-<host>-<hash of CPU and device>-<threads>[x<ranks>].json
std::filesystem::path profile_path(const std::filesystem::path& folder, const MachineProfile& machine);

/// Throws ProfileError or FileError.
MachineProfile read_profile(const std::filesystem::path& path);
void write_profile(const std::filesystem::path& path, const MachineProfile& profile);

/// What the cache holds for this machine; nothing when there is none, when it is broken (which is logged), or when another
/// build of the program measured it.
std::optional<MachineProfile> cached_profile(const MachineProfile& machine, const std::filesystem::path& folder);

}  // namespace ingot::plan
