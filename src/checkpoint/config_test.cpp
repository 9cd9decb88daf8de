#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::checkpoint {
namespace {

TEST(CheckpointConfig, settings_reach_the_options_of_a_save) {
  CheckpointConfig config;
  base::SettingsTable table;
  declare_settings(table, config);
  table.load_toml("[checkpoint]\nevery = 50\nkeep = 2\nkeep_every = 1000\npiece_mib = 4\n", "test");
  EXPECT_EQ(config.every, 50);
  EXPECT_EQ(config.save_options().retention.keep, 2);
  EXPECT_EQ(config.save_options().retention.keep_every, 1000);
  EXPECT_EQ(config.save_options().piece_limit_bytes, 4 << 20);
  EXPECT_THROW(table.set("checkpoint.keep", "0", "test"), base::ConfigError);
  EXPECT_THROW(table.set("checkpoint.every", "-1", "test"), base::ConfigError);
}

}  // namespace
}  // namespace ingot::checkpoint
