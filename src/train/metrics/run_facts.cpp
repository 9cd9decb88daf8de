#include "train/metrics/run_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/files.h"

namespace ingot::train {

std::string run_id(const std::filesystem::path& run_dir) {
  std::ifstream file(run_dir / "run.json");
  const auto document = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && document.contains("id") && document["id"].is_string()) {
    const auto id = document["id"].get<std::string>();
    if (!id.empty() && id.size() <= 32 && std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isxdigit(c); })) return id;
  }
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

void write_run_facts(const std::filesystem::path& run_dir, const RunFacts& facts) {
  const nlohmann::ordered_json document = {{"id", facts.id},
                                           {"version", facts.version},
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
