// Gradients of several ranks, as threads, summed in buckets of every size and under every ZeRO stage; new weights brought back to
// everyone; bytes counted; and that the sums travel while backward computes.
#include "parallel/buckets.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/error.h"
#include "comm/world.h"
#include "device/stream.h"
#include "device/test_device.h"
#include "parallel/bandwidth_knee.h"

namespace ingot::parallel {
namespace {

using layers::Parameter;
using layers::ParameterList;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLayers = 8;

// An embedding (layer -1), blocks with a matrix and a vector each, and a head.
void declare(ParameterList& list, int64_t width, int rank = 0) {
  list.add({.name = "embedding", .shape = {7, width}, .kind = Parameter::Kind::embedding});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    list.begin_layer(layer);
    list.add({.name = "matrix" + std::to_string(layer), .shape = {width, width}, .kind = Parameter::Kind::matrix});
    list.add({.name = "vector" + std::to_string(layer), .shape = {width}});
  }
  list.begin_layer(kLayers);
  list.add({.name = "head", .shape = {7, width}, .kind = Parameter::Kind::head});
  list.add({.name = "bias", .shape = {3}, .kind = Parameter::Kind::buffer});
  list.allocate(at::kFloat, device::test_device(rank));
}

// Whole numbers, so that sums are exact, and others in each element.
at::Tensor numbered(const Parameter& p, double first) {
  return (at::arange(p.elements(), at::kFloat) + first).view(p.shape).to(p.value.device());
}

at::Tensor gradient_of(const Parameter& p, int rank, int64_t step) {
  return numbered(p, static_cast<double>(p.layer + 2) * (rank + 1) + static_cast<double>(step));
}

// What a layer's backward does: matrices go straight into the buffer, vectors are left on the leaf for collect_gradient.
void backward(ParameterList& list, int64_t layer, int rank, int64_t step) {
  for (const auto& p : list.all()) {
    if (p->layer != layer || !p->is_trained()) continue;
    if (p->name == "matrix3" && rank == 1) continue;  // nothing reached it on this rank
    if (p->kind == Parameter::Kind::vector) p->value.mutable_grad() = gradient_of(*p, rank, step);
    else p->accumulate(gradient_of(*p, rank, step));
  }
}

Buckets buckets_of(ParameterList& list, comm::Group& group, const Buckets::Options& options) {
  return {list, [&group](const Parameter&) -> comm::Group& { return group; }, options};
}

// The sum over ranks and microbatches, by the definition.
at::Tensor sum_of(const Parameter& p, int size, int64_t step, int64_t microbatches) {
  auto sum = at::zeros(p.shape);
  for (int r = 0; r < size; ++r)
    if (!(p.name == "matrix3" && r == 1)) sum += gradient_of(p, r, step).cpu() * microbatches;
  return sum;
}

struct Case {
  int zero, ranks;
  int64_t bytes, microbatches;
};
class BucketsUnder : public ::testing::TestWithParam<Case> {};

TEST_P(BucketsUnder, own_slices_hold_the_sums_and_new_values_reach_everyone) {
  const auto c = GetParam();
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    ParameterList list;
    declare(list, 24, world.rank());
    auto& group = world.everyone();
    const at::NoGradGuard no_grad;
    for (const auto& p : list.all()) p->value.copy_(numbered(*p, static_cast<double>(p->layer)));
    auto buckets = buckets_of(list, group, {.bucket_bytes = c.bytes, .zero = c.zero});
    const auto shards = buckets.shards();
    for (int64_t step = 0; step < 3; ++step) {
      buckets.begin_step();
      for (int64_t layer = -1; layer <= kLayers; ++layer) {  // what the last step wrote is there when it is needed
        buckets.before_forward(layer);
        for (const auto& p : list.all()) {
          if (p->layer != layer || !p->is_trained()) continue;
          EXPECT_TRUE(p->value.equal(numbered(*p, static_cast<double>(layer + 100 * step)))) << p->name << " step " << step;
        }
        buckets.after_forward(layer);
      }
      for (int64_t micro = 0; micro < c.microbatches; ++micro) {
        buckets.begin_backward(micro + 1 == c.microbatches);
        for (int64_t layer = kLayers; layer >= 0; --layer) {
          if (layer < kLayers) buckets.before_backward(layer);
          backward(list, layer, world.rank(), step);
          buckets.after_backward(layer);
        }
        backward(list, -1, world.rank(), step);
        list.collect_gradients();
        buckets.finish_backward();
      }
      buckets.finish_step();
      std::map<const Parameter*, int64_t> owned;
      for (const auto& shard : shards) {
        const auto expected = sum_of(*shard.parameter, c.ranks, step, c.microbatches).view(-1).narrow(0, shard.begin, shard.size());
        EXPECT_TRUE(shard.gradient_slice().cpu().equal(expected)) << shard.parameter->name << " step " << step << " rank " << world.rank();
        owned[shard.parameter] += shard.is_primary ? shard.size() : 0;
        const auto value_at = [&](int64_t steps) {
          return numbered(*shard.parameter, static_cast<double>(shard.parameter->layer + 100 * steps))
              .view(-1)
              .narrow(0, shard.begin, shard.size());
        };
        EXPECT_TRUE(shard.value.equal(value_at(step)));
        const_cast<at::Tensor&>(shard.value).copy_(value_at(step + 1));
      }
      for (const auto& p : list.all()) {  // every element has one owner that counts it
        if (!p->is_trained()) continue;
        const auto total = at::full({1}, owned[p.get()], at::kLong);
        group.all_reduce(total);
        EXPECT_EQ(total.item<int64_t>(), p->elements()) << p->name;
      }
      list.drop_gradients();
      buckets.publish();
    }
    buckets.complete_values();
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int zero : {0, 1, 2, 3})
    for (const int ranks : {2, 3})
      for (const int64_t bytes : {int64_t{0}, int64_t{700}, int64_t{5000}, int64_t{1} << 30})
        for (const int64_t microbatches : {1, 2}) all.push_back({zero, ranks, bytes, microbatches});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, BucketsUnder, ::testing::ValuesIn(cases()), [](const auto& info) {
  const auto& c = info.param;
  return fmt::format("zero{}_{}_ranks_{}_bytes_{}_microbatches", c.zero, c.ranks, c.bytes, c.microbatches);
});

// Regression: buckets had whole layers, however large those were. A layer has 608 elements, with padding.
TEST(Buckets, close_at_the_size_that_is_asked_for_within_layers_and_tensors_too) {
  comm::run_ranks(2, [&](comm::World& world) {
    for (const auto& [bytes, expected] :
         std::vector<std::pair<int64_t, size_t>>{{0, kLayers + 2}, {700, kLayers * 3 + 2}, {5000, 4}, {1 << 30, 1}}) {
      ParameterList list;
      declare(list, 24, world.rank());
      EXPECT_EQ(buckets_of(list, world.everyone(), {.bucket_bytes = bytes}).count(), expected);
    }
  });
}

// One step with two microbatches: what the table in buckets.h says, to the byte.
TEST(Buckets, send_the_bytes_that_the_formula_says) {
  for (const int zero : {0, 1, 2, 3}) {
    comm::run_ranks(4, [&](comm::World& world) {
      ParameterList list;
      declare(list, 24, world.rank());
      auto buckets = buckets_of(list, world.everyone(), {.bucket_bytes = 0, .zero = zero});
      const auto before = world.counters().totals();
      const auto sent = [&] {
        int64_t bytes = 0;
        for (const auto& [axis, traffic] : world.counters().totals()) bytes += traffic.sent_bytes;
        for (const auto& [axis, traffic] : before) bytes -= traffic.sent_bytes;
        return bytes;
      };
      buckets.begin_step();
      for (int micro = 0; micro < 2; ++micro) {
        buckets.begin_backward(micro == 1);
        for (int64_t layer = -1; layer <= kLayers; ++layer) {
          buckets.before_forward(layer);
          buckets.after_forward(layer);
        }
        for (int64_t layer = kLayers; layer >= 0; --layer) {
          if (layer < kLayers) buckets.before_backward(layer);
          backward(list, layer, world.rank(), 0);
          buckets.after_backward(layer);
        }
        backward(list, -1, world.rank(), 0);
        buckets.finish_backward();
      }
      buckets.finish_step();
      buckets.publish();
      buckets.complete_values();
      const auto padded = [](int64_t n) { return (n + 31) / 32 * 32; };
      // Matrices and vectors lie in different buckets only when weights come and go.
      int64_t all = 0, blocks = 0, ends = 0, vectors = 0;
      for (const auto& p : list.all()) {
        if (!p->is_trained()) continue;
        const int64_t n = padded(p->elements());
        if (p->kind == Parameter::Kind::vector) vectors += n;
        else if (p->kind == Parameter::Kind::matrix) blocks += n;
        else ends += n;
      }
      const auto bucket = [&](int64_t n) { return 4 * padded((n + 3) / 4); };  // a multiple of the ranks
      const int64_t matrix = padded(24 * 24), vector = padded(24), end = padded(7 * 24);
      all = zero == 3 ? kLayers * (bucket(matrix) + bucket(vector)) + 2 * bucket(end) : kLayers * bucket(matrix + vector) + 2 * bucket(end);
      const int64_t weights = kLayers * bucket(matrix);
      // In units of 4 bytes x (p - 1) / p.
      const int64_t units = zero == 0   ? 2 * all
                            : zero == 1 ? all + all
                            : zero == 2 ? 2 * all + all
                                        : 2 * all + kLayers * bucket(vector) + 2 * (2 * weights - bucket(matrix) + 2 * bucket(end));
      EXPECT_EQ(sent(), units * 4 * 3 / 4) << "zero " << zero;
    });
  }
}

TEST(Buckets, gradients_may_travel_in_bf16) {
  for (const int zero : {0, 1, 2}) {
    comm::run_ranks(2, [&](comm::World& world) {
      ParameterList list;
      declare(list, 24, world.rank());
      auto buckets = buckets_of(list, world.everyone(), {.bucket_bytes = 0, .zero = zero, .reduce_in_bf16 = true});
      const int64_t before = world.counters().totals()["world"].sent_bytes;
      buckets.begin_step();
      buckets.begin_backward(true);
      for (const auto& p : list.all())
        if (p->is_trained())
          p->accumulate(at::full(p->shape, world.rank() == 0 ? 1 + 1.0 / 512 : 2.0,
                                 at::TensorOptions().device(p->value.device())));  // rounds to 1 in bf16
      buckets.finish_backward();
      buckets.finish_step();
      for (const auto& shard : buckets.shards()) EXPECT_TRUE(shard.gradient_slice().eq(3).all().item<bool>()) << shard.parameter->name;
      EXPECT_EQ(world.counters().totals()["world"].sent_bytes - before, (zero == 0 ? 2 : 1) * buckets.elements() * 2 / 2);
    });
  }
}

// A microbatch's whole backward pass, `compute` a layer. ZeRO 3 must be told of layers before they are gone through.
void backward_at_pace(ParameterList& list, Buckets& buckets, int rank, std::chrono::milliseconds compute) {
  for (int64_t layer = kLayers; layer >= 0; --layer) {
    if (layer < kLayers) buckets.before_backward(layer);
    std::this_thread::sleep_for(compute);
    backward(list, layer, rank, 0);
    buckets.after_backward(layer);
  }
  backward(list, -1, rank, 0);
  buckets.finish_backward();
  buckets.finish_step();
}

// The wire is made as slow as backward: by turns they would take twice as long as together.
TEST(Buckets, sums_travel_while_backward_computes) {
  constexpr auto kCompute = std::chrono::milliseconds(25);  // of a layer
  const int64_t width = 256, layer_bytes = width * width * 4;
  comm::WorldOptions options;
  options.delay.bytes_per_s = static_cast<double>(layer_bytes) / 25e-3;
  const auto seconds_of = [&](int64_t bucket_bytes) {
    double longest = 0;
    comm::run_ranks(
        2,
        [&](comm::World& world) {
          ParameterList list;
          declare(list, width, world.rank());
          auto buckets = buckets_of(list, world.everyone(), {.bucket_bytes = bucket_bytes});
          buckets.begin_backward(true);
          world.everyone().barrier();
          const auto start = Clock::now();
          backward_at_pace(list, buckets, world.rank(), kCompute);
          if (const auto device = list.all()[0]->value.device(); !device.is_cpu()) device::synchronize(device);  // all is only enqueued
          if (world.rank() == 0) longest = std::chrono::duration<double>(Clock::now() - start).count();
        },
        options);
    return longest;
  };
  const double compute = 9 * 0.025, wire = 8 * 0.025;
  const double overlapped = seconds_of(layer_bytes), by_turns = seconds_of(int64_t{1} << 40);
  EXPECT_GE(by_turns, compute + wire);
  EXPECT_LE(overlapped, std::max(compute, wire) + 0.1) << "by turns: " << by_turns;  // the remainder: the last bucket, and the scheduler
}

// ZeRO 3: the weights of the next layer arrive while this one computes, forward and backward.
TEST(Buckets, weights_travel_while_layers_compute) {
  constexpr auto kCompute = std::chrono::milliseconds(25);  // of a layer
  const int64_t width = 256, half_layer_bytes = width * width * 4 / 2;
  comm::WorldOptions options;
  options.delay.bytes_per_s = static_cast<double>(half_layer_bytes) / 25e-3;
  double forward = 0, backward_s = 0;
  comm::run_ranks(
      2,
      [&](comm::World& world) {
        ParameterList list;
        declare(list, width, world.rank());
        auto buckets = buckets_of(list, world.everyone(), {.bucket_bytes = 1, .zero = 3});
        buckets.begin_step();
        world.everyone().barrier();
        auto start = Clock::now();
        for (int64_t layer = -1; layer <= kLayers; ++layer) {
          buckets.before_forward(layer);
          std::this_thread::sleep_for(kCompute);
          buckets.after_forward(layer);
        }
        if (world.rank() == 0) forward = std::chrono::duration<double>(Clock::now() - start).count();
        buckets.begin_backward(true);
        start = Clock::now();
        backward_at_pace(list, buckets, world.rank(), kCompute);
        if (world.rank() == 0) backward_s = std::chrono::duration<double>(Clock::now() - start).count();
      },
      options);
  const double compute = (kLayers + 2) * 0.025, wire = kLayers * 0.025;
  EXPECT_GE(forward, compute);
  EXPECT_LE(forward, std::max(compute, wire) + 0.075)
      << "by turns: " << compute + wire;  // the remainder: the first layers, and the scheduler
  // Backward weights come and gradients leave over one wire, at half the speed that would hide both.
  EXPECT_LE(backward_s, std::max(compute, 2 * wire) + 0.1) << "by turns: " << compute + 2 * wire;
}

TEST(Buckets, a_gradient_that_comes_too_late_is_an_error) {
  comm::run_ranks(2, [&](comm::World& world) {
    ParameterList list;
    declare(list, 8, world.rank());
    auto buckets = buckets_of(list, world.everyone(), {});
    buckets.begin_backward(true);
    buckets.after_backward(0);
    const auto late = [&] {
      backward(list, 4, world.rank(), 0);
      buckets.finish_backward();
      buckets.finish_step();
    };
    EXPECT_THROW(late(), base::NumericError);
  });
}

// One large layer under ZeRO 1: its sum comes in parts, and no byte more is sent than for one.
TEST(Buckets, of_one_layer_are_sent_one_by_one) {
  using comm::Kind;
  for (const auto& [bytes, calls] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1 << 14, 4}}) {
    comm::run_ranks(2, [&](comm::World& world) {
      ParameterList list;
      list.begin_layer(0);
      list.add({.name = "matrix", .shape = {128, 128}, .kind = Parameter::Kind::matrix});
      list.allocate(at::kFloat, at::kCPU);
      auto buckets = buckets_of(list, world.everyone(), {.bucket_bytes = bytes, .zero = 1});
      buckets.begin_step();
      buckets.begin_backward(true);
      list.all()[0]->accumulate(gradient_of(*list.all()[0], world.rank(), 0));
      buckets.after_backward(0);  // and not only at the end
      auto seen = world.counters().by_kind();
      EXPECT_EQ(seen[Kind::reduce_scatter].calls, calls);
      buckets.finish_backward();
      buckets.finish_step();
      seen = world.counters().by_kind();
      EXPECT_EQ(seen[Kind::reduce_scatter].calls, calls);
      EXPECT_EQ(seen[Kind::reduce_scatter].sent_bytes, 128 * 128 * 4 / 2);
    });
  }
}

TEST(BandwidthKnee, is_a_size_that_all_ranks_agree_on_and_times_what_will_run) {
  using comm::Kind;
  for (const bool is_scattered : {true, false}) {
    std::vector<int64_t> knees(3);
    comm::run_ranks(3, [&](comm::World& world) {
      knees[static_cast<size_t>(world.rank())] =
          measure_bandwidth_knee(world.everyone(), at::kCPU, {.is_scattered = is_scattered, .most_bytes = 4 << 20});
      auto seen = world.counters().by_kind();
      if (is_scattered) EXPECT_GT(seen[Kind::reduce_scatter].sent_bytes, seen[Kind::all_reduce].sent_bytes);
      else EXPECT_EQ(seen[Kind::reduce_scatter].calls, 0);
    });
    EXPECT_EQ(knees[0], knees[1]);
    EXPECT_EQ(knees[0], knees[2]);
    EXPECT_GE(knees[0], 256 << 10);
    EXPECT_LE(knees[0], 4 << 20);
  }
}

// Regression: the search ended at 32 MiB.
TEST(BandwidthKnee, is_searched_for_as_long_as_bandwidth_grows) {
  int64_t tried = 0;
  const auto link = [&](double latency_s, double bytes_per_s) {
    tried = 0;
    return [&tried, latency_s, bytes_per_s](int64_t bytes) {
      tried = std::max(tried, bytes);
      return latency_s + static_cast<double>(bytes) / bytes_per_s;
    };
  };
  constexpr int64_t kMiB = 1 << 20;
  // 4 latency * bandwidth = 95 MiB have 80 % of the best; a little less of what was seen.
  EXPECT_EQ(find_bandwidth_knee(link(1e-3, 25e9), 4096 * kMiB), 128 * kMiB);
  EXPECT_LT(tried, 4096 * kMiB);
  EXPECT_EQ(find_bandwidth_knee(link(1e-3, 25e9), 64 * kMiB), 64 * kMiB) << "of what memory allows";
  EXPECT_EQ(tried, 64 * kMiB);
  EXPECT_EQ(find_bandwidth_knee(link(1e-6, 1e9), 4096 * kMiB), kMiB / 4);
  EXPECT_LE(tried, 2 * kMiB) << "flat from the start";
  EXPECT_EQ(find_bandwidth_knee(link(1e-6, 1e9), 0), kMiB / 4);
}

// Two jobs that measure at once must go on alike: who bases ownership on another number than the next start would change bits.
TEST(BandwidthKnee, is_what_was_kept_first) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("ingot_knee_{}", ::getpid());
  std::vector<int64_t> first(3), again(3), other(3);
  const auto ask = [&](std::vector<int64_t>& answers) {
    comm::run_ranks(3, [&](comm::World& world) {
      answers[static_cast<size_t>(world.rank())] =
          kept_bandwidth_knee(world.everyone(), at::kCPU, {.is_scattered = true, .most_bytes = 1 << 20}, folder, "key");
    });
  };
  ask(first);
  ask(again);
  EXPECT_EQ(first, again);
  EXPECT_EQ(first[0], first[2]);
  std::ofstream(folder / "bandwidth-knee" / "key-reduce_scatter-1024") << "12345\n";
  ask(other);
  EXPECT_EQ(other, (std::vector<int64_t>{12345, 12345, 12345}));
  std::ofstream(folder / "bandwidth-knee" / "key-reduce_scatter-1024") << "rubbish\n";
  ask(other);
  EXPECT_GE(other[0], 256 << 10);
  ask(again);
  EXPECT_EQ(again, other);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ingot::parallel
