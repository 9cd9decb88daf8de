#include "parallel/bandwidth_knee.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace ingot::parallel {
namespace {

namespace fs = std::filesystem;

// 0: not known.
int64_t read_kept(const fs::path& file) {
  try {
    const auto text = base::read_file(file);
    int64_t bytes = 0;
    std::from_chars(text.data(), text.data() + text.size(), bytes);
    return bytes > 0 && bytes <= (int64_t{1} << 40) ? bytes : 0;
  } catch (const base::Error&) {
    return 0;
  }
}

// Keeps `bytes` unless another job has kept its own answer meanwhile; returns what is kept. A link appears whole or not at all.
int64_t keep_first(const fs::path& file, int64_t bytes) {
  try {
    base::make_directories(file.parent_path());
    const fs::path own = file.string() + "." + std::to_string(::getpid());
    base::write_file_atomically(own, std::to_string(bytes) + "\n");
    std::error_code taken;
    fs::create_hard_link(own, file, taken);
    fs::remove(own);
    if (const int64_t others = taken ? read_kept(file) : 0; others > 0) return others;
    if (taken) base::write_file_atomically(file, std::to_string(bytes) + "\n");  // what was there is no number
  } catch (const std::exception& failure) {
    base::log_warning("the measured bandwidth is not kept: {}", failure.what());
  }
  return bytes;
}

}  // namespace

int64_t measure_bandwidth_knee(comm::Group& group, at::Device device) {
  if (group.size() == 1) return 0;
  constexpr int64_t kSmallest = 256 << 10, kLargest = 32 << 20;
  constexpr double kNear = 0.8;
  const auto buffer = at::zeros({kLargest / 4}, at::TensorOptions().dtype(at::kFloat).device(device));
  std::vector<std::pair<int64_t, double>> curve;  // bytes, bytes per second
  for (int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    const auto part = buffer.narrow(0, 0, bytes / 4);
    group.all_reduce(part);
    double best = 1e30;
    for (int repeat = 0; repeat < 3; ++repeat) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      group.all_reduce(part);
      if (!device.is_cpu()) (void)part[0].item<float>();  // waits for it
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    auto slowest = at::full({1}, best, at::TensorOptions().dtype(at::kDouble).device(device));
    group.all_reduce(slowest, comm::Reduction::max);  // all ranks must decide alike
    curve.emplace_back(bytes, static_cast<double>(bytes) / slowest.item<double>());
  }
  double peak = 0;
  for (const auto& [bytes, rate] : curve) peak = std::max(peak, rate);
  for (const auto& [bytes, rate] : curve)
    if (rate >= kNear * peak) return bytes;
  return kLargest;
}

int64_t kept_bandwidth_knee(comm::Group& group, at::Device device, const fs::path& cache_folder, const std::string& key) {
  if (group.size() == 1) return 0;
  const auto file = cache_folder / "bandwidth-knee" / key;
  const bool keeps = group.rank() == 0 && !cache_folder.empty();
  const auto known = at::full({1}, keeps ? read_kept(file) : 0, at::TensorOptions().dtype(at::kLong).device(device));
  group.broadcast(known, 0);
  if (const int64_t bytes = known.item<int64_t>(); bytes > 0) return bytes;
  const auto measured = at::full_like(known, measure_bandwidth_knee(group, device));
  if (keeps) measured.fill_(keep_first(file, measured.item<int64_t>()));
  group.broadcast(measured, 0);
  return measured.item<int64_t>();
}

}  // namespace ingot::parallel
