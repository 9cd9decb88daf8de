#include "comm/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace ingot::comm {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

RankEnvironment of(const Variables& variables) {
  return rank_environment(base::read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  }));
}

std::string error_of(const Variables& variables) {
  try {
    of(variables);
  } catch (const base::ConfigError& failure) {
    return failure.what();
  }
  return "";
}

TEST(RankEnvironment, without_a_launcher_a_process_is_alone) {
  EXPECT_EQ(of({}).size, 1);
  EXPECT_EQ(of({{"MASTER_ADDR", "far"}}).size, 1);
}

TEST(RankEnvironment, torchruns_variables) {
  const auto r = of({{"RANK", "5"},
                     {"WORLD_SIZE", "8"},
                     {"LOCAL_RANK", "1"},
                     {"MASTER_ADDR", "node0"},
                     {"MASTER_PORT", "1234"},
                     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                     {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.size, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.address, "node0");
  EXPECT_EQ(r.port, 1234);
  EXPECT_TRUE(r.is_store_hosted);
  EXPECT_EQ(r.attempt, "2");
}

TEST(RankEnvironment, sruns_variables) {
  const Variables step = {{"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_STEP_NODELIST", "gpu[007-009],other"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  const auto r = of(step);
  EXPECT_EQ(r.launcher, "srun");
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.size, 4);
  EXPECT_EQ(r.address, "gpu007");
  EXPECT_EQ(r.local_size, 2);
  auto next = step;
  next["SLURM_STEP_ID"] = "1";
  EXPECT_NE(of(next).port, r.port);
  auto plain = step;
  plain["SLURM_STEP_NODELIST"] = "a,b";
  EXPECT_EQ(of(plain).address, "a");
  plain["MASTER_ADDR"] = "chosen";
  EXPECT_EQ(of(plain).address, "chosen");
}

// The shell of a batch job has the job's variables, but no srun started it as one of several.
TEST(RankEnvironment, the_shell_of_a_slurm_job_is_alone) {
  EXPECT_EQ(of({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).size, 1);
}

TEST(RankEnvironment, open_mpis_variables) {
  const Variables one_node = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"OMPI_MCA_orte_hnp_uri", "1234.0;tcp://10.1.2.3,127.0.0.1:4567"}};
  EXPECT_EQ(of(one_node).launcher, "mpirun");
  EXPECT_EQ(of(one_node).address, "127.0.0.1");
  auto two_nodes = one_node;
  two_nodes["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_EQ(of(two_nodes).address, "10.1.2.3");
  two_nodes.erase("OMPI_MCA_orte_hnp_uri");
  EXPECT_THAT(error_of(two_nodes), HasSubstr("MASTER_ADDR"));
}

TEST(RankEnvironment, impossible_values_are_refused_by_name) {
  EXPECT_THAT(error_of({{"RANK", "0"}}), HasSubstr("RANK is set without WORLD_SIZE"));
  EXPECT_THAT(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), HasSubstr("RANK is '2'"));
  EXPECT_THAT(error_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), HasSubstr("RANK is 'x'"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "99999"}}),
              HasSubstr("MASTER_PORT is '99999'"));
}

}  // namespace
}  // namespace ingot::comm
