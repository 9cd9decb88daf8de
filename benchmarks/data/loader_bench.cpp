// What a run pays for its data, in one process: opening the sources, the first batch, and then batches from the prefetcher beside a step.
// benchmarks/data_loading.py runs it:
//   loader_bench PACKING SEQ_LEN BATCH BATCHES STEP_MS SOURCE…
// While the step lasts, a thread for each core is busy, as GEMMs are. Prints one JSON object.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/loader.h"
#include "data/prefetcher.h"

using namespace ingot::data;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

double thread_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

void keep_cores_busy(double for_s) {
  const auto start = Clock::now();
  std::vector<std::jthread> threads;
  for (unsigned core = 0; core < std::thread::hardware_concurrency(); ++core)
    threads.emplace_back([&] {
      while (seconds_since(start) < for_s) {
      }
    });
}

}  // namespace

int main(int count, char** words) {
  if (count < 7) {
    std::fprintf(stderr, "loader_bench PACKING SEQ_LEN BATCH BATCHES STEP_MS SOURCE…\n");
    return 2;
  }
  DataConfig config;
  config.packing = words[1];
  config.seq_len = std::stoll(words[2]);
  const int64_t batch = std::stoll(words[3]), batches = std::stoll(words[4]);
  const double step_s = std::stod(words[5]) / 1e3;
  for (int i = 6; i < count; ++i) config.sources.push_back({words[i], 1});

  const int64_t before = resident_bytes();
  auto start = Clock::now();
  const Loader loader(config, Split::train);
  const double open_s = seconds_since(start);
  const int64_t opened = resident_bytes();
  start = Clock::now();
  loader.batch(0, batch);
  const double first_s = seconds_since(start);

  std::vector<double> wall_s, processor_s, waits_s;
  for (int64_t i = 1; i <= batches; ++i) {
    start = Clock::now();
    const double used = thread_seconds();
    loader.batch(i * batch, batch);
    processor_s.push_back(thread_seconds() - used);
    wall_s.push_back(seconds_since(start));
  }
  Prefetcher prefetcher(loader, config.prefetch, batch);
  for (int64_t i = 0; step_s > 0 && i < std::min<int64_t>(batches, 30); ++i) {
    start = Clock::now();
    prefetcher.get((batches + 1 + i) * batch, batch);
    if (i > 1) waits_s.push_back(seconds_since(start));
    keep_cores_busy(step_s);
  }
  nlohmann::json out{{"documents", 0},
                     {"sources", loader.sources()},
                     {"rows", loader.samples()},
                     {"open_s", open_s},
                     {"first_batch_s", first_s},
                     {"batch_s", median(wall_s)},
                     {"batch_processor_s", median(processor_s)},
                     {"wait_s", waits_s.empty() ? 0 : median(waits_s)},
                     {"opened_bytes", opened - before},
                     {"batches_bytes", resident_bytes() - before}};
  int64_t documents = 0;
  for (size_t source = 0; source < loader.sources(); ++source) documents += loader.dataset(source).documents();
  out["documents"] = documents;
  std::printf("%s\n", out.dump().c_str());
}
