// Gradients of several ranks, as threads, summed in buckets of every size; and that the sums travel while backward computes.
#include "parallel/gradient_buckets.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/world.h"

namespace ingot::parallel {
namespace {

using layers::Parameter;
using layers::ParameterList;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLayers = 8;

// An embedding (layer -1), blocks with a matrix and a vector each, and a head.
void declare(ParameterList& list, int64_t width) {
  list.add({.name = "embedding", .shape = {7, width}, .kind = Parameter::Kind::embedding});
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    list.begin_layer(layer);
    list.add({.name = "matrix" + std::to_string(layer), .shape = {width, width}, .kind = Parameter::Kind::matrix});
    list.add({.name = "vector" + std::to_string(layer), .shape = {width}});
  }
  list.begin_layer(kLayers);
  list.add({.name = "head", .shape = {7, width}, .kind = Parameter::Kind::head});
  list.add({.name = "bias", .shape = {3}, .kind = Parameter::Kind::buffer});
  list.allocate(at::kFloat, at::kCPU);
}

at::Tensor gradient_of(const Parameter& p, int rank, int64_t step) {
  return at::full(p.shape, static_cast<double>(p.layer + 2) * (rank + 1) + static_cast<double>(step));
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

TEST(GradientBuckets, hold_sums_over_the_ranks_for_every_size) {
  for (const int64_t bytes : {int64_t{0}, int64_t{5000}, int64_t{1} << 30}) {
    for (const int size : {2, 3}) {
      comm::run_ranks(size, [&](comm::World& world) {
        ParameterList list;
        declare(list, 24);
        GradientBuckets buckets(list, world.everyone(), bytes);
        EXPECT_EQ(buckets.count(), bytes == 0 ? kLayers + 2 : bytes == 5000 ? 4 : 1);
        for (int64_t step = 0; step < 3; ++step) {
          for (int64_t layer = kLayers; layer >= 0; --layer) {
            backward(list, layer, world.rank(), step);
            buckets.layer_done(layer);
          }
          backward(list, -1, world.rank(), step);
          buckets.finish();
          for (const auto& p : list.all()) {
            if (!p->is_trained()) continue;
            auto expected = at::zeros(p->shape);
            for (int r = 0; r < size; ++r)
              if (!(p->name == "matrix3" && r == 1)) expected += gradient_of(*p, r, step);
            EXPECT_TRUE(p->has_gradient && p->grad.equal(expected)) << p->name << " step " << step << " rank " << world.rank();
          }
          list.drop_gradients();
        }
      });
    }
  }
}

// The wire is made as slow as backward: by turns they would take twice as long as together.
TEST(GradientBuckets, sums_travel_while_backward_computes) {
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
          declare(list, width);
          GradientBuckets buckets(list, world.everyone(), bucket_bytes);
          world.everyone().barrier();
          const auto start = Clock::now();
          for (int64_t layer = kLayers; layer >= 0; --layer) {
            std::this_thread::sleep_for(kCompute);
            backward(list, layer, world.rank(), 0);
            buckets.layer_done(layer);
          }
          backward(list, -1, world.rank(), 0);
          buckets.finish();
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

TEST(GradientBuckets, a_gradient_that_comes_too_late_is_an_error) {
  comm::run_ranks(2, [&](comm::World& world) {
    ParameterList list;
    declare(list, 8);
    GradientBuckets buckets(list, world.everyone(), 0);
    buckets.layer_done(0);
    backward(list, 4, world.rank(), 0);
    EXPECT_ANY_THROW(buckets.finish());
  });
}

TEST(BandwidthKnee, is_a_size_that_all_ranks_agree_on) {
  std::vector<int64_t> knees(3);
  comm::run_ranks(
      3, [&](comm::World& world) { knees[static_cast<size_t>(world.rank())] = measure_bandwidth_knee(world.everyone(), at::kCPU); });
  EXPECT_EQ(knees[0], knees[1]);
  EXPECT_EQ(knees[0], knees[2]);
  EXPECT_GE(knees[0], 256 << 10);
  EXPECT_LE(knees[0], 32 << 20);
}

}  // namespace
}  // namespace ingot::parallel
