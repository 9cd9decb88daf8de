// A cluster's file: JSON with exactly the members below, each number as {"value": …, "source": "where it is from"}. Hostile input is
// refused by name; counts and sizes are bounded.
#include "base/files.h"
#include "base/json_members.h"
#include "schedule/cluster.h"

namespace ingot::schedule {
namespace {

using base::ProfileError;
using Json = nlohmann::json;

constexpr double kLargestCount = 1 << 20;
constexpr int64_t kLargestVersion = 1 << 20;
constexpr size_t kMostEntries = 64, kLargestFile = 1 << 20;

// Numbers have sources.
class Members : public base::JsonMembers {
 public:
  Members(const Json& json, std::string where, std::vector<Cluster::Source>& sources)
      : JsonMembers(json, std::move(where), "configs/clusters/ has whole examples"), sources_(sources) {}
  double positive(const char* name) {
    return sourced(
        name, [](double value) { return value > 0 && value <= 1e18; }, "a positive number up to 10^18");
  }
  double not_negative(const char* name) {
    return sourced(
        name, [](double value) { return value >= 0 && value <= 1e18; }, "a number from 0 to 10^18");
  }
  int64_t count(const char* name) {
    return static_cast<int64_t>(sourced(
        name, [](double value) { return value >= 1 && value <= kLargestCount && value == std::floor(value); },
        "a whole number from 1 to 2^20"));
  }
  Members object(const char* name) { return {member(name), where() + "." + name, sources_}; }
  template <class Read>
  void entries(const char* name, const Read& read) {
    list(name, 1, kMostEntries, [&](const Json& entry, const std::string& where) { read(Members(entry, where, sources_)); });
  }

 private:
  template <class Allowed>
  double sourced(const char* name, const Allowed& allowed, const char* rule) {
    const auto& pair = member(name);
    if (!pair.is_object() || pair.size() != 2 || !pair.contains("value") || !pair.contains("source"))
      fail(name, R"(must be {"value": a number, "source": "where it is from"})");
    const auto &value = pair["value"], &source = pair["source"];
    if (!value.is_number() || !std::isfinite(value.get<double>()) || !allowed(value.get<double>()))
      fail(name + std::string("'s value"), fmt::format("must be {}", rule));
    if (!source.is_string() || source.get_ref<const std::string&>().empty() || source.get_ref<const std::string&>().size() > kLongestText)
      fail(name + std::string("'s source"), "must be a text of 1 to 4096 bytes");
    sources_.push_back({where() + "." + name, source.get<std::string>()});
    return value.get<double>();
  }

  std::vector<Cluster::Source>& sources_;
};

Links read_links(Members m, bool has_shape) {
  Links links;
  if (has_shape) links.shape = m.one_of("shape", {"any", "mesh"}) == "mesh" ? Links::Shape::mesh : Links::Shape::any;
  links.bytes_per_s = m.positive("bytes_per_s");
  links.latency_s = m.not_negative("latency_s");
  m.finish();
  return links;
}

ComputeRates read_rates(Members m) {
  ComputeRates rates;
  rates.dtype = m.one_of("dtype", {"bf16", "fp32", "fp64"});
  rates.gemm_flops_per_s = m.positive("gemm_flops_per_s");
  rates.half_m = m.not_negative("half_m");
  rates.half_n = m.not_negative("half_n");
  rates.half_k = m.not_negative("half_k");
  rates.attention_flops_per_s = m.positive("attention_flops_per_s");
  rates.attention_backward_flops_per_s = m.positive("attention_backward_flops_per_s");
  rates.half_queries = m.not_negative("half_queries");
  rates.half_keys = m.not_negative("half_keys");
  rates.state_flops_per_s = m.positive("state_flops_per_s");
  m.finish();
  return rates;
}

}  // namespace

Cluster Cluster::from_json(const std::string& text, const std::string& origin) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw ProfileError("{} is not JSON; configs/clusters/ has whole examples", origin);
  Cluster c;
  Members m(json, origin, c.sources);
  if (m.text("format") != "ingot cluster profile")
    throw ProfileError("{} is not a cluster profile: its member 'format' is not 'ingot cluster profile'", origin);
  if (const auto version = m.whole("version", kLargestVersion); version != kVersion)
    throw ProfileError("{} has version {}; this program reads version {}", origin, version, kVersion);
  c.name = m.text("name");
  c.devices_per_node = m.count("devices_per_node");
  c.nodes = m.count("nodes");
  c.memory_bytes = m.positive("memory_bytes");
  c.memory_bytes_per_s = m.positive("memory_bytes_per_s");
  c.kernel_launch_s = m.not_negative("kernel_launch_s");
  c.message_launch_s = m.not_negative("message_launch_s");
  if (m.has("kernels")) c.has_fused_kernels = m.one_of("kernels", {"fused", "aten"}) == "fused";
  c.node = read_links(m.object("node"), true);
  if (c.nodes > 1 || m.has("network")) c.network = read_links(m.object("network"), false);
  m.entries("compute", [&](Members entry) { c.compute.push_back(read_rates(std::move(entry))); });
  for (size_t i = 1; i < c.compute.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (c.compute[i].dtype == c.compute[j].dtype) throw ProfileError("{}.compute has two entries for {}", origin, c.compute[i].dtype);
  m.finish();
  return c;
}

Cluster read_cluster(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw base::FileError("{} does not exist; a cluster is a file, as configs/clusters/h100-64.json", path.string());
  return Cluster::from_json(base::read_file(path, kLargestFile), path.string());
}

}  // namespace ingot::schedule
