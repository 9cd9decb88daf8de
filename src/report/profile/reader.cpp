#include "report/profile/reader.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json_members.h"
#include "report/page/html.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using base::DataError;
using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{24} << 20;
// A page of more would be too large to read, in either sense.
constexpr size_t kMaxEntries = 5'000;
constexpr const char* kAdvice = "the file must be as ingot bench collectives -o FILE.json writes it";

std::string read_bounded(const fs::path& path) { return base::read_file(path, kMaxFileBytes); }

// The time of what the program uses: in place where there is such a call.
double seconds_of(base::JsonMembers& result) {
  for (const char* name : {"in_place", "out_of_place"}) {
    const auto& timing = result.member(name);
    if (timing.is_null()) continue;
    base::JsonMembers m(timing, result.where() + "." + name, kAdvice);
    return m.positive("mean_s");
  }
  result.fail("in_place", "and out_of_place are both null");
}

plan::CollectiveTime collective_of(const json& entry, const std::string& where) {
  base::JsonMembers m(entry, where, kAdvice);
  constexpr int64_t kMostRanks = int64_t{1} << 24, kMostBytes = int64_t{1} << 48;
  return {m.one_of("operation", {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive"}),
          m.one_of("dtype", {"fp32", "bf16"}),
          m.one_of("placement", {"neighbours", "strided"}),
          m.whole("ranks", kMostRanks),
          m.whole("groups", kMostRanks),
          m.whole("bytes", kMostBytes),
          seconds_of(m)};
}

void check_size(const plan::MachineProfile& p, const std::string& name) {
  const auto check = [&](size_t count, const char* what) {
    if (count > kMaxEntries) throw DataError("{}: {} has {} entries; a page shows at most {}", name, what, count, kMaxEntries);
  };
  check(p.gemm.size(), "gemm");
  check(p.attention.size(), "attention");
  check(p.memory.size(), "memory");
  check(p.kernels.size(), "kernels");
  check(p.collectives.size(), "collectives");
}

// A time that nothing takes would make a rate without bounds.
void check_times(const plan::MachineProfile& p, const std::string& name) {
  constexpr double kLeast_s = 1e-12;
  const auto check = [&](double seconds, const char* list, size_t i) {
    if (seconds < kLeast_s)
      throw DataError("{}: {}[{}] took {:g} s, less than a clock can tell; measure again with ingot bench", name, list, i, seconds);
  };
  for (size_t i = 0; i < p.attention.size(); ++i) check(std::min(p.attention[i].forward_s, p.attention[i].backward_s), "attention", i);
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    check(p.kernels[i].forward_s, "kernels", i);
    if (p.kernels[i].backward_s > 0) check(p.kernels[i].backward_s, "kernels", i);
  }
  for (size_t i = 0; i < p.collectives.size(); ++i) check(p.collectives[i].seconds, "collectives", i);
}

void add_collectives(Measured& machine, const Measured& of) {
  machine.profile.collectives.insert(machine.profile.collectives.end(), of.profile.collectives.begin(), of.profile.collectives.end());
  machine.descriptions.insert(machine.descriptions.end(), of.descriptions.begin(), of.descriptions.end());
  machine.name += " + " + of.name;
}

}  // namespace

FileKind kind_of_file(const fs::path& path) {
  const auto document = json::parse(read_bounded(path), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded() || !document.is_object()) return FileKind::other;
  // A profile of which a part is damaged is refused as one.
  if (document.contains("format") || document.contains("gemm")) return FileKind::profile;
  return document.contains("curves") && document.contains("results") ? FileKind::collectives : FileKind::other;
}

Measured parse_profile(const std::string& content, const std::string& name) {
  Measured machine{.name = name, .has_profile = true, .profile = plan::MachineProfile::from_json(content, name), .descriptions = {}};
  check_size(machine.profile, name);
  check_times(machine.profile, name);
  return machine;
}

Measured parse_collectives(const std::string& content, const std::string& name) {
  const auto document = json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) throw DataError("{} is not JSON; {}", name, kAdvice);
  base::JsonMembers m(document, name, kAdvice);
  Measured machine{.name = name, .has_profile = false, .profile = {}, .descriptions = {shortened(m.text("description"), 400)}};
  m.list("results", 1, kMaxEntries,
         [&](const json& entry, const std::string& where) { machine.profile.collectives.push_back(collective_of(entry, where)); });
  check_times(machine.profile, name);
  return machine;
}

std::vector<Measured> read_measured(const std::vector<fs::path>& paths) {
  std::vector<Measured> machines, collectives;
  for (const auto& path : paths) {
    const auto text = read_bounded(path);
    const bool is_profile = kind_of_file(path) == FileKind::profile;
    auto& list = is_profile ? machines : collectives;
    list.push_back(is_profile ? parse_profile(text, path.string()) : parse_collectives(text, path.string()));
    list.back().name = path.filename().string();
  }
  for (size_t i = 0; i < collectives.size(); ++i) {
    if (i < machines.size() && machines[i].has_profile) add_collectives(machines[i], collectives[i]);
    else machines.push_back(collectives[i]);
  }
  for (const auto& machine : machines) check_size(machine.profile, machine.name);
  if (machines.size() > 2)
    throw base::UsageError("ingot report compares two machines at most, and these files are of {}; make a page for every two",
                           machines.size());
  return machines;
}

}  // namespace ingot::report
