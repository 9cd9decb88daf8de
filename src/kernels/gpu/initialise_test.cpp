// Initial values by the GPU's kernel, which the host runs thread by thread, and as models ask for them on emulated and counting devices: to
// the last bit what tensor::initialise gives.
#include "kernels/initialise.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

using tensor::Box;
using tensor::Initial;
using tensor::Shape;

constexpr uint64_t kSeed = 23;
const Initial kInitial{Initial::Kind::normal, 0.25, 0.02};

struct Case {
  Shape shape;
  Box box;
};
// Rows that begin and end within a pair or not, of one element, in several blocks; dims that are one run of elements and that are not.
const Case kCases[] = {{{}, {{}, {}}},
                       {{1}, {{0}, {1}}},
                       {{9}, {{1}, {1}}},
                       {{9}, {{4}, {5}}},
                       {{9}, {{3}, {4}}},
                       {{4000}, {{1}, {3998}}},
                       {{700, 3}, {{0, 0}, {700, 3}}},
                       {{700, 3}, {{1, 1}, {699, 2}}},
                       {{50, 7}, {{3, 5}, {40, 1}}},
                       {{50, 7}, {{3, 2}, {1, 5}}},
                       {{9, 1}, {{2, 0}, {6, 1}}},
                       {{6, 1, 4}, {{1, 0, 1}, {4, 1, 3}}},
                       {{4, 9, 7}, {{1, 2, 0}, {2, 5, 7}}},
                       {{3, 4, 3, 5}, {{0, 1, 0, 1}, {3, 2, 3, 3}}},
                       {{3, 2, 4, 3, 5}, {{1, 0, 1, 1, 2}, {2, 2, 3, 2, 2}}},
                       {{8, 8}, {{2, 2}, {0, 6}}},
                       {{1 << 20, 1 << 20, 3}, {{(1 << 20) - 2, 77, 1}, {2, 3, 2}}}};

tensor::LogicalTensor named(const Shape& shape) { return {"layers.3.weight", tensor::DType::fp32, shape}; }

at::Tensor by_host(const Case& c, at::ScalarType dtype) {
  auto out = at::empty(c.box.extent, at::kFloat);
  tensor::initialise({out.data_ptr<float>(), static_cast<size_t>(out.numel())}, kSeed, named(c.shape), c.box, kInitial);
  return out.to(dtype);
}

// A view of c.box.extent with room between all rows, and the memory that it lies in.
struct Spread {
  at::Tensor memory, view;
};
Spread spread(const Case& c, const at::TensorOptions& options) {
  auto sizes = c.box.extent;
  for (auto& size : sizes) size += 3;
  auto memory = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), options), view = memory;
  for (size_t d = 0; d < sizes.size(); ++d) view = view.narrow(static_cast<int64_t>(d), 1, c.box.extent[d]);
  return {memory, view};
}

template <class Body>
void for_each_case(const Body& body) {
  for (const auto& c : kCases)
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      SCOPED_TRACE(fmt::format("{} at {} of {}, {}", tensor::to_string(c.box.extent), tensor::to_string(c.box.offset),
                               tensor::to_string(c.shape), c10::toString(dtype)));
      body(c, dtype);
    }
}

void expect_filled(const Case& c, at::ScalarType dtype, const at::Tensor& memory, const at::Tensor& view) {
  EXPECT_TRUE(at::equal(view, by_host(c, dtype)));
  EXPECT_EQ(memory.isnan().sum().item<int64_t>(), memory.numel() - view.numel()) << "something beside it was written";
}

TEST(Initialise, of_a_gpu_has_the_bits_of_the_host_in_every_order_of_threads) {
  for_each_case([](const Case& c, at::ScalarType dtype) {
    for (const bool is_spread : {false, true})
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        for (const uint64_t seed : {0, 1, 2}) {
          auto found = spread(c, dtype);
          if (!is_spread) found.memory = found.view = found.view.contiguous();
          for (const auto& p : fill_normal_problems(found.view, kSeed, named(c.shape), c.box, kInitial)) kernels->fill_normal(p, seed);
          expect_filled(c, dtype, found.memory, found.view);
        }
  });
}

// In fp32 a product that is fused with a sum would hardly show: less the host's normals, nothing must be left of the kernel's.
TEST(Initialise, of_a_gpu_has_normals_of_the_same_double) {
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (uint64_t i = 0; i < 100; ++i) {
      float out = NAN;
      InitialiseProblem p{};
      p.rows = p.width = 1;
      p.key = kSeed, p.first = i;
      p.mean = -base::normal_at(kSeed, i), p.deviation = 1;
      p.element_bytes = sizeof out, p.out = &out;
      kernels->fill_normal(p, 0);
      EXPECT_EQ(out, 0) << i;
    }
}

TEST(Initialise, of_a_gpu_fills_more_than_a_grid_has_threads) {
  constexpr int64_t kWidth = 2 * 2048 * 256 + 77;
  const Case c{{2 * kWidth}, {{5}, {kWidth}}};
  const auto out = at::full({kWidth}, NAN, at::kFloat);
  for (const auto& p : fill_normal_problems(out, kSeed, named(c.shape), c.box, kInitial)) host_kernels_wave64.fill_normal(p, 0);
  EXPECT_TRUE(at::equal(out, by_host(c, at::kFloat)));
}

TEST(Initialise, of_a_gpu_takes_one_launch_for_what_lies_in_two_dims) {
  const auto launches = [](const Shape& shape, const Box& box) {
    return fill_normal_problems(at::empty(box.extent, at::kFloat), kSeed, named(shape), box, kInitial).size();
  };
  EXPECT_EQ(launches({8, 6, 4}, tensor::whole({8, 6, 4})), 1);
  EXPECT_EQ(launches({8, 6, 4}, {{0, 0, 2}, {8, 6, 2}}), 1);
  EXPECT_EQ(launches({8, 6, 4}, {{0, 3, 0}, {8, 3, 4}}), 1);
  EXPECT_EQ(launches({8, 6, 4}, {{0, 3, 1}, {8, 3, 2}}), 8);
}

TEST(Initialise, on_the_cpu_and_on_the_emulated_device_has_the_bits_of_the_host) {
  for_each_case([](const Case& c, at::ScalarType dtype) {
    for (const auto device : {at::Device(at::kCPU), device::emulated_device(0)}) {
      const auto found = spread(c, at::TensorOptions(dtype).device(device));
      initialise(found.view, kSeed, named(c.shape), c.box, kInitial);
      expect_filled(c, dtype, found.memory.cpu(), found.view.cpu());
      initialise(found.view, kSeed, named(c.shape), c.box, Initial::constant(0.3));
      EXPECT_TRUE(at::equal(found.view.cpu(), at::full(c.box.extent, static_cast<float>(0.3), at::kFloat).to(dtype)));
    }
  });
}

TEST(Initialise, is_counted_as_one_pass_that_writes) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto out = at::empty({50, 7}, at::TensorOptions(at::kBFloat16).device(counting.device()));
  device::Tracer tracer(counting.device());
  initialise(out, kSeed, named({50, 7}), tensor::whole({50, 7}), kInitial);
  const auto trace = tracer.finish();
  ASSERT_EQ(trace.operations.size(), 1);
  EXPECT_EQ(trace.name_of(trace.operations[0]), "fill_normal");
  EXPECT_EQ(trace.operations[0].written_bytes, 50 * 7 * 2);
  EXPECT_TRUE(trace.host_accesses.empty());
}

}  // namespace
}  // namespace ingot::kernels::gpu
