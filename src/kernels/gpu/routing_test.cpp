// Rows on their way to experts and back: the CPU's kernels against plain sorting, picking and adding, the GPU's, which the host runs thread
// by thread, against the CPU's. All exactly: nothing is multiplied, and sums have one order.
#include "kernels/routing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/gpu/host_kernels.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels::gpu {
namespace {

constexpr const HostKernels* kWaves[] = {&host_kernels_wave32, &host_kernels_wave64};

std::vector<at::Tensor> tensors_of(const SortedSlots& s) { return {s.order, s.ends, s.inverse, s.is_routed}; }

struct Slots {
  const char* name;
  int64_t slots, experts, runs;
  int64_t (*choice)(int64_t random, int64_t experts);

  at::Tensor chosen() const {
    std::mt19937 random(7);
    auto chosen = at::empty({slots}, at::kLong);
    for (int64_t i = 0; i < slots; ++i) chosen.data_ptr<int64_t>()[i] = choice(static_cast<int64_t>(random()), experts);
    return chosen;
  }
};

int64_t any(int64_t random, int64_t experts) { return random % (experts + 1); }
int64_t first_or_fourth(int64_t random, int64_t) { return random % 2 * 3; }
int64_t last(int64_t, int64_t experts) { return experts - 1; }
int64_t skipped(int64_t, int64_t experts) { return experts; }

// Runs of several tiles, of a part of one, of no slots; several runs for a thread of the block that places them, or several threads for
// one.
constexpr Slots kSlots[] = {{"some", 37, 5, 1, any},
                            {"one", 1, 1, 1, last},
                            {"none", 0, 4, 1, any},
                            {"more runs than slots", 3, 4, 7, any},
                            {"tiles", 2 * 1024 + 5, 16, 1, any},
                            {"runs", 5003, 16, 9, any},
                            {"runs of tiles", 5003, 8, 3, any},
                            {"a wave of experts", 700, 63, 2, any},
                            {"many experts", 3001, 257, 21, any},
                            {"as many experts as fit", 1025, cpu::kMostClassesOfSlots - 1, 2, any},
                            {"empty experts", 1500, 6, 4, first_or_fourth},
                            {"all on one expert", 1500, 6, 4, last},
                            {"all skipped", 1500, 6, 4, skipped}};

TEST(RoutingSort, of_the_cpu_is_stable) {
  auto all = std::vector(std::begin(kSlots), std::end(kSlots));
  all.push_back({"more experts than fit", 2000, 600, 1, any});
  for (const auto& c : all) {
    SCOPED_TRACE(c.name);
    const auto expected = tensors_of(reference::sort_slots(c.chosen(), c.experts)), found = tensors_of(sort_slots(c.chosen(), c.experts));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

TEST(RoutingSort, of_a_gpu_equals_the_cpus_in_every_order_of_threads) {
  for (const auto& c : kSlots) {
    SCOPED_TRACE(c.name);
    const auto chosen = c.chosen();
    const auto sorted = [&](int64_t runs, const auto& kernel) {
      const auto wrong = [](int64_t size, at::ScalarType dtype) { return at::full({size}, -1, dtype); };
      const SortedSlots s{wrong(c.slots, at::kLong), wrong(c.experts, at::kInt), wrong(c.slots, at::kLong), wrong(c.slots, at::kFloat)};
      const at::Tensor counts = wrong(runs * (c.experts + 1), at::kInt);
      kernel(cpu::SortSlotsProblem{.rows = 1,
                                   .slots = c.slots,
                                   .experts = c.experts,
                                   .choice = chosen.const_data_ptr<int64_t>(),
                                   .order = s.order.data_ptr<int64_t>(),
                                   .inverse = s.inverse.data_ptr<int64_t>(),
                                   .ends = s.ends.data_ptr<int32_t>(),
                                   .is_routed = s.is_routed.data_ptr<float>(),
                                   .counts = counts.data_ptr<int32_t>(),
                                   .runs = runs});
      return tensors_of(s);
    };
    const auto expected = sorted(1, [](const auto& p) { cpu::sort_slots(p, 0, p.rows); });
    for (const auto* kernels : kWaves)
      for (const uint64_t seed : {0, 1, 2}) {
        const auto found = sorted(c.runs, [&](const auto& p) { kernels->sort_slots(p, seed); });
        for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i << ", seed " << seed;
      }
  }
}

void gather_on_cpu(const cpu::GatherRowsProblem& p) { cpu::gather_rows(p, 0, p.rows); }
void sum_on_cpu(const cpu::SumSlotsProblem& p) { cpu::sum_slots(p, 0, p.rows); }

struct Rows {
  int64_t tokens, width, top_k;
  at::ScalarType in, out;
  at::Tensor order = sort_slots(at::randint(5, {tokens * top_k}, at::kLong), 4).order;  // or an inverse: some order

  // `begin`: elements in front of it, so that no vector is aligned.
  at::Tensor random(int64_t rows, int64_t begin = 0) const {
    return at::randn({rows * width + begin}).to(in).narrow(0, begin, rows * width).view({rows, width});
  }
  template <class Problem, class Kernel>
  at::Tensor made(int64_t rows, const at::Tensor& x, const Kernel& kernel) const {
    auto made = at::full({rows, width}, std::numeric_limits<double>::quiet_NaN(), out);
    kernel(Problem{rows, width, top_k, in == at::kBFloat16, out == at::kBFloat16, x.const_data_ptr(), order.const_data_ptr<int64_t>(),
                   made.data_ptr()});
    return made;
  }
  template <class Kernel>
  at::Tensor gathered(const at::Tensor& x, const Kernel& kernel) const {
    return made<cpu::GatherRowsProblem>(order.numel(), x, kernel);
  }
  template <class Kernel>
  at::Tensor summed(const at::Tensor& x, const Kernel& kernel) const {
    return made<cpu::SumSlotsProblem>(tokens, x, kernel);
  }
};

template <class Body>
void for_each_rows(const Body& body) {
  at::manual_seed(9);
  for (const auto& [tokens, width] : {std::pair{1, 1}, std::pair{13, 3}, std::pair{7, 20}, std::pair{5, 264}})
    for (const int64_t top_k : {1, 2, 8})
      for (const auto in : {at::kFloat, at::kBFloat16})
        for (const auto out : {at::kFloat, at::kBFloat16}) {
          SCOPED_TRACE(fmt::format("{}x{}, top {}, {} to {}", tokens, width, top_k, c10::toString(in), c10::toString(out)));
          body(Rows{tokens, width, top_k, in, out});
        }
}

TEST(RoutingRows, of_the_cpu_are_picked_and_added_in_the_order_of_slots) {
  for_each_rows([](const Rows& c) {
    const auto x = c.random(c.tokens), by_slot = c.random(c.order.numel());
    EXPECT_TRUE(at::equal(gather_rows(x, c.order, c.top_k, c.out), x.index_select(0, c.order.div(c.top_k, "floor")).to(c.out)));
    const auto rows = by_slot.index_select(0, c.order).view({c.tokens, c.top_k, c.width}).to(at::kFloat);
    auto sum = rows.select(1, 0);
    for (int64_t k = 1; k < c.top_k; ++k) sum = sum + rows.select(1, k);
    EXPECT_TRUE(at::equal(sum_slots(by_slot, c.order, c.top_k, c.out), sum.to(c.out)));
    EXPECT_TRUE(at::equal(c.summed(by_slot, sum_on_cpu), sum.to(c.out)));
  });
}

TEST(RoutingRows, of_a_gpu_equal_the_cpus_in_every_order_of_threads) {
  for_each_rows([](const Rows& c) {
    for (const int64_t begin : {0, 1}) {
      const auto x = c.random(c.tokens, begin), by_slot = c.random(c.order.numel(), begin);
      const auto expected = c.gathered(x, gather_on_cpu), expected_sum = c.summed(by_slot, sum_on_cpu);
      for (const auto* kernels : kWaves)
        for (const uint64_t seed : {0, 1}) {
          const auto gather = [&](const auto& p) { kernels->gather_rows(p, seed); };
          const auto sum = [&](const auto& p) { kernels->sum_slots(p, seed); };
          EXPECT_TRUE(at::equal(c.gathered(x, gather), expected)) << "from " << begin << ", seed " << seed;
          EXPECT_TRUE(at::equal(c.summed(by_slot, sum), expected_sum)) << "from " << begin << ", seed " << seed;
        }
    }
  });
}

// In fp64 there are no kernels of our own.
TEST(RoutingRows, in_any_dtype_and_layout_are_those_of_the_reference) {
  const auto inverse = at::tensor({5, 0, 3, 2, 1, 4}, at::kLong);
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const auto x = at::randn({6, 6}, dtype).t();
    EXPECT_TRUE(at::allclose(gather_rows(x, inverse, 2, dtype), reference::gather_rows(x, inverse, 2, dtype), 0, 0));
    EXPECT_TRUE(at::allclose(sum_slots(x, inverse, 2, dtype), reference::sum_slots(x, inverse, 2, dtype), 1e-6, 1e-6));
    EXPECT_TRUE(at::equal(sum_slots(x, inverse, 1, dtype), x.index_select(0, inverse)));
  }
}

struct Routed {
  SortedSlots sorted;
  at::Tensor rows, sum;
};
Routed routed(const at::Tensor& x, const at::Tensor& choice, int64_t experts, int64_t top_k) {
  Routed r{sort_slots(choice, experts), {}, {}};
  r.rows = gather_rows(x, r.sorted.order, top_k, at::kBFloat16);
  r.sum = sum_slots(r.rows, r.sorted.inverse, top_k, at::kFloat);
  return r;
}

// What has not been waited for must not be needed: the choice changes behind the kernels.
TEST(Routing, on_the_emulated_device_is_done_in_its_order) {
  const auto device = device::emulated_device(0);
  const auto x = at::randn({700, 12}), choice = at::randint(9, {1400}, at::kLong);
  auto there = choice.to(device);
  const auto found = routed(x.to(device), there, 8, 2), expected = routed(x, choice, 8, 2);
  there.zero_();
  EXPECT_TRUE(at::equal(found.sum.cpu(), expected.sum));
  EXPECT_TRUE(at::equal(found.rows.cpu(), expected.rows));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(tensors_of(found.sorted)[i].cpu(), tensors_of(expected.sorted)[i])) << i;
}

TEST(Routing, is_counted_with_its_memory_and_waits_for_nobody) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto on = at::TensorOptions().device(counting.device());
  const auto x = at::empty({700, 12}, on.dtype(at::kFloat)), choice = at::empty({1400}, on.dtype(at::kLong));
  device::Tracer tracer(counting.device());
  const device::PeakSince peak(counting.device());
  const auto sorted = sort_slots(choice, 8);
  EXPECT_EQ(peak.bytes(), 1400 * (8 + 8 + 4) + 8 * 4 + 2 * 9 * 4);  // two runs
  const auto rows = gather_rows(x, sorted.order, 2, at::kBFloat16), sum = sum_slots(rows, sorted.inverse, 2, at::kFloat);
  const auto trace = tracer.finish();
  std::vector<std::string> names;
  for (const auto& operation : trace.operations)
    if (const auto name = trace.name_of(operation); !name.starts_with("aten::")) names.emplace_back(name);
  EXPECT_THAT(names, testing::ElementsAre("sort_slots", "gather_rows", "sum_slots"));
  EXPECT_TRUE(trace.host_accesses.empty());
}

}  // namespace
}  // namespace ingot::kernels::gpu
