#include "train/metrics/run_facts.h"

#include <nlohmann/json.hpp>

#include "base/files.h"

namespace ingot::train {

void write_run_facts(const std::filesystem::path& run_dir, const RunFacts& facts) {
  const nlohmann::ordered_json document = {{"version", facts.version},
                                           {"model", facts.model},
                                           {"parameters", facts.parameters},
                                           {"active_parameters", facts.active_parameters},
                                           {"device", facts.device},
                                           {"precision", facts.precision},
                                           {"ranks", facts.ranks},
                                           {"peak_tflops", facts.peak_tflops},
                                           {"mfu_convention", facts.mfu_convention}};
  base::write_file_atomically(run_dir / "run.json", document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace ingot::train
