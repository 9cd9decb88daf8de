// run.json: what is true of the whole run and stands in no setting, for the report and for people. Written by rank 0 at
// every start; the last start's facts hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace ingot::train {

struct RunFacts {
  std::string id;                 // of the run, however often it is started; random
  std::string version;            // of ingot
  std::string model;              // "zaya1", as in model.family
  int64_t parameters = 0;         // all
  int64_t active_parameters = 0;  // that one token meets, without embeddings
  std::string device;             // "cpu: 2 threads of …"
  std::string precision;          // as in train.precision
  int64_t ranks = 1;
  double peak_tflops = 0;  // per rank, the denominator of MFU; 0: not measured
  std::string mfu_convention;
};

/// The id in DIR/run.json; a new one when there is none.
std::string run_id(const std::filesystem::path& run_dir);

/// Replaces DIR/run.json; readers see the old file or the new one. Throws FileError.
void write_run_facts(const std::filesystem::path& run_dir, const RunFacts& facts);

}  // namespace ingot::train
