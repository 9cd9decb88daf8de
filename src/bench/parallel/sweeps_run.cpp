// `ingot bench parallel` on ranks that are there: a bar for each kind of layer on the first one, until Ctrl-C.
#include <optional>

#include "base/progress.h"
#include "bench/parallel/layers.h"
#include "bench/parallel/measured.h"

namespace ingot::bench {

schedule::SweepResult measure_sweeps(const std::vector<schedule::Sweep>& sweeps, int repeats, comm::World& world, at::Device device,
                                     const resilience::StopSignal& stop) {
  schedule::SweepResult all;
  for (const auto& sweep : sweeps) {
    std::optional<base::ProgressBar> bar;
    auto part =
        measure_sweep(sweep, {sweep.base.layer}, repeats, world, device, [&](size_t done, size_t count, const schedule::Layout& next) {
          if (world.rank() == 0 && !bar)
            bar.emplace(fmt::format("{}, {} ranks", schedule::name_of(next.layer), world.size()), static_cast<int64_t>(count),
                        base::ProgressUnit::count);
          if (bar) bar->update(static_cast<int64_t>(done), fmt::format("{} {}", next.label(), next.sizes.seq));
          return stop.received() == 0;
        });
    if (bar) bar->finish();
    append(all, std::move(part));
  }
  return all;
}

}  // namespace ingot::bench
