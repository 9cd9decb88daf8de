#include "health/floors.h"

#include <algorithm>
#include <filesystem>

#include "base/files.h"
#include "base/json_members.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using base::JsonMembers;
using Json = nlohmann::json;

constexpr int64_t kMostRanks = 1 << 20;
const std::vector<std::string> kWhat = {"gemm", "memory", "collective", "transfer"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

Floor read_floor(const Json& json, const std::string& where) {
  JsonMembers m(json, where, "configs/floors has examples");
  Floor floor;
  const auto what = m.one_of("what", kWhat);
  floor.what = static_cast<Floor::What>(std::find(kWhat.begin(), kWhat.end(), what) - kWhat.begin());
  switch (floor.what) {
    case Floor::What::gemm: floor.dtype = m.one_of("dtype", {"fp64", "fp32", "bf16"}); break;
    case Floor::What::memory: floor.operation = m.one_of("operation", {"copy", "scale", "add", "triad", "dot"}); break;
    case Floor::What::collective:
      floor.operation =
          m.one_of("operation", {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive"});
      break;
    case Floor::What::transfer: floor.operation = m.one_of("operation", {"host_to_device", "device_to_host"}); break;
  }
  if (m.has("ranks")) floor.ranks = m.whole("ranks", kMostRanks);
  if (m.has("least")) floor.least = m.not_negative("least");
  floor.published = m.positive("published");
  floor.fraction = m.positive("fraction");
  if (floor.fraction > 1) m.fail("fraction", "must be at most 1: it is the share of the published number that a node must reach");
  floor.source = m.text("source");
  m.finish();
  return floor;
}

std::string first_line(const fs::path& path, const std::string& prefix) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  const auto text = base::read_file(path, 1 << 16);
  for (const auto& line : base::split(text, '\n')) {
    if (!line.starts_with(prefix)) continue;
    const auto value = line.substr(prefix.size());
    const auto from = value.find_first_not_of(" \t");
    if (from != std::string::npos) return value.substr(from, 200);
  }
  return "";
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) out.push_back(at->path());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::string Floor::name() const {
  switch (what) {
    case What::gemm: return dtype + " GEMM";
    case What::memory: return operation;
    case What::collective: return ranks > 0 ? fmt::format("{} of {} ranks", operation, ranks) : operation;
    case What::transfer: return operation == "host_to_device" ? "host to device" : "device to host";
  }
  return "";
}

bool FloorFile::is_for(const std::string& device) const {
  const auto whole = lower(device);
  return std::any_of(devices.begin(), devices.end(), [&](const auto& part) { return whole.find(lower(part)) != std::string::npos; });
}

FloorFile parse_floors(const std::string& text, const std::string& origin) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw base::ProfileError("{} is not JSON; configs/floors has examples of such files", origin);
  JsonMembers m(json, origin, "configs/floors has examples");
  if (m.text("format") != "ingot floors") throw base::ProfileError("{} has no floors: its member 'format' is not 'ingot floors'", origin);
  if (const auto version = m.whole("version", 1 << 20); version != 1)
    throw base::ProfileError("{} has version {}; this program reads version 1", origin, version);
  FloorFile file{.name = m.text("name"), .devices = {}, .floors = {}};
  m.list("devices", 1, 100, [&](const Json& entry, const std::string& where) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty()) throw base::ProfileError("{} must be a text", where);
    file.devices.push_back(entry.get<std::string>());
  });
  m.list("checks", 1, 100, [&](const Json& entry, const std::string& where) { file.floors.push_back(read_floor(entry, where)); });
  m.finish();
  return file;
}

std::optional<FloorFile> shipped_floors(const std::string& device) {
  for (const auto& text : shipped_floor_files())
    if (auto file = parse_floors(text, "configs/floors"); file.is_for(device)) return file;
  return std::nullopt;
}

std::string accelerator_name(const std::string& root) {
  for (const auto& gpu : folders_in(fs::path(root) / "proc/driver/nvidia/gpus"))
    if (auto name = first_line(gpu / "information", "Model:"); !name.empty()) return name;
  for (const auto& card : folders_in(fs::path(root) / "sys/class/drm"))
    if (auto name = first_line(card / "device/product_name", ""); !name.empty()) return name;
  return "";
}

}  // namespace ingot::health
