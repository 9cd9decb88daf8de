#include "health/doctor.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <cmath>
#include <filesystem>

#include "base/environment.h"
#include "base/machine.h"
#include "base/process.h"
#include "base/text.h"
#include "base/version.h"
#include "device/device.h"
#include "device/gpu_library.h"
#include "kernels/cpu/isa.h"
#include "kernels/differentiable.h"
#include "kernels/matmul.h"
#include "models/model.h"
#include "plan/describe.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kGiB = int64_t{1} << 30;

std::string library_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? fs::path(info.dli_fname).lexically_normal().string() : "unknown";
}

void examine_machine(Examination& e) {
  const auto sets = base::cpu_instruction_sets();
  e.add("machine", "host", base::host_name());
  e.add("machine", "cpu", base::cpu_name());
  e.add("machine", "cores", base::usable_cores());
  e.add("machine", "instruction_sets", sets);
  e.add("machine", "kernels", kernels::cpu::name(kernels::cpu::best_isa()));
  e.add("machine", "bf16_products", kernels::cpu_has_bf16_products());
  e.add("machine", "memory_bytes", base::total_memory_bytes());
  e.add("machine", "available_memory_bytes", base::available_memory_bytes());
  const int64_t limit = base::memory_limit_bytes();
  if (limit > 0) e.add("machine", "memory_limit_bytes", limit);
  if (kernels::cpu::best_isa() == kernels::cpu::Isa::portable)
    e.findings.push_back({"the CPU has neither AVX2 nor AVX-512; kernels run in their portable form",
                          "training works, but slowly; use another machine for more than tests"});
  if (!kernels::cpu_has_bf16_products())
    e.findings.push_back({"the CPU has no bf16 GEMMs; bf16 runs multiply in fp32", "train.precision = \"fp32\" is usually faster here"});
  const int64_t usable = limit > 0 ? std::min(limit, base::available_memory_bytes()) : base::available_memory_bytes();
  if (usable > 0 && usable < 2 * kGiB)
    e.findings.push_back({"only " + base::format_bytes(usable) + " of memory can be had",
                          "close other programs, or train with train.microbatch_size = 1 and train.recompute = \"full\""});
}

void examine_disk(Examination& e) {
  const auto here = fs::current_path();
  const auto space = base::disk_space(here);
  e.add("disk", "folder", here.string());
  e.add("disk", "free_bytes", space.free_bytes);
  e.add("disk", "total_bytes", space.total_bytes);
  if (space.free_bytes < 2 * kGiB)
    e.findings.push_back({base::format_bytes(space.free_bytes) + " free in " + here.string(),
                          "free some space, or put checkpoints elsewhere with --run-dir"});
}

void examine_torch(Examination& e) {
  const int64_t devices = device::gpus();
  const auto& library = device::gpu_library();
  e.add("torch", "version", TORCH_VERSION);
  e.add("torch", "library", library_of(reinterpret_cast<const void*>(static_cast<int (*)()>(&at::get_num_threads))));
  e.add("torch", "threads", at::get_num_threads());
  e.add("torch", "gpu_driver", library.vendor.empty() ? Json() : Json(library.vendor));
  e.add("torch", "gpu_support", library.has_torch);
  e.add("torch", "own_gpu_library", library.own != nullptr);
  e.add("torch", "gpus", devices);
  if (!library.vendor.empty() && !library.has_torch)
    e.findings.push_back({"a GPU is present, but this libtorch computes on the CPU only", library.problem});
  else if (!library.vendor.empty() && devices == 0)
    e.findings.push_back({"a GPU driver is present, but no GPU can be used",
                          "look at nvidia-smi or rocm-smi, and at CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES"});
  else if (library.has_torch && !library.own)
    e.findings.push_back({"several GPUs cannot communicate, and kernels are torch's alone", library.problem});
  if (at::get_num_threads() < base::usable_cores())
    e.findings.push_back({fmt::format("torch uses {} threads on {} cores", at::get_num_threads(), base::usable_cores()),
                          "unset OMP_NUM_THREADS, or set train.threads"});
}

void examine_surroundings(Examination& e) {
  const auto& environment = base::environment();
  for (const char* program : {"srun", "mpirun", "torchrun"}) {
    const auto path = base::find_program(program, environment.path);
    e.add("launchers", program, path.empty() ? Json() : Json(path));
  }
  e.add("launchers", "slurm_job", environment.slurm_job_id.empty() ? Json() : Json(environment.slurm_job_id));
  e.facts["environment"] = Json::object();
  for (const auto& [name, value] : environment.set_variables()) e.add("environment", name.c_str(), value);
  const auto limits = base::process_limits();
  e.add("limits", "open_files", limits.open_files);
  e.add("limits", "locked_memory_bytes", limits.locked_memory_bytes);
  if (limits.open_files >= 0 && limits.open_files < 1024)
    e.findings.push_back({fmt::format("only {} files may be open at once", limits.open_files),
                          "raise it with ulimit -n 65536; datasets and checkpoints of many files need more"});
}

void examine_profile(Examination& e) {
  const fs::path folder = base::environment().cache_folder();
  const auto machine = plan::describe_machine(at::get_num_threads(), 1, device::device_named("auto").str());
  e.add("profile", "file", folder.empty() ? Json() : Json(plan::profile_path(folder, machine).string()));
  const auto cached = plan::cached_profile(machine, folder);
  e.add("profile", "measured", cached ? Json(cached->date) : Json());
  if (cached) {
    e.add("profile", "quick", cached->quick);
    for (const char* dtype : {"fp32", "bf16"})
      if (cached->peak_gemm(dtype) > 0) e.add("profile", (std::string("peak_flops_per_s_") + dtype).c_str(), cached->peak_gemm(dtype));
  }
  if (folder.empty()) e.findings.push_back({"there is no place for measurements: HOME is not set", "set INGOT_CACHE to a folder"});
  else if (!cached)
    e.findings.push_back({"this machine is not measured yet",
                          "nothing to do: the first training run takes some seconds for it; ingot bench all is more thorough"});
}

// The shortest proof that training works: loss and gradients of a tiny model are finite.
void examine_training(Examination& e) {
  try {
    models::ModelConfig config;
    config.layers = 1;
    config.hidden = config.expert_ffn = 32;
    config.heads = config.kv_heads = 2;
    config.vocab_size = 64;
    const auto model = models::create_model(config);
    model->allocate(at::kFloat, device::device_named("auto"));
    model->initialise(1);
    models::ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(2, 16, at::Tensor(), 0, model->device());
    const auto ids = at::arange(32, at::TensorOptions().dtype(at::kLong).device(model->device())).view({2, 16});
    const auto loss = model->loss(ids, ids, 1.0 / 32, context);
    kernels::backward({loss});
    const double value = loss.item<double>(), norm = model->parameters().get("model.embed_tokens.weight").grad.norm().item<double>();
    e.add("training", "tiny_step", std::isfinite(value) && std::isfinite(norm) && norm > 0 ? "ok" : "wrong numbers");
    e.add("training", "device", device::device_named("auto").str());
    if (e.facts["training"]["tiny_step"] != "ok")
      e.findings.push_back({fmt::format("a tiny training step gives loss {} and gradient norm {}", value, norm),
                            "run ./scripts/test, and report which test fails", true});
  } catch (const std::exception& failure) {
    e.add("training", "tiny_step", "failed");
    e.findings.push_back(
        {std::string("a tiny training step fails: ") + failure.what(), "run ./scripts/test, and report which test fails", true});
  }
}

std::string shown(const std::string& name, const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number() && name.ends_with("_bytes"))
    return value.get<int64_t>() < 0 ? "unlimited" : base::format_bytes(value.get<int64_t>());
  if (value.is_number() && name.starts_with("peak_flops")) return base::format_count(value.get<double>()) + "FLOP/s";
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const auto& part : value) parts.push_back(part.get<std::string>());
    return parts.empty() ? "-" : base::join(parts, " ");
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string label(std::string name) {
  if (name.ends_with("_bytes")) name.resize(name.size() - 6);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

}  // namespace

std::string text_of(const Examination& e) {
  std::string text = fmt::format("ingot {}\n", base::program_version());
  for (const auto& [section, values] : e.facts.items()) {
    if (values.empty()) continue;
    text += "\n" + section + "\n";
    for (const auto& [name, value] : values.items())
      text += fmt::format("  {:<24}{}\n", section == "environment" ? name : label(name), shown(name, value));
  }
  text += "\n";
  for (const auto& finding : e.findings)
    text += fmt::format("{} {}\n    {}\n", finding.prevents_training ? "error:" : "note:", finding.what, finding.next_step);
  return text + (e.can_train() ? "\nThis machine can train.\n" : "\nThis machine cannot train yet.\n");
}

Json json_of(const Examination& e) {
  Json document = {{"version", base::program_version()}, {"can_train", e.can_train()}};
  document.update(e.facts);
  document["findings"] = Json::array();
  for (const auto& f : e.findings)
    document["findings"].push_back({{"what", f.what}, {"next_step", f.next_step}, {"prevents_training", f.prevents_training}});
  return document;
}

Examination examine() {
  Examination e;
  examine_machine(e);
  examine_disk(e);
  examine_torch(e);
  examine_surroundings(e);
  examine_profile(e);
  examine_training(e);
  return e;
}

}  // namespace ingot::health
