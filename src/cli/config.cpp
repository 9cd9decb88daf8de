#include "cli/config.h"

#include "base/error.h"
#include "base/files.h"

namespace ingot::cli {

train::RunConfig read_config(const std::string& path, const std::vector<std::string>& set) {
  train::RunConfig config;
  auto table = train::settings_of(config);
  table.load_toml(base::read_file(path, int64_t{16} << 20), path);
  for (const auto& setting : set) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw base::UsageError("--set {}: write key=value, for instance --set train.steps=200", setting);
    table.set(setting.substr(0, equals), setting.substr(equals + 1), "--set");
  }
  return config;
}

}  // namespace ingot::cli
