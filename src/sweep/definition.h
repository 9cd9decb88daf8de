// What a sweep tries: a file of its own (docs/sweeps.md), read and checked before anything runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace ingot::sweep {

/// A setting of a run that is tried at several values: those listed, or from a range.
struct SweptSetting {
  std::string name;
  std::vector<std::string> values;
  double low = 0, high = 0;
  int64_t points = 0;         // of a grid over a range
  std::string scale = "log";  // log, linear
  bool is_integer = false;
};

struct Definition {
  std::string config;                      // of a run
  std::vector<std::string> set;            // over it, of every run
  std::string search = "grid";             // grid: every combination; random
  int64_t runs = 16;                       // of a random search
  int64_t seed = 1;                        // the same
  std::string metric = "validation_loss";  // or loss: the mean of the last `average` steps
  int64_t average = 20;
  int64_t at_once = 0, threads = 0, ranks = 1;  // 0: as many as there are cores for; the cores shared out
  std::vector<std::string> rungs;               // successive halving: steps after which only the best go on; empty = all go to the end
  double keep = 0.5;                            // the share that does
  bool keep_checkpoints = false;
  std::vector<SweptSetting> settings;

  std::string toml;  // all of that as it was resolved
};

/// Throws ConfigError, FileError or UsageError.
Definition read_definition(const std::filesystem::path& file);

struct Trial {
  std::string name;                 // "007"
  std::vector<std::string> values;  // of each swept setting
};
/// All runs of the sweep, a pure function of the definition.
std::vector<Trial> trials_of(const Definition& definition);

/// key=value of a run: what is set for all, then what is tried.
std::vector<std::string> settings_of(const Definition& definition, const Trial& trial);

/// Reads every run's configuration, as it would be trained, and throws the ConfigError of the first that is impossible. Returns the steps
/// of a run, which must be the same for all.
int64_t check_trials(const Definition& definition, const std::vector<Trial>& trials);

}  // namespace ingot::sweep
