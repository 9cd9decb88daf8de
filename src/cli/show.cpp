#include "cli/show.h"

#include <cstdio>

#include "base/files.h"
#include "base/log.h"

namespace ingot::cli {

void show(const Call& call, const nlohmann::ordered_json& json, const std::string& text, const std::string& output) {
  std::string written;
  if (call.json || !output.empty()) written = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fputs((call.json ? written : text).c_str(), stdout);
  if (output.empty()) return;
  base::write_file_atomically(output, written);
  base::log_info("wrote {}", output);
}

}  // namespace ingot::cli
