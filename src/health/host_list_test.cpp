#include "health/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>
#include <set>

#include "base/error.h"

namespace ingot::health {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Written for this test by Slurm's manual, with regular expressions: brackets at the end of a name, ranges with leading zeros.
std::set<std::string> slurm_hosts(const std::string& list) {
  static const std::regex kEntry(R"(([^,\[\]]+)(?:\[([^\]]*)\])?)"), kRange(R"((\d+)(?:-(\d+))?)");
  std::set<std::string> out;
  for (std::sregex_iterator entry(list.begin(), list.end(), kEntry), end; entry != end; ++entry) {
    const std::string before = (*entry)[1], ranges = (*entry)[2];
    if (!(*entry)[2].matched) out.insert(before);
    for (std::sregex_iterator range(ranges.begin(), ranges.end(), kRange); range != end; ++range) {
      const std::string low = (*range)[1], high = (*range)[2].matched ? std::string((*range)[2]) : low;
      for (long value = std::stol(low); value <= std::stol(high); ++value) {
        auto digits = std::to_string(value);
        if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
        out.insert(before + digits);
      }
    }
  }
  return out;
}

TEST(HostList, is_written_as_slurm_writes_it) {
  EXPECT_EQ(compressed_hosts({"node007", "node001", "node003", "node002"}), "node[001-003,007]");
  EXPECT_EQ(compressed_hosts({"node001"}), "node001");
  EXPECT_EQ(compressed_hosts({"n8", "n9", "n10", "n11", "n010"}), "n[8-9,10-11,010]");
  EXPECT_EQ(compressed_hosts({"rack1-gpu1", "rack1-gpu2", "rack2-gpu1", "login"}), "login,rack1-gpu[1-2],rack2-gpu1");
  EXPECT_EQ(compressed_hosts({"a.b.c", "a", "a"}), "a,a.b.c");
  EXPECT_EQ(compressed_hosts({"10.0.0.1", "10.0.0.2"}), "10.0.0.[1-2]");
  EXPECT_EQ(compressed_hosts({"17"}), "17") << "nothing stands before the number";
  EXPECT_EQ(compressed_hosts({}), "");
}

TEST(HostList, comes_back_as_it_was) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> hosts;
    const int count = static_cast<int>(random() % 60);
    for (int i = 0; i < count; ++i) {
      static constexpr const char* kBefore[] = {"node", "gpu-", "rack1-n", "x", "login"};
      auto digits = std::to_string(random() % (round % 3 == 0 ? 12 : 1200));
      while (digits.size() < static_cast<size_t>(round % 4)) digits.insert(0, 1, '0');
      hosts.insert(kBefore[random() % 5] + (random() % 10 == 0 ? std::string() : digits));
    }
    const auto list = compressed_hosts({hosts.begin(), hosts.end()});
    EXPECT_EQ(slurm_hosts(list), hosts) << list;
    const auto expanded = expanded_hosts(list);
    EXPECT_EQ(std::set<std::string>(expanded.begin(), expanded.end()), hosts) << list;
    EXPECT_EQ(expanded.size(), hosts.size()) << list;
  }
}

TEST(HostList, files_of_hosts_have_names_lists_and_remarks) {
  EXPECT_THAT(parse_host_file("node[01-02]-ib, login # spare: node9\r\n\n  gpu1\ngpu[5,8-9]"),
              ElementsAre("node01-ib", "node02-ib", "login", "gpu1", "gpu5", "gpu8", "gpu9"));
  EXPECT_THAT(expanded_hosts("r[1-2]n[1-2]"), ElementsAre("r1n1", "r1n2", "r2n1", "r2n2"));
  EXPECT_THAT(parse_host_file("# none\n"), ElementsAre());
}

TEST(HostList, what_is_no_list_is_refused) {
  const auto error_of = [](const std::string& list) -> std::string {
    try {
      expanded_hosts(list);
    } catch (const base::DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of("node[1-3"), HasSubstr("does not close"));
  EXPECT_THAT(error_of("node1]"), HasSubstr("without its ["));
  EXPECT_THAT(error_of("node[3-1]"), HasSubstr("falls"));
  EXPECT_THAT(error_of("node[a-b]"), HasSubstr("'a'"));
  EXPECT_THAT(error_of("node[]"), HasSubstr("number"));
  EXPECT_THAT(error_of("node[1-9999999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(error_of("n[1-300][1-300]"), HasSubstr("more than 65536"));
  EXPECT_THAT(error_of("n[99999999999999999999]"), HasSubstr("number"));
}

}  // namespace
}  // namespace ingot::health
