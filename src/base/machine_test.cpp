#include "base/machine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "base/environment.h"
#include "base/error.h"
#include "base/process.h"

namespace ingot::base {
namespace {

Environment environment_of(const std::map<std::string, std::string>& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(EnvironmentVariables, cache_folder_is_the_most_specific_one_that_is_set) {
  EXPECT_EQ(environment_of({}).cache_folder(), "");
  EXPECT_EQ(environment_of({{"HOME", "/h"}}).cache_folder(), "/h/.cache/ingot");
  EXPECT_EQ(environment_of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache_folder(), "/x/ingot");
  EXPECT_EQ(environment_of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"INGOT_CACHE", "/i"}}).cache_folder(), "/i");
}

TEST(EnvironmentVariables, those_that_are_set_are_listed_for_the_log) {
  const auto set = environment_of({{"HOME", "/h"}, {"OMP_NUM_THREADS", "3"}, {"UNKNOWN", "x"}}).set_variables();
  ASSERT_EQ(set.size(), 1u);
  EXPECT_EQ(set[0], (std::pair<std::string, std::string>{"OMP_NUM_THREADS", "3"}));
}

TEST(Machine, the_file_system_of_a_path_is_that_of_the_longest_mount_point) {
  const std::string mounts =
      "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
      "30 22 0:25 / /data rw - nfs4 server:/x rw\n"
      "31 30 0:26 / /data/my\\040disk rw,nosuid shared:2 master:1 - xfs /dev/b rw\n"
      "32 22 0:27 / /tmp rw - tmpfs tmpfs rw\n"
      "33 22 0:28 / /tmp rw - overlay overlay rw\n"
      "34 22 broken\n";
  EXPECT_EQ(file_system_type("/home/me", mounts), "ext4");
  EXPECT_EQ(file_system_type("/data/a/b", mounts), "nfs4");
  EXPECT_EQ(file_system_type("/database", mounts), "ext4");
  EXPECT_EQ(file_system_type("/data/my disk/run", mounts), "xfs");
  EXPECT_EQ(file_system_type("/tmp", mounts), "overlay");  // mounted over the other one
  EXPECT_EQ(file_system_type("/tmp", ""), "unknown");
  EXPECT_NE(file_system_type("/proc"), "unknown");
}

TEST(Machine, disk_space_of_a_missing_folder_is_refused_with_its_name) {
  EXPECT_GT(disk_space("/").total_bytes, 0);
  try {
    disk_space("/no/such/folder");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/folder"), std::string::npos);
  }
}

TEST(Machine, a_program_is_found_in_the_first_folder_that_has_it) {
  EXPECT_EQ(find_program("sh", "/nowhere::/bin"), "/bin/sh");
  EXPECT_EQ(find_program("no-such-program", "/bin:/usr/bin"), "");
}

TEST(Machine, limits_and_memory_agree_with_what_the_kernel_says) {
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), total_memory_bytes());
  EXPECT_NE(process_limits().open_files, 0);
  EXPECT_GE(memory_limit_bytes(), 0);
}

TEST(Machine, more_threads_than_cores_wait_for_one_another) {
  const double before = waiting_for_cores_seconds();
  std::vector<std::thread> threads;
  std::atomic<bool> stop = false;
  for (int i = 0; i < 4 * usable_cores(); ++i)
    threads.emplace_back([&] {
      while (!stop) {
      }
    });
  double waited = 0;  // of threads that still live
  for (int i = 0; i < 50 && waited < 0.02; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    waited = waiting_for_cores_seconds() - before;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_GE(waited, 0.02);
}

TEST(Machine, companions_are_not_foreign_and_the_stamp_is_stable) {
  const LoadWatch load;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(150);
  while (std::chrono::steady_clock::now() < end) continue;
  EXPECT_GT(load.own_cpu_s(), 0.02);
  EXPECT_LE(load.own_cpu_s(), 0.3);
  EXPECT_LE(load.foreign_share(), 1);
  EXPECT_EQ(load.foreign_share(1e6), 0);
  EXPECT_EQ(program_stamp(), program_stamp());
  EXPECT_NE(program_stamp(), "unknown");
}

}  // namespace
}  // namespace ingot::base
