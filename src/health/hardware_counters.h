// What a machine itself counts of its faults: memory errors, throttling, errors of links, processes killed for their memory. From sysfs and
// procfs, of AMD GPUs, too; of NVIDIA GPUs through their driver's NVML, loaded at run time. What cannot be read is absent, and said; it is
// not zero. Free of torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::health {

enum class Counted : uint8_t {
  memory_corrected,    // errors of memory, of the host or a GPU, since its driver was loaded
  memory_uncorrected,  //
  memory_repairs,      // 1: a GPU has rows of memory to be replaced, which needs a reset
  throttled,           // times that a CPU's clock was lowered for its heat
  throttled_now,       // 1: a GPU's clock is lowered now, for heat or by the machine's power brake
  pcie_corrected,      // errors of a device's PCIe link, all devices together
  pcie_uncorrected,    //
  link_errors,         // of InfiniBand, NVLink, or a network interface: symbols, replays, packets
  link_downed,         // times that an InfiniBand link went down
  memory_kills,        // processes that the kernel ended since memory was short
  celsius,             // the hottest sensor of a part
  foreign_cores,       // how many cores others than the job use, hypervisors included (resilience/hardware_watch.h)
};
/// "memory_corrected" …; the words that people read: "corrected memory errors" …
const char* name_of(Counted counted);
const char* words_for(Counted counted);

struct HardwareCounter {
  Counted counted{};
  std::string part;  // "mc0", "GPU 1", "mlx5_0/1", "eth0"; "" of the machine as a whole
  double value = 0;
};

struct HardwareReading {
  std::vector<HardwareCounter> counters;
  std::vector<std::string> absent;  // "memory errors: no /sys/devices/system/edac/mc/mc*"

  void append(HardwareReading other);
};

/// Of files under `root`/sys and `root`/proc alone: some milliseconds. Throws nothing.
HardwareReading read_system_counters(const std::string& root = "/");

/// Through a library with NVML's interface, for as long as it lives. A call takes milliseconds, or as long as a broken driver makes it.
class GpuCounters {
 public:
  explicit GpuCounters(const char* library = "libnvidia-ml.so.1");
  ~GpuCounters();
  GpuCounters(const GpuCounters&) = delete;
  HardwareReading read() const;

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
  std::string problem_;
};

/// What a change of a counter means for a run.
enum class Effect : uint8_t {
  explains,  // why a process has gone
  slows,     // or announces worse
  corrupts,  // numbers of this machine cannot be trusted
};

struct HardwareFinding {
  Effect effect{};
  Counted counted{};
  std::string what;  // "3 uncorrected memory errors of mc0"
};

/// What has risen since, the worst first; of flags (throttled_now, memory_repairs) those that were set since. A part that was not there
/// before has not risen.
std::vector<HardwareFinding> rises(const HardwareReading& before, const HardwareReading& now);

/// Why this machine should not compute, whatever it measures: "GPU 1 has rows of memory to be replaced: reset it". Of one reading.
std::vector<std::string> reasons_against(const HardwareReading& reading);

}  // namespace ingot::health
