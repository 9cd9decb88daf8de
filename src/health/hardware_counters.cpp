#include "health/hardware_counters.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

namespace ingot::health {
namespace {

namespace fs = std::filesystem;

struct Kind {
  Counted counted;
  const char *name, *words;
  Effect effect;
  bool is_flag, rises;
};

constexpr Kind kKinds[] = {
    {Counted::memory_corrected, "memory_corrected", "corrected memory errors", Effect::slows, false, true},
    {Counted::memory_uncorrected, "memory_uncorrected", "uncorrected memory errors", Effect::corrupts, false, true},
    {Counted::memory_repairs, "memory_repairs", "rows of memory to be replaced", Effect::corrupts, true, true},
    {Counted::throttled, "throttled", "times throttled for heat", Effect::slows, false, true},
    {Counted::throttled_now, "throttled_now", "throttled for heat or power", Effect::slows, true, true},
    {Counted::pcie_corrected, "pcie_corrected", "corrected PCIe errors", Effect::slows, false, true},
    {Counted::pcie_uncorrected, "pcie_uncorrected", "uncorrected PCIe errors", Effect::corrupts, false, true},
    {Counted::link_errors, "link_errors", "link errors", Effect::slows, false, true},
    {Counted::link_downed, "link_downed", "times that a link went down", Effect::slows, false, true},
    {Counted::memory_kills, "memory_kills", "processes killed since memory was short", Effect::explains, false, true},
    {Counted::celsius, "celsius", "degrees Celsius", Effect::slows, false, false},
    {Counted::foreign_cores, "foreign_cores", "cores that others use", Effect::slows, false, false},
};

const Kind& kind_of(Counted counted) { return kKinds[static_cast<size_t>(counted)]; }

std::string first_line(const fs::path& path) {
  std::string text;
  std::getline(std::ifstream(path), text);
  return text;
}

// Numbers of files, sums of them, and lines "name number". A file of a driver may go, or refuse, at any time.
std::optional<double> number_in(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}
std::optional<double> number_at(const fs::path& path) { return number_in(first_line(path)); }

std::optional<double> number_beside(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name) && line.size() > name.size() && (line[name.size()] == ' ' || line[name.size()] == ':'))
      return number_in(std::string_view(line).substr(name.size() + 1));
  return std::nullopt;
}

void add_to(std::optional<double>& sum, std::optional<double> value) {
  if (value) sum = sum.value_or(0) + *value;
}

std::vector<fs::path> entries(const fs::path& folder, std::string_view prefix = "") {
  std::vector<fs::path> found;
  std::error_code none;
  for (fs::directory_iterator each(folder, none), end; !none && each != end; each.increment(none))
    if (each->path().filename().string().starts_with(prefix)) found.push_back(each->path());
  std::sort(found.begin(), found.end());
  return found;
}

struct Reader {
  fs::path root;
  HardwareReading reading;

  bool add(Counted counted, const std::string& part, std::optional<double> value) {
    if (value) reading.counters.push_back({counted, part, *value});
    return value.has_value();
  }
  void missing(const char* what, const char* where) { reading.absent.push_back(fmt::format("{}: no {}", what, where)); }

  void memory() {
    bool any = false;
    for (const auto& controller : entries(root / "sys/devices/system/edac/mc", "mc")) {
      const auto part = controller.filename().string();
      any |= add(Counted::memory_corrected, part, number_at(controller / "ce_count"));
      any |= add(Counted::memory_uncorrected, part, number_at(controller / "ue_count"));
    }
    if (!any) missing("memory errors", "/sys/devices/system/edac/mc/mc*");
  }

  void throttling() {
    std::optional<double> of_cores, of_packages;
    for (const auto& cpu : entries(root / "sys/devices/system/cpu", "cpu")) {
      add_to(of_cores, number_at(cpu / "thermal_throttle/core_throttle_count"));
      if (const auto value = number_at(cpu / "thermal_throttle/package_throttle_count"))
        of_packages = std::max(of_packages.value_or(0), *value);  // each core of a package has its number
    }
    add_to(of_cores, of_packages);
    if (!add(Counted::throttled, "the CPU", of_cores)) missing("throttling of the CPU", "/sys/devices/system/cpu/cpu*/thermal_throttle");
  }

  void heat() {
    bool any = false;
    for (const auto& chip : entries(root / "sys/class/hwmon")) {
      std::optional<double> hottest;
      for (const auto& sensor : entries(chip, "temp"))
        if (sensor.filename().string().ends_with("_input"))
          if (const auto value = number_at(sensor)) hottest = std::max(hottest.value_or(-273), *value / 1000);
      const auto name = first_line(chip / "name");
      any |= add(Counted::celsius, fmt::format("{} ({})", name.empty() ? "?" : name, chip.filename().string()), hottest);
    }
    if (!any) missing("temperatures", "/sys/class/hwmon/*/temp*_input");
  }

  void links() {
    bool any = false;
    for (const auto& device : entries(root / "sys/class/infiniband"))
      for (const auto& port : entries(device / "ports")) {
        const auto part = device.filename().string() + "/" + port.filename().string();
        std::optional<double> errors;
        for (const char* name : {"symbol_error", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors",
                                 "excessive_buffer_overrun_errors", "port_xmit_discards"})
          add_to(errors, number_at(port / "counters" / name));
        any |= add(Counted::link_errors, part, errors);
        add(Counted::link_downed, part, number_at(port / "counters/link_downed"));
      }
    for (const auto& interface : entries(root / "sys/class/net")) {
      std::error_code none;
      if (!fs::exists(interface / "device", none)) continue;  // it is one of software
      std::optional<double> errors;
      for (const char* name : {"rx_errors", "tx_errors"}) add_to(errors, number_at(interface / "statistics" / name));
      any |= add(Counted::link_errors, interface.filename().string(), errors);
    }
    if (!any) missing("link errors", "/sys/class/infiniband, and no network device in /sys/class/net");
  }

  void pcie() {
    std::optional<double> corrected, uncorrected;
    for (const auto& device : entries(root / "sys/bus/pci/devices")) {
      add_to(corrected, number_beside(device / "aer_dev_correctable", "TOTAL_ERR_COR"));
      add_to(uncorrected, number_beside(device / "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"));
      add_to(uncorrected, number_beside(device / "aer_dev_fatal", "TOTAL_ERR_FATAL"));
    }
    const bool any = add(Counted::pcie_corrected, "", corrected) | add(Counted::pcie_uncorrected, "", uncorrected);
    if (!any) missing("PCIe errors", "/sys/bus/pci/devices/*/aer_dev_*");
  }

  // Of the control group, if the kernel counts by group: a machine's other tenants are no cause of ours.
  void kills() {
    const auto group = first_line(root / "proc/self/cgroup");  // 0::/user.slice
    std::optional<double> value;
    if (group.starts_with("0::/")) value = number_beside(root / "sys/fs/cgroup" / fs::path(group.substr(4)) / "memory.events", "oom_kill");
    if (!value) value = number_beside(root / "proc/vmstat", "oom_kill");
    if (!add(Counted::memory_kills, "", value)) missing("processes killed for their memory", "oom_kill in /proc/vmstat");
  }

  // AMD's driver has a folder "ras" for each GPU: of each block a file with "ue: 0" and "ce: 0". Their heat is in hwmon.
  void amd_gpus() {
    for (const auto& card : entries(root / "sys/class/drm", "card")) {
      if (card.filename().string().find('-') != std::string::npos || first_line(card / "device/vendor") != "0x1002") continue;
      std::optional<double> corrected, uncorrected;
      for (const auto& block : entries(card / "device/ras")) {
        if (!block.filename().string().ends_with("_err_count")) continue;
        add_to(corrected, number_beside(block, "ce"));
        add_to(uncorrected, number_beside(block, "ue"));
      }
      const auto part = "GPU " + card.filename().string();
      const bool any = add(Counted::memory_corrected, part, corrected) | add(Counted::memory_uncorrected, part, uncorrected);
      if (!any) reading.absent.push_back(fmt::format("memory errors of {}: no device/ras/*_err_count", part));
    }
  }
};

}  // namespace

const char* name_of(Counted counted) { return kind_of(counted).name; }
const char* words_for(Counted counted) { return kind_of(counted).words; }

void HardwareReading::append(HardwareReading other) {
  std::move(other.counters.begin(), other.counters.end(), std::back_inserter(counters));
  std::move(other.absent.begin(), other.absent.end(), std::back_inserter(absent));
}

HardwareReading read_system_counters(const std::string& root) {
  Reader reader{root, {}};
  reader.memory();
  reader.throttling();
  reader.heat();
  reader.links();
  reader.pcie();
  reader.kills();
  reader.amd_gpus();
  return std::move(reader.reading);
}

// -- NVML (NVIDIA Management Library, its API reference) ---------------------------------------------------------------------------

struct GpuCounters::Nvml {
  using Device = void*;
  static constexpr int kSuccess = 0, kCorrected = 0, kUncorrected = 1, kVolatile = 0, kGpuSensor = 0;
  // clocksThrottleReason: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown
  static constexpr unsigned long long kHeatOrPower = 0x8 | 0x20 | 0x40 | 0x80;
  static constexpr unsigned kMostLinks = 18, kLinkErrors = 4;  // replay, recovery, CRC of flits, CRC of data

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shut_down)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*ecc)(Device, int, int, unsigned long long*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*throttle)(Device, unsigned long long*) = nullptr;
  int (*remapped)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*link_errors)(Device, unsigned, int, unsigned long long*) = nullptr;

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
  // "", or what is wrong with the library. What an older one has not is absent.
  std::string open(const char* name) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fmt::format("no {}", name);
    if (!find(init, "nvmlInit_v2") || !find(shut_down, "nvmlShutdown") || !find(count, "nvmlDeviceGetCount_v2") ||
        !find(device, "nvmlDeviceGetHandleByIndex_v2"))
      return fmt::format("{} is not NVML", name);
    find(ecc, "nvmlDeviceGetTotalEccErrors");
    find(temperature, "nvmlDeviceGetTemperature");
    find(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(remapped, "nvmlDeviceGetRemappedRows");
    find(link_errors, "nvmlDeviceGetNvLinkErrorCounter");
    if (const int status = init(); status != kSuccess) return fmt::format("nvmlInit_v2 of {} answers {}", name, status);
    is_open = true;
    return "";
  }
  ~Nvml() {
    if (is_open) shut_down();
    if (library) dlclose(library);
  }
  bool is_open = false;

  void read_device(Device of, const std::string& part, HardwareReading& reading) const {
    const auto absent = [&](const char* what, const char* function) {
      reading.absent.push_back(fmt::format("{} of {}: {} does not say", what, part, function));
    };
    unsigned long long value = 0;
    for (const auto& [kind, counted] : {std::pair{kCorrected, Counted::memory_corrected}, {kUncorrected, Counted::memory_uncorrected}}) {
      if (ecc && ecc(of, kind, kVolatile, &value) == kSuccess) reading.counters.push_back({counted, part, static_cast<double>(value)});
      else if (kind == kUncorrected) absent("memory errors", "nvmlDeviceGetTotalEccErrors");
    }
    if (throttle && throttle(of, &value) == kSuccess)
      reading.counters.push_back({Counted::throttled_now, part, (value & kHeatOrPower) != 0 ? 1.0 : 0.0});
    else absent("throttling", "nvmlDeviceGetCurrentClocksThrottleReasons");
    if (unsigned celsius = 0; temperature && temperature(of, kGpuSensor, &celsius) == kSuccess)
      reading.counters.push_back({Counted::celsius, part, static_cast<double>(celsius)});
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (remapped && remapped(of, &corrected, &uncorrected, &pending, &failed) == kSuccess)
      reading.counters.push_back({Counted::memory_repairs, part, pending != 0 || failed != 0 ? 1.0 : 0.0});
    std::optional<double> errors;
    for (unsigned link = 0; link_errors && link < kMostLinks; ++link)
      for (unsigned which = 0; which < kLinkErrors; ++which)
        if (link_errors(of, link, static_cast<int>(which), &value) == kSuccess) add_to(errors, static_cast<double>(value));
    if (errors) reading.counters.push_back({Counted::link_errors, part, *errors});
  }
};

GpuCounters::GpuCounters(const char* library) : nvml_(std::make_unique<Nvml>()) { problem_ = nvml_->open(library); }
GpuCounters::~GpuCounters() = default;

HardwareReading GpuCounters::read() const {
  HardwareReading reading;
  unsigned count = 0;
  if (problem_.empty() && nvml_->count(&count) == Nvml::kSuccess) {
    for (unsigned i = 0; i < count; ++i) {
      const auto part = fmt::format("GPU {}", i);
      if (Nvml::Device device = nullptr; nvml_->device(i, &device) == Nvml::kSuccess) nvml_->read_device(device, part, reading);
      else reading.absent.push_back(part + ": it has fallen off the bus, or its driver does not answer for it");
    }
  } else {
    reading.absent.push_back("NVIDIA GPUs: " + (problem_.empty() ? "nvmlDeviceGetCount_v2 fails" : problem_));
  }
  return reading;
}

// -- judging -----------------------------------------------------------------------------------------------------------------------

std::vector<HardwareFinding> rises(const HardwareReading& before, const HardwareReading& now) {
  std::vector<HardwareFinding> found;
  for (const auto& counter : now.counters) {
    const auto& kind = kind_of(counter.counted);
    if (!kind.rises) continue;
    const auto old = std::find_if(before.counters.begin(), before.counters.end(),
                                  [&](const auto& c) { return c.counted == counter.counted && c.part == counter.part; });
    if (old == before.counters.end() || counter.value <= old->value) continue;
    const auto of_part = counter.part.empty() ? "" : " of " + counter.part;
    found.push_back({kind.effect, counter.counted,
                     kind.is_flag ? fmt::format("{}: {}", counter.part, kind.words)
                                  : fmt::format("{:.0f} {}{}", counter.value - old->value, kind.words, of_part)});
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.effect > b.effect; });
  return found;
}

std::vector<std::string> reasons_against(const HardwareReading& reading) {
  std::vector<std::string> reasons;
  for (const auto& counter : reading.counters) {
    if (counter.value <= 0) continue;
    if (counter.counted == Counted::memory_uncorrected)
      reasons.push_back(fmt::format("{:.0f} {} of {} since its driver was loaded: test or replace it", counter.value,
                                    words_for(counter.counted), counter.part));
    if (counter.counted == Counted::memory_repairs)
      reasons.push_back(fmt::format("{} has rows of memory to be replaced: reset it", counter.part));
  }
  return reasons;
}

}  // namespace ingot::health
