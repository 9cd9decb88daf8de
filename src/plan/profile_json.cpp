// The profile's file: JSON with exactly the members below. Hostile input is refused by name; counts and sizes are bounded.
#include "base/json_members.h"
#include "base/work_kind.h"
#include "plan/profile.h"

namespace ingot::plan {
namespace {

using base::ProfileError;
using Json = nlohmann::json;

constexpr int64_t kLargestSize = int64_t{1} << 48;
constexpr size_t kMostEntries = 100'000;

struct Members : base::JsonMembers {
  Members(const Json& json, std::string where) : JsonMembers(json, std::move(where), "measure again with ingot bench all") {}
  int64_t size(const char* name) { return whole(name, kLargestSize); }
  template <class Read>
  void entries(const char* name, const Read& read) {
    list(name, 0, kMostEntries, read);
  }
};

const std::vector<std::string> kDtypes = {"fp64", "fp32", "bf16"};
const std::vector<std::string> kMemoryOperations = {"copy",
                                                    "scale",
                                                    "add",
                                                    "triad",
                                                    "dot",
                                                    "read",
                                                    "write",
                                                    "host_copy",
                                                    "host_read",
                                                    "host_write",
                                                    "host_to_device_pinned",
                                                    "host_to_device_pageable",
                                                    "device_to_host_pinned",
                                                    "device_to_host_pageable"};

GemmRate read_gemm(const Json& json, const std::string& where) {
  Members m(json, where);
  GemmRate entry{m.one_of("dtype", kDtypes),
                 m.one_of("kind", {"plain", "batched", "grouped"}),
                 m.one_of("pass", {"forward", "grad_input", "grad_weight"}),
                 m.size("m"),
                 m.size("n"),
                 m.size("k"),
                 m.positive("flops_per_s")};
  if (entry.kind != "plain") entry.groups = m.size("groups");
  if (entry.kind == "grouped") entry.imbalance = m.positive("imbalance");
  if (entry.imbalance < 1 || entry.imbalance > static_cast<double>(entry.groups))
    m.fail("imbalance", "must be from 1 to the number of groups");
  m.finish();
  return entry;
}

AttentionTime read_attention(const Json& json, const std::string& where) {
  Members m(json, where);
  AttentionTime entry{m.one_of("dtype", kDtypes), m.size("batch"),    m.size("seq"),           m.size("heads"),
                      m.size("kv_heads"),         m.size("head_dim"), m.positive("forward_s"), m.positive("backward_s")};
  if (m.has("window")) entry.window = m.size("window");
  m.finish();
  return entry;
}

MemoryRate read_memory(const Json& json, const std::string& where) {
  Members m(json, where);
  MemoryRate entry{m.one_of("operation", kMemoryOperations), m.size("bytes"), m.positive("bytes_per_s")};
  m.finish();
  return entry;
}

KernelTime read_kernel(const Json& json, const std::string& where) {
  Members m(json, where);
  KernelTime entry{m.text("name"),          m.one_of("dtype", kDtypes),  m.size("rows"), m.size("width"), m.size("count"),
                   m.positive("forward_s"), m.not_negative("backward_s")};
  if (m.has("forward_bytes")) entry.forward_bytes = m.not_negative("forward_bytes");
  if (m.has("backward_bytes")) entry.backward_bytes = m.not_negative("backward_bytes");
  if (m.has("forward_flops")) entry.forward_flops = m.not_negative("forward_flops");
  if (m.has("backward_flops")) entry.backward_flops = m.not_negative("backward_flops");
  m.finish();
  return entry;
}

CollectiveTime read_collective(const Json& json, const std::string& where) {
  Members m(json, where);
  CollectiveTime entry{
      m.one_of("operation", {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive"}),
      m.one_of("dtype", kDtypes),
      m.one_of("placement", {"neighbours", "strided"}),
      m.size("ranks"),
      m.size("groups"),
      m.size("bytes"),
      m.positive("seconds")};
  m.finish();
  return entry;
}

StorageRate read_storage(const Json& json, const std::string& where) {
  Members m(json, where);
  StorageRate entry{m.one_of("operation", {"sequential_write", "sequential_read", "random_write", "random_read", "create", "open_read",
                                           "unlink", "checkpoint_write"}),
                    m.text("folder_type"),
                    m.size("block_bytes"),
                    m.size("writers"),
                    m.boolean("direct"),
                    m.not_negative("bytes_per_s"),  // 0 of unlink
                    m.positive("operations_per_s"),
                    m.not_negative("p50_s"),
                    m.not_negative("p99_s")};
  m.finish();
  return entry;
}

GemmBackendRate read_library(const Json& json, const std::string& where) {
  Members m(json, where);
  GemmBackendRate entry{m.one_of("dtype", kDtypes),
                        m.one_of("library", {"default", "ingot", "blas", "onednn", "upcast", "cublas", "cublaslt"}),
                        m.one_of("pass", {"forward", "grad_input", "grad_weight"}),
                        m.size("m"),
                        m.size("n"),
                        m.size("k"),
                        m.positive("flops_per_s"),
                        m.positive("low_flops_per_s"),
                        m.positive("high_flops_per_s")};
  m.finish();
  return entry;
}

WithinSteps read_within_steps(const Json& json, const std::string& where) {
  Members m(json, where);
  std::vector<std::string> kinds;
  for (const auto kind : base::all_work_kinds()) kinds.emplace_back(base::name_of(kind));
  kinds.emplace_back("products");  // matmul until version 3
  WithinSteps entry{m.one_of("dtype", kDtypes), m.one_of("kind", kinds), m.not_negative("measured_s"), m.not_negative("predicted_s")};
  if (entry.kind == "products") entry.kind = "matmul";
  m.finish();
  return entry;
}

}  // namespace

double MachineProfile::peak_gemm(const std::string& dtype) const {
  double best = 0;
  for (const auto& entry : gemm) {
    if (entry.dtype == dtype && entry.kind == "plain") best = std::max(best, entry.flops_per_s);
  }
  return best;
}

std::string MachineProfile::to_json() const {
  nlohmann::ordered_json json = {{"format", "ingot machine profile"},
                                 {"version", kVersion},
                                 {"host", host},
                                 {"cpu", cpu},
                                 {"device", device},
                                 {"cores", cores},
                                 {"threads", threads},
                                 {"ranks", ranks},
                                 {"torch", torch},
                                 {"program", program},
                                 {"date", date},
                                 {"quick", quick},
                                 {"foreign_load", foreign_load},
                                 {"commands", commands},
                                 {"operation_s", operation_s}};
  auto& gemms = json["gemm"] = nlohmann::ordered_json::array();
  for (const auto& e : gemm) {
    gemms.push_back(
        {{"dtype", e.dtype}, {"kind", e.kind}, {"pass", e.pass}, {"m", e.m}, {"n", e.n}, {"k", e.k}, {"flops_per_s", e.flops_per_s}});
    if (e.kind != "plain") gemms.back()["groups"] = e.groups;
    if (e.kind == "grouped") gemms.back()["imbalance"] = e.imbalance;
  }
  auto& attentions = json["attention"] = nlohmann::ordered_json::array();
  for (const auto& e : attention) {
    attentions.push_back({{"dtype", e.dtype},
                          {"batch", e.batch},
                          {"seq", e.seq},
                          {"heads", e.heads},
                          {"kv_heads", e.kv_heads},
                          {"head_dim", e.head_dim},
                          {"forward_s", e.forward_s},
                          {"backward_s", e.backward_s}});
    if (e.window > 0) attentions.back()["window"] = e.window;
  }
  auto& memories = json["memory"] = nlohmann::ordered_json::array();
  for (const auto& e : memory) memories.push_back({{"operation", e.operation}, {"bytes", e.bytes}, {"bytes_per_s", e.bytes_per_s}});
  auto& all_kernels = json["kernels"] = nlohmann::ordered_json::array();
  for (const auto& e : kernels) {
    all_kernels.push_back({{"name", e.name},
                           {"dtype", e.dtype},
                           {"rows", e.rows},
                           {"width", e.width},
                           {"count", e.count},
                           {"forward_s", e.forward_s},
                           {"backward_s", e.backward_s},
                           {"forward_bytes", e.forward_bytes},
                           {"backward_bytes", e.backward_bytes}});
    if (e.forward_flops > 0) all_kernels.back()["forward_flops"] = e.forward_flops;
    if (e.backward_flops > 0) all_kernels.back()["backward_flops"] = e.backward_flops;
  }
  auto& all_collectives = json["collectives"] = nlohmann::ordered_json::array();
  for (const auto& e : collectives)
    all_collectives.push_back({{"operation", e.operation},
                               {"dtype", e.dtype},
                               {"placement", e.placement},
                               {"ranks", e.ranks},
                               {"groups", e.groups},
                               {"bytes", e.bytes},
                               {"seconds", e.seconds}});
  auto& storages = json["storage"] = nlohmann::ordered_json::array();
  for (const auto& e : storage)
    storages.push_back({{"operation", e.operation},
                        {"folder_type", e.folder_type},
                        {"block_bytes", e.block_bytes},
                        {"writers", e.writers},
                        {"direct", e.direct},
                        {"bytes_per_s", e.bytes_per_s},
                        {"operations_per_s", e.operations_per_s},
                        {"p50_s", e.p50_s},
                        {"p99_s", e.p99_s}});
  for (const auto& e : libraries)
    json["libraries"].push_back({{"dtype", e.dtype},
                                 {"library", e.library},
                                 {"pass", e.pass},
                                 {"m", e.m},
                                 {"n", e.n},
                                 {"k", e.k},
                                 {"flops_per_s", e.flops_per_s},
                                 {"low_flops_per_s", e.low_flops_per_s},
                                 {"high_flops_per_s", e.high_flops_per_s}});
  for (const auto& e : within_steps)
    json["within_steps"].push_back({{"dtype", e.dtype}, {"kind", e.kind}, {"measured_s", e.measured_s}, {"predicted_s", e.predicted_s}});
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

MachineProfile MachineProfile::from_json(const std::string& text, const std::string& origin) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw ProfileError("{} is not JSON; measure again with ingot bench all -o {}", origin, origin);
  Members m(json, origin);
  if (m.text("format") != "ingot machine profile")
    throw ProfileError("{} is not a machine profile: its member 'format' is not 'ingot machine profile'", origin);
  if (const auto version = m.size("version"); version < kOldestVersion || version > kVersion)
    throw ProfileError("{} has version {}; this program reads versions {} to {}. Measure again with ingot bench all", origin, version,
                       kOldestVersion, kVersion);
  MachineProfile p;
  p.host = m.text("host");
  p.cpu = m.text("cpu");
  p.device = m.text("device");
  p.cores = m.size("cores");
  p.threads = m.size("threads");
  p.ranks = m.size("ranks");
  p.torch = m.text("torch");
  p.program = m.text("program");
  p.date = m.text("date");
  p.quick = m.boolean("quick");
  p.foreign_load = m.not_negative("foreign_load");
  p.operation_s = m.not_negative("operation_s");
  m.entries("commands", [&](const Json& entry, const std::string& where) {
    if (!entry.is_string()) throw ProfileError("{} must be a text", where);
    p.commands.push_back(entry.get<std::string>());
  });
  m.entries("gemm", [&](const Json& entry, const std::string& where) { p.gemm.push_back(read_gemm(entry, where)); });
  m.entries("attention", [&](const Json& entry, const std::string& where) { p.attention.push_back(read_attention(entry, where)); });
  m.entries("memory", [&](const Json& entry, const std::string& where) { p.memory.push_back(read_memory(entry, where)); });
  m.entries("kernels", [&](const Json& entry, const std::string& where) { p.kernels.push_back(read_kernel(entry, where)); });
  m.entries("collectives", [&](const Json& entry, const std::string& where) { p.collectives.push_back(read_collective(entry, where)); });
  m.entries("storage", [&](const Json& entry, const std::string& where) { p.storage.push_back(read_storage(entry, where)); });
  if (m.has("libraries"))
    m.entries("libraries", [&](const Json& entry, const std::string& where) { p.libraries.push_back(read_library(entry, where)); });
  if (m.has("within_steps"))
    m.entries("within_steps",
              [&](const Json& entry, const std::string& where) { p.within_steps.push_back(read_within_steps(entry, where)); });
  m.has("balance");  // what ingot bench --json says beside the profile follows from the rest
  m.finish();
  return p;
}

}  // namespace ingot::plan
