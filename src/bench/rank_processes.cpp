#include "bench/rank_processes.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "device/device.h"
#include "resilience/launch.h"

namespace ingot::bench {

at::Device device_for_backend(const std::string& backend, int64_t local_rank) {
  if (backend != "nccl") return at::kCPU;
  if (const int64_t gpus = device::gpus(); local_rank >= gpus)
    throw base::UsageError("--backend nccl needs a GPU for each rank of a machine, and this program sees {}; ingot doctor says why", gpus);
  return device::device_of_rank("cuda", local_rank);
}

nlohmann::json results_of_processes(int ranks, std::vector<std::string> command, const std::string& start) {
  const auto file = base::temporary_folder() / fmt::format("ingot_bench_{}_{}.json", ::getpid(), ranks);
  command.insert(command.end(), {"--as-rank", file.string()});
  struct Remover {
    const std::filesystem::path& file;
    ~Remover() {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  } remover{file};
  std::filesystem::remove(file);  // of a process that had this number and was killed
  if (!start.empty()) base::write_file_atomically(file, start);
  const int status = resilience::launch({.ranks = ranks, .command = std::move(command)});
  if (status != 0) throw base::Error(fmt::format("the {} ranks did not finish; what they said is above", ranks));
  return nlohmann::json::parse(base::read_file(file));
}

}  // namespace ingot::bench
