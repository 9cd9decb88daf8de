#include "health/node_fitness.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/process.h"
#include "base/text.h"
#include "device/device.h"
#include "kernels/known_answer.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kFileBytes = 16 << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t pattern(uint64_t index) {  // of splitmix64: neighbours have nothing in common
  uint64_t z = (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  return z ^ (z >> 27);
}

std::vector<int> cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

// On one core alone, which is the one that this thread may run on from here on.
void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

class Examination {
 public:
  explicit Examination(const FitnessOptions& options) : options_(options) {}

  Fitness run() {
    const auto start = Clock::now();
    const auto& slurm = base::environment().slurm_node;
    fitness_.node = slurm.empty() ? base::host_name() : slurm;
    guarded("products of the cores", [&] { multiply_on_cores(); });
    guarded("products of the GPUs", [&] { multiply_on_gpus(); });
    guarded("memory", [&] { fill_memory(); });
    for (const auto& folder : options_.folders) guarded(folder.string(), [&] { write_to(folder); });
    fitness_.hardware = read_system_counters(options_.root);
    fitness_.hardware.append(GpuCounters(options_.gpu_library).read());
    for (auto& reason : reasons_against(fitness_.hardware)) against(std::move(reason));
    fitness_.seconds = seconds_since(start);
    return std::move(fitness_);
  }

 private:
  void against(std::string reason) {
    const std::lock_guard lock(mutex_);
    fitness_.reasons.push_back(std::move(reason));
  }
  template <class Work>
  void guarded(const std::string& what, const Work& work) {
    try {
      work();
    } catch (const std::exception& failure) {
      against(fmt::format("{}: {}", what, base::message_of(failure)));
    }
  }

  // One thread for each, so that a core that computes wrongly is known by its number.
  void multiply_on_cores() {
    const auto cores = cores_of_process();
    const auto cpu = at::Device(at::kCPU);
    const kernels::KnownAnswer in_fp32(cpu, at::kFloat, kernels::KnownAnswer::usual_size(cpu)),
        in_bf16(cpu, at::kBFloat16, kernels::KnownAnswer::usual_size(cpu));
    std::atomic<int64_t> products = 0;
    std::vector<std::thread> threads;
    for (const int core : cores)
      threads.emplace_back([&, core] {
        guarded(fmt::format("core {}", core), [&] {
          stay_on(core);
          at::set_num_threads(1);
          for (const auto start = Clock::now(); seconds_since(start) < options_.seconds; products += 2)
            for (const auto* known : {&in_fp32, &in_bf16})
              if (const auto error = known->find_error(); !error.empty())
                return against(fmt::format("core {} computes wrongly: {}", core, error));
        });
      });
    for (auto& thread : threads) thread.join();
    fitness_.looked_at.push_back(fmt::format("{} cores: {} products in fp32 and bf16, each number of them", cores.size(), products.load()));
  }

  void multiply_on_gpus() {
    const auto gpus = device::gpus();
    for (int64_t i = 0; i < gpus; ++i) {
      const auto gpu = device::device_of_rank("cuda", static_cast<int>(i));
      const kernels::KnownAnswer in_fp32(gpu, at::kFloat, kernels::KnownAnswer::usual_size(gpu)),
          in_bf16(gpu, at::kBFloat16, kernels::KnownAnswer::usual_size(gpu));
      int64_t products = 0;
      for (const auto start = Clock::now(); seconds_since(start) < options_.seconds; products += 2)
        for (const auto* known : {&in_fp32, &in_bf16})
          if (const auto error = known->find_error(); !error.empty()) return against(fmt::format("GPU {} computes wrongly: {}", i, error));
      fitness_.looked_at.push_back(fmt::format("GPU {}: {} products", i, products));
    }
  }

  void fill_memory() {
    const int64_t bytes = std::min(options_.memory_bytes, base::available_memory_bytes() / 16);
    const auto words = static_cast<size_t>(bytes) / sizeof(uint64_t);
    const std::unique_ptr<uint64_t[]> memory(new uint64_t[words]);
    for (const uint64_t mask : {uint64_t{0}, ~uint64_t{0}}) {
      at::parallel_for(0, static_cast<int64_t>(words), 1 << 16, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<uint64_t>(begin); i < static_cast<uint64_t>(end); ++i) memory[i] = pattern(i) ^ mask;
      });
      std::atomic<int64_t> wrong = 0;
      at::parallel_for(0, static_cast<int64_t>(words), 1 << 16, [&](int64_t begin, int64_t end) {
        int64_t here = 0;
        for (auto i = static_cast<uint64_t>(begin); i < static_cast<uint64_t>(end); ++i) here += memory[i] != (pattern(i) ^ mask);
        wrong += here;
      });
      if (wrong > 0) return against(fmt::format("memory does not hold what is written to it: {} words of {} differ", wrong.load(), words));
    }
    fitness_.looked_at.push_back(base::format_bytes(bytes) + " of memory: holds two patterns");
  }

  void write_to(const fs::path& folder) {
    std::string text(kFileBytes, '\0');
    for (size_t i = 0; i < text.size(); i += 8) {
      const auto word = pattern(i);
      std::copy_n(reinterpret_cast<const char*>(&word), 8, text.begin() + static_cast<ptrdiff_t>(i));
    }
    const auto path = folder / fmt::format(".ingot-fit-{}-{}", fitness_.node, getpid());
    struct Remover {
      const fs::path& path;
      ~Remover() {
        std::error_code ignored;
        fs::remove(path, ignored);
      }
    } const remover{path};
    {
      base::OutputFile file(path);
      file.write(text);
      file.sync();
      file.close();
    }
    // From the disk, where the system heeds that, and not from memory.
    if (const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC); descriptor >= 0) {
      posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
      close(descriptor);
    }
    if (base::read_file(path) != text) return against(folder.string() + " does not hold what is written to it");
    fitness_.looked_at.push_back(fmt::format("{}: holds {}, {} free", folder.string(), base::format_bytes(static_cast<int64_t>(kFileBytes)),
                                             base::format_bytes(base::disk_space(folder).free_bytes)));
  }

  const FitnessOptions& options_;
  std::mutex mutex_;
  Fitness fitness_;
};

}  // namespace

std::string Fitness::text() const {
  auto text =
      is_fit() ? fmt::format("{} is fit ({:.1f} s)\n", node, seconds) : fmt::format("{} is not fit: {}\n", node, fmt::join(reasons, "; "));
  for (const auto& line : looked_at) text += "  " + line + "\n";
  for (const auto& counter : hardware.counters)
    text += fmt::format("  {}{}: {:g}\n", words_for(counter.counted), counter.part.empty() ? "" : " of " + counter.part, counter.value);
  for (const auto& what : hardware.absent) text += "  not known: " + what + "\n";
  return text;
}

nlohmann::ordered_json Fitness::to_json() const {
  using Json = nlohmann::ordered_json;
  auto counters = Json::array();
  for (const auto& c : hardware.counters) counters.push_back({{"name", name_of(c.counted)}, {"part", c.part}, {"value", c.value}});
  return {{"node", node},         {"fit", is_fit()},           {"reasons", reasons}, {"looked_at", looked_at},
          {"counters", counters}, {"absent", hardware.absent}, {"seconds", seconds}};
}

Fitness examine_fitness(const FitnessOptions& options) { return Examination(options).run(); }

}  // namespace ingot::health
