// What a node must reach, as data: configs/floors has a file for each device, each number with its source. The files travel in the
// program. Free of torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ingot::health {

/// One number and the share of it that a node must reach.
struct Floor {
  enum class What { gemm, memory, collective, transfer };
  What what = What::gemm;
  std::string dtype, operation;  // of GEMMs; of memory, collectives and transfers
  int64_t ranks = 0;             // of a collective's group; 0: any
  double least = 0;              // smaller measurements do not count: FLOPs of a GEMM, bytes of an array or message
  double published = 0, fraction = 1;
  std::string source;

  double value() const { return published * fraction; }
  /// "bf16 GEMM", "triad", "all_reduce of 8 ranks", "host to device"
  std::string name() const;
  const char* unit() const { return what == What::gemm ? "FLOP/s" : "B/s"; }
};

struct FloorFile {
  std::string name;                  // of the device, for people
  std::vector<std::string> devices;  // what a device's name must contain one of, upper and lower case alike
  std::vector<Floor> floors;

  bool is_for(const std::string& device) const;
};

/// Throws ProfileError naming `origin`, the member and what it should be.
FloorFile parse_floors(const std::string& text, const std::string& origin);

/// Texts of configs/floors/*.json.
std::vector<std::string> shipped_floor_files();

/// The shipped one for a device's name, such as "NVIDIA H100 80GB HBM3".
std::optional<FloorFile> shipped_floors(const std::string& device);

/// The first GPU's name as the driver gives it under `root`/proc and `root`/sys; "" where there is none.
std::string accelerator_name(const std::string& root = "/");

}  // namespace ingot::health
