#include "health/hardware_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class HardwareCounters : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("ingot-counters-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HardwareReading read() const { return read_system_counters(root_.string()); }
  static std::optional<double> value(const HardwareReading& reading, Counted counted, const std::string& part) {
    for (const auto& counter : reading.counters)
      if (counter.counted == counted && counter.part == part) return counter.value;
    return std::nullopt;
  }

  fs::path root_;
};

TEST_F(HardwareCounters, of_a_machine_that_has_none_are_said_to_be_absent) {
  const auto reading = read();
  EXPECT_TRUE(reading.counters.empty());
  ASSERT_EQ(reading.absent.size(), 6U);
  EXPECT_EQ(reading.absent[0], "memory errors: no /sys/devices/system/edac/mc/mc*");
  EXPECT_EQ(reading.absent[5], "processes killed for their memory: no oom_kill in /proc/vmstat");
}

TEST_F(HardwareCounters, are_read_where_the_kernel_puts_them) {
  write("sys/devices/system/edac/mc/mc0/ce_count", "12\n");
  write("sys/devices/system/edac/mc/mc0/ue_count", "1\n");
  for (int i = 0; i < 3; ++i) {
    const auto cpu = "sys/devices/system/cpu/cpu" + std::to_string(i) + "/thermal_throttle/";
    write(cpu + "core_throttle_count", std::to_string(i));
    write(cpu + "package_throttle_count", "5");  // of a package that all three are of
  }
  write("sys/class/hwmon/hwmon0/name", "k10temp\n");
  write("sys/class/hwmon/hwmon0/temp1_input", "71500\n");
  write("sys/class/hwmon/hwmon0/temp2_input", "64000\n");
  write("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "3\n");
  write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors", "4\n");
  write("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "2\n");
  write("sys/class/net/eth0/device/vendor", "");
  write("sys/class/net/eth0/statistics/rx_errors", "8\n");
  write("sys/class/net/veth1/statistics/rx_errors", "9\n");  // of software
  write("sys/bus/pci/devices/0000:01:00.0/aer_dev_correctable", "RxErr 1\nBadTLP 2\nTOTAL_ERR_COR 3\n");
  write("sys/bus/pci/devices/0000:01:00.0/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 1\n");
  write("sys/bus/pci/devices/0000:02:00.0/aer_dev_fatal", "TOTAL_ERR_FATAL 1\n");
  write("proc/vmstat", "nr_free_pages 17\noom_kill 6\n");
  write("sys/class/drm/card0/device/vendor", "0x1002\n");
  write("sys/class/drm/card0/device/ras/umc_err_count", "ue: 1\nce: 20\n");
  write("sys/class/drm/card0/device/ras/gfx_err_count", "ue: 0\nce: 2\n");
  write("sys/class/drm/card0-HDMI-1/device/vendor", "0x1002\n");
  const auto reading = read();
  EXPECT_EQ(value(reading, Counted::memory_corrected, "mc0"), 12);
  EXPECT_EQ(value(reading, Counted::memory_uncorrected, "mc0"), 1);
  EXPECT_EQ(value(reading, Counted::throttled, "the CPU"), 0 + 1 + 2 + 5);
  EXPECT_EQ(value(reading, Counted::celsius, "k10temp (hwmon0)"), 71.5);
  EXPECT_EQ(value(reading, Counted::link_errors, "mlx5_0/1"), 7);
  EXPECT_EQ(value(reading, Counted::link_downed, "mlx5_0/1"), 2);
  EXPECT_EQ(value(reading, Counted::link_errors, "eth0"), 8);
  EXPECT_EQ(value(reading, Counted::link_errors, "veth1"), std::nullopt);
  EXPECT_EQ(value(reading, Counted::pcie_corrected, ""), 3);
  EXPECT_EQ(value(reading, Counted::pcie_uncorrected, ""), 2);
  EXPECT_EQ(value(reading, Counted::memory_kills, ""), 6);
  EXPECT_EQ(value(reading, Counted::memory_corrected, "GPU card0"), 22);
  EXPECT_EQ(value(reading, Counted::memory_uncorrected, "GPU card0"), 1);
  EXPECT_TRUE(reading.absent.empty()) << reading.absent.front();
  EXPECT_THAT(reasons_against(reading), ElementsAre(HasSubstr("1 uncorrected memory errors of mc0"), HasSubstr("of GPU card0")));
}

TEST_F(HardwareCounters, kills_are_those_of_the_own_group_where_the_kernel_counts_by_group) {
  write("proc/vmstat", "oom_kill 6\n");
  write("proc/self/cgroup", "0::/jobs/7\n");
  EXPECT_EQ(value(read(), Counted::memory_kills, ""), 6);
  write("sys/fs/cgroup/jobs/7/memory.events", "low 0\noom 1\noom_kill 1\noom_group_kill 0\n");
  EXPECT_EQ(value(read(), Counted::memory_kills, ""), 1);
}

TEST_F(HardwareCounters, that_hold_no_number_are_absent) {
  write("sys/devices/system/edac/mc/mc0/ce_count", "broken\n");
  write("sys/devices/system/edac/mc/mc1/ue_count", "");
  fs::create_directories(root_ / "sys/class/hwmon/hwmon0/temp1_input");
  write("proc/vmstat", "oom_killer 6\n");
  const auto reading = read();
  EXPECT_TRUE(reading.counters.empty());
  EXPECT_EQ(reading.absent.size(), 6U);
}

TEST_F(HardwareCounters, that_rise_are_findings_the_worst_first) {
  write("proc/vmstat", "oom_kill 6\n");
  write("sys/devices/system/edac/mc/mc0/ue_count", "1\n");
  write("sys/devices/system/edac/mc/mc0/ce_count", "1\n");
  const auto before = read();
  EXPECT_TRUE(rises(before, read()).empty());
  write("proc/vmstat", "oom_kill 7\n");
  write("sys/devices/system/edac/mc/mc0/ue_count", "4\n");
  write("sys/devices/system/edac/mc/mc0/ce_count", "0\n");    // its driver was loaded anew
  write("sys/devices/system/edac/mc/mc1/ue_count", "100\n");  // and one more
  const auto found = rises(before, read());
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].what, "3 uncorrected memory errors of mc0");
  EXPECT_EQ(found[0].effect, Effect::corrupts);
  EXPECT_EQ(found[1].what, "1 processes killed since memory was short");
  EXPECT_EQ(found[1].effect, Effect::explains);
}

TEST_F(HardwareCounters, of_nvidia_gpus_come_from_their_drivers_library) {
  const GpuCounters gpus(INGOT_FAKE_NVML);
  const auto reading = gpus.read();
  EXPECT_EQ(value(reading, Counted::memory_uncorrected, "GPU 0"), 0);
  EXPECT_EQ(value(reading, Counted::memory_uncorrected, "GPU 1"), 2);
  EXPECT_EQ(value(reading, Counted::memory_corrected, "GPU 1"), 40);
  EXPECT_EQ(value(reading, Counted::celsius, "GPU 1"), 91);
  EXPECT_EQ(value(reading, Counted::throttled_now, "GPU 0"), 0);  // at the power cap that somebody has set
  EXPECT_EQ(value(reading, Counted::throttled_now, "GPU 1"), 1);
  EXPECT_EQ(value(reading, Counted::link_errors, "GPU 0"), 7);
  EXPECT_EQ(value(reading, Counted::link_errors, "GPU 1"), std::nullopt);
  EXPECT_THAT(reading.absent, ElementsAre(HasSubstr("GPU 2: it has fallen off the bus")));
  EXPECT_THAT(reasons_against(reading),
              ElementsAre(HasSubstr("2 uncorrected memory errors of GPU 1"), HasSubstr("GPU 1 has rows of memory")));
}

TEST_F(HardwareCounters, of_a_driver_that_is_missing_broken_or_none_are_absent) {
  EXPECT_THAT(GpuCounters("libnothing.so.1").read().absent, ElementsAre("NVIDIA GPUs: no libnothing.so.1"));
  EXPECT_THAT(GpuCounters("libc.so.6").read().absent, ElementsAre("NVIDIA GPUs: libc.so.6 is not NVML"));
  setenv("FAKE_NVML_BROKEN", "1", 1);
  EXPECT_THAT(GpuCounters(INGOT_FAKE_NVML).read().absent, ElementsAre(HasSubstr("nvmlInit_v2 of")));
  unsetenv("FAKE_NVML_BROKEN");
}

}  // namespace
}  // namespace ingot::health
