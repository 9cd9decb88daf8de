// Rows of tokens on their way to experts and back on a GPU: cpu/rows_routing.h has the problems.
//
// The sort counts, in three kernels and without atomics, so that it is stable: a block counts the slots of each expert in a run of slots,
// one block finds where each run's rows begin, a block gives the slots of its run their rows. A thread has an expert and looks for it in
// tiles of the run: twice as many comparisons for a slot as there are experts, beside some kilobytes of its row that are gathered.
// Gathering and summing are bound by memory: a thread a vector, in a loop over the grid.
#pragma once

#include "kernels/cpu/rows_routing.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// Part of a run's slots, in shared memory.
struct SlotTile {
  static constexpr int kSlots = 1024, kAtOnce = 4;
  using V = Vector<float, kAtOnce>;
  int64_t from, slots;  // of the problem

  INGOT_DEVICE SlotTile(int64_t first, int64_t end) : from(first), slots(end - first < kSlots ? end - first : kSlots) {}
  INGOT_DEVICE int vectors() const { return static_cast<int>(slots + kAtOnce - 1) / kAtOnce; }
  /// Their experts; behind them what no thread looks for.
  INGOT_DEVICE void load(const int64_t* choice, float* experts) const {
    for (int i = thread_index(); i < vectors() * kAtOnce; i += block_threads())
      experts[i] = i < slots ? static_cast<float>(choice[from + i]) : -1.0f;
  }
};

/// p.counts: of each run the slots of each expert.
struct CountSlots {
  static INGOT_DEVICE void run(const cpu::SortSlotsProblem& p) {
    INGOT_SHARED_FLOATS(experts, SlotTile::kSlots);
    const int64_t end = first_row_of(p.slots, block_index() + 1, p.runs);
    const float own = static_cast<float>(thread_index());
    int count = 0;
    for (int64_t from = first_row_of(p.slots, block_index(), p.runs); from < end; from += SlotTile::kSlots) {
      const SlotTile tile(from, end);
      tile.load(p.choice, experts);
      barrier();
      for (int v = 0; v < tile.vectors(); ++v) {
        const auto some = reinterpret_cast<const SlotTile::V*>(experts)[v];
        for (int k = 0; k < SlotTile::kAtOnce; ++k) count += some.at[k] == own ? 1 : 0;
      }
      barrier();  // before the next tile is put there
    }
    if (thread_index() <= p.experts) p.counts[block_index() * (p.experts + 1) + thread_index()] = count;
  }
};

/// p.counts: now the first row of each run's slots of each expert. One block; threads share out the runs of an expert.
struct PlaceRuns {
  static constexpr int kThreads = cpu::kMostClassesOfSlots, kAtOnce = 8;

  static INGOT_DEVICE void run(const cpu::SortSlotsProblem& p) {
    INGOT_SHARED_FLOATS(sums, kThreads);  // [experts + 1][parts]
    const int64_t classes = p.experts + 1, parts = quotient(kThreads, classes);
    const int64_t expert = remainder(thread_index(), classes), part = quotient(thread_index(), classes), place = expert * parts + part;
    const int64_t begin = part < parts ? first_row_of(p.runs, part, parts) : 0,
                  end = part < parts ? first_row_of(p.runs, part + 1, parts) : 0;
    int32_t* const counts = p.counts + expert;
    int sum = 0;
    for (int64_t run = begin; run < end; ++run) sum += counts[run * classes];
    if (part < parts) sums[place] = static_cast<float>(sum);
    barrier();
    if (part >= parts) return;
    int row = 0;
    for (int64_t i = 0; i < place; ++i) row += static_cast<int>(sums[i]);
    INGOT_ROLLED
    for (int64_t run = begin; run < end; run += kAtOnce) {  // loads ahead of the stores that they would wait for
      int some[kAtOnce];
      INGOT_UNROLL
      for (int k = 0; k < kAtOnce; ++k) some[k] = run + k < end ? counts[(run + k) * classes] : 0;
      INGOT_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        if (run + k < end) counts[(run + k) * classes] = row;
        row += some[k];
      }
    }
    if (part == parts - 1 && expert < p.experts) p.ends[expert] = expert == p.experts - 1 ? static_cast<int32_t>(p.slots) : row;
  }
};

struct PlaceSlots {
  static INGOT_DEVICE void run(const cpu::SortSlotsProblem& p) {
    INGOT_SHARED_FLOATS(experts, SlotTile::kSlots);
    INGOT_SHARED_FLOATS(ranks, SlotTile::kSlots);  // among the run's slots of the same expert
    const int64_t end = first_row_of(p.slots, block_index() + 1, p.runs);
    const int32_t* const first_rows = p.counts + block_index() * (p.experts + 1);
    const float own = static_cast<float>(thread_index());
    float count = 0;
    for (int64_t from = first_row_of(p.slots, block_index(), p.runs); from < end; from += SlotTile::kSlots) {
      const SlotTile tile(from, end);
      tile.load(p.choice, experts);
      barrier();
      for (int v = 0; v < tile.vectors(); ++v) {
        const auto some = reinterpret_cast<const SlotTile::V*>(experts)[v];
        for (int k = 0; k < SlotTile::kAtOnce; ++k)
          if (some.at[k] == own) ranks[v * SlotTile::kAtOnce + k] = count++;
      }
      barrier();
      for (int i = thread_index(); i < tile.slots; i += block_threads()) {  // those that this thread loads
        const int expert = static_cast<int>(experts[i]);
        const int64_t slot = from + i, row = first_rows[expert] + static_cast<int>(ranks[i]);
        p.order[row] = slot;
        p.inverse[slot] = row;
        p.is_routed[row] = expert < p.experts ? 1.0f : 0.0f;
      }
    }
  }
};

template <class From, class To>
INGOT_DEVICE void convert(From x, To& out) {
  from_float(to_float(x), out);
}
template <class T>
INGOT_DEVICE void convert(T x, T& out) {
  out = x;
}

template <class From, class To, int count>
struct GatherRows {
  static INGOT_DEVICE void run(const cpu::GatherRowsProblem& p) {
    const int64_t per_row = quotient(p.width, count), vectors = p.rows * per_row;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      const int64_t row = quotient(i, per_row), column = remainder(i, per_row), token = quotient(p.order[row], p.top_k);
      const auto x = static_cast<const Vector<From, count>*>(p.x)[token * per_row + column];
      Vector<To, count> out;
      for (int k = 0; k < count; ++k) convert(x.at[k], out.at[k]);
      static_cast<Vector<To, count>*>(p.out)[i] = out;
    }
  }
};

template <class From, class To, int count>
struct SumSlots {
  static INGOT_DEVICE void run(const cpu::SumSlotsProblem& p) {
    const auto* const x = static_cast<const Vector<From, count>*>(p.x);
    const int64_t per_row = quotient(p.width, count), vectors = p.rows * per_row;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      const int64_t token = quotient(i, per_row), column = remainder(i, per_row);
      const int64_t* const rows = p.inverse + token * p.top_k;
      const auto first = x[rows[0] * per_row + column];
      float sum[count];
      for (int k = 0; k < count; ++k) sum[k] = to_float(first.at[k]);
      for (int64_t slot = 1; slot < p.top_k; ++slot) {
        const auto next = x[rows[slot] * per_row + column];
        for (int k = 0; k < count; ++k) sum[k] += to_float(next.at[k]);
      }
      Vector<To, count> out;
      for (int k = 0; k < count; ++k) from_float(sum[k], out.at[k]);
      static_cast<Vector<To, count>*>(p.out)[i] = out;
    }
  }
};

template <class Launcher>
auto sort_slots(const cpu::SortSlotsProblem& p, const Launcher& launcher) {
  const int threads = static_cast<int>((p.experts + 1 + 63) / 64 * 64);  // whole waves
  if (const auto error = launcher.template run<CountSlots>(p.runs, threads, p)) return error;
  if (const auto error = launcher.template run<PlaceRuns>(1, PlaceRuns::kThreads, p)) return error;
  return launcher.template run<PlaceSlots>(p.runs, threads, p);
}

/// With the widest vectors that fit: 16 bytes of the wider dtype.
template <template <class, class, int> class Kernel, class Problem, class Launcher>
auto launch_rows_of_slots(const Problem& p, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto with = [&]<class From, class To, int count>(Vector<From, count>, Vector<To, count>) {
    return launcher.template run<Kernel<From, To, count>>((p.rows * (p.width / count) + kThreads - 1) / kThreads, kThreads, p);
  };
  const int fitting = !is_aligned(p.x) || !is_aligned(p.out) ? 1 : p.width % 8 == 0 ? 8 : p.width % 4 == 0 ? 4 : 1;
  if (p.is_bf16 && p.out_is_bf16)
    return fitting == 8 ? with(Vector<Bf16, 8>{}, Vector<Bf16, 8>{}) : with(Vector<Bf16, 1>{}, Vector<Bf16, 1>{});
  if (p.is_bf16) return fitting >= 4 ? with(Vector<Bf16, 4>{}, Vector<float, 4>{}) : with(Vector<Bf16, 1>{}, Vector<float, 1>{});
  if (p.out_is_bf16) return fitting >= 4 ? with(Vector<float, 4>{}, Vector<Bf16, 4>{}) : with(Vector<float, 1>{}, Vector<Bf16, 1>{});
  return fitting >= 4 ? with(Vector<float, 4>{}, Vector<float, 4>{}) : with(Vector<float, 1>{}, Vector<float, 1>{});
}

template <class Launcher>
auto gather_rows(const cpu::GatherRowsProblem& p, const Launcher& launcher) {
  return launch_rows_of_slots<GatherRows>(p, launcher);
}
template <class Launcher>
auto sum_slots(const cpu::SumSlotsProblem& p, const Launcher& launcher) {
  return launch_rows_of_slots<SumSlots>(p, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
