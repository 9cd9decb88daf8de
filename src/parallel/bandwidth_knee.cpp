#include "parallel/bandwidth_knee.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine.h"

namespace ingot::parallel {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSmallestKnee = 256 << 10;

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

int64_t find_bandwidth_knee(const std::function<double(int64_t bytes)>& seconds_of, int64_t most_bytes) {
  constexpr double kNear = 0.8, kGrows = 1.05;
  constexpr int kFlat = 3;                        // sizes after which the best rate counts as the peak
  std::vector<std::pair<int64_t, double>> curve;  // bytes, bytes per second
  double peak = 0;
  int flat = 0;
  for (int64_t bytes = kSmallestKnee; flat < kFlat && (curve.empty() || bytes <= most_bytes); bytes *= 2) {
    const double rate = static_cast<double>(bytes) / seconds_of(bytes);
    flat = rate > kGrows * peak ? 0 : flat + 1;
    peak = std::max(peak, rate);
    curve.emplace_back(bytes, rate);
  }
  const auto knee = std::find_if(curve.begin(), curve.end(), [&](const auto& point) { return point.second >= kNear * peak; });
  return knee->first;
}

int64_t measure_bandwidth_knee(comm::Group& group, at::Device device, const KneeQuestion& question) {
  if (group.size() == 1) return 0;
  const auto agreed = [&](double value, comm::Reduction how) {
    const auto all = at::full({1}, value, at::kDouble);
    group.all_reduce(all, how);
    return all.item<double>();
  };
  const auto seconds_of = [&](int64_t bytes) {
    const int64_t chunk = std::max<int64_t>(1, bytes / 4 / group.size());
    const auto sent = at::zeros({chunk * group.size()}, at::TensorOptions().dtype(at::kFloat).device(device));
    const auto own = question.is_scattered ? at::empty({chunk}, sent.options()) : sent;
    const auto reduce = [&] { question.is_scattered ? group.reduce_scatter(own, sent) : group.all_reduce(sent); };
    reduce();
    double best = 1e30;
    for (int repeat = 0; repeat < 3; ++repeat) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      reduce();
      if (!device.is_cpu()) (void)own[0].item<float>();  // waits for it
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return agreed(best, comm::Reduction::max);  // all ranks must decide alike
  };
  double most = static_cast<double>(question.most_bytes);
  // Ranks of one machine share its memory; of a GPU's it is little.
  if (const int64_t available = base::available_memory_bytes(); device.is_cpu() && available > 0)
    most = std::min(most, static_cast<double>(available) / 16);
  return find_bandwidth_knee(seconds_of, static_cast<int64_t>(agreed(most, comm::Reduction::min)));
}

int64_t kept_bandwidth_knee(comm::Group& group, at::Device device, const KneeQuestion& question, const fs::path& cache_folder,
                            const std::string& key) {
  if (group.size() == 1) return 0;
  const auto file = cache_folder / "bandwidth-knee" /
                    fmt::format("{}-{}-{}", key, question.is_scattered ? "reduce_scatter" : "all_reduce", question.most_bytes >> 10);
  const bool keeps = group.rank() == 0 && !cache_folder.empty();
  const auto known = at::full({1}, keeps ? read_kept(file) : 0, at::kLong);
  group.broadcast(known, 0);
  if (const int64_t bytes = known.item<int64_t>(); bytes > 0) return bytes;
  const auto measured = at::full_like(known, measure_bandwidth_knee(group, device, question));
  if (keeps) measured.fill_(keep_first(file, measured.item<int64_t>()));
  group.broadcast(measured, 0);
  return measured.item<int64_t>();
}

}  // namespace ingot::parallel
