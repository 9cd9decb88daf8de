// Exact sums by the GPU's kernels, which the host runs thread by thread, have the bits of the CPU's and of their definition.
#include "kernels/exact_sum.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/gpu/host_kernels.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels::gpu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
using Problem = cpu::SquareSumProblem;

// Of sizes from 1e-12 to 1, as gradients have them.
at::Tensor gradients(int64_t count) { return at::randn({count}).mul_(at::pow(10, at::rand({count}).mul_(-12))).to(at::kFloat); }

// Bit for bit, but for which NaN it is.
bool are_same(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = [](const at::Tensor& x) { return at::where(x.isnan(), at::full_like(x, kNan), x).view(at::kLong); };
  return at::equal(bits(a), bits(b));
}

double of_block(const double* x, int64_t count) {
  if (count == 1) return *x;
  std::vector<double> halves;
  for (int64_t i = 0; i < count / 2; ++i) halves.push_back(x[i] + x[i + count / 2]);
  return of_block(halves.data(), count / 2);
}

// As exact_sum.h says: every block's sum is cut into multiples of three powers of two.
at::Tensor expected(const at::Tensor& x) {
  const auto sums = at::zeros({kSquareParts}, at::kDouble);
  for (int64_t at = 0; at < x.numel(); at += kSquareBlock) {
    std::array<double, kSquareBlock> squares{};
    for (int64_t i = 0; i < kSquareBlock && at + i < x.numel(); ++i)
      squares[static_cast<size_t>(i)] = std::pow(x[at + i].item<float>(), 2.0);
    double rest = of_block(squares.data(), kSquareBlock);
    for (int64_t i = 0; i < kSquareParts; ++i) {
      const int exponent = kSquareExponents[static_cast<size_t>(i)];
      const double part = std::ldexp(std::nearbyint(std::ldexp(rest, -exponent)), exponent);
      sums[i] += part;
      rest -= part;
    }
  }
  return sums;
}

at::Tensor by_gpu(const HostKernels& kernels, const TensorList& tensors, uint64_t seed) {
  Problem chunks{};
  cpu::ChunkSumProblem totals{};
  for (const auto& x : tensors) {
    chunks.of[chunks.tensors++] = {numbers(x), x.numel(), chunks.rows};
    chunks.rows += (x.numel() + Problem::kChunk - 1) / Problem::kChunk;
    totals.first_chunk[++totals.rows] = chunks.rows;
  }
  for (int64_t i = 0; i < kSquareParts; ++i) chunks.shifts[i] = 1.5 * std::exp2(52 + kSquareExponents[static_cast<size_t>(i)]);
  const auto of_chunks = at::full({chunks.rows, kSquareParts}, kNan, at::kDouble),
             sums = at::full({totals.rows, kSquareParts}, kNan, at::kDouble);
  chunks.sums = of_chunks.data_ptr<double>();
  totals.of_chunks = chunks.sums, totals.sums = sums.data_ptr<double>();
  kernels.square_sum(chunks, seed);
  kernels.add_chunks(totals, seed);
  return sums;
}

void expect_cpus_bits(const TensorList& tensors, const std::vector<uint64_t>& seeds = {1}) {
  const auto on_cpu = square_sums(tensors);
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : seeds) EXPECT_TRUE(are_same(by_gpu(*kernels, tensors, seed), on_cpu)) << "seed " << seed;
}

TEST(GpuSquareSum, has_the_bits_of_its_definition) {
  at::manual_seed(1);
  for (const int64_t count : {1, 31, 32, 33, 1000, 4100}) {
    const auto x = gradients(count);
    EXPECT_TRUE(are_same(square_sums({x})[0], expected(x))) << count;
    EXPECT_TRUE(are_same(by_gpu(host_kernels_wave64, {x}, 1)[0], expected(x))) << count;
  }
}

TEST(GpuSquareSum, has_the_cpus_bits_in_every_order_of_threads_and_blocks_from_any_address) {
  at::manual_seed(2);
  for (const int64_t count : {0, 1, 3, 32, 33, 1023, 1025, 4096, 16383, 16384, 16385, 50003})
    for (const int64_t from : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} from {}", count, from));
      expect_cpus_bits({gradients(count + from).narrow(0, from, count)}, {0, 1, 2});
    }
}

// One launch with as many as it takes: of one chunk, none, and several.
TEST(GpuSquareSum, of_many_tensors_finds_the_tensor_of_each_block) {
  at::manual_seed(3);
  for (const int64_t count : {3, 128}) {
    TensorList all;
    for (int64_t i = 0; i < count; ++i) all.push_back(gradients(i % 5 == 1 ? 0 : i % 41 == 2 ? 2 * Problem::kChunk + i : 7 * i));
    SCOPED_TRACE(count);
    expect_cpus_bits(all);
  }
}

TEST(GpuSquareSum, of_what_is_not_finite_is_not_finite_as_on_the_cpu) {
  for (const double bad : {kNan, kInfinity, -kInfinity})
    for (const int64_t at : {0, 33, 20001}) {
      TensorList all = {gradients(5), gradients(20002), gradients(40)};
      all[1][at] = bad;
      expect_cpus_bits(all);
      const auto is_finite = square_sums(all).isfinite().all(1);
      EXPECT_TRUE(is_finite[0].item<bool>() && !is_finite[1].item<bool>() && is_finite[2].item<bool>()) << bad << " at " << at;
    }
  expect_cpus_bits({at::full({100}, 3e38f), at::full({3}, 1e-45f)});  // squares that fp32 has not
}

TEST(GpuRoundTerms, have_the_cpus_bits) {
  at::manual_seed(4);
  for (const int64_t count : {1, 4, 1026, 4096})
    for (const int64_t from : {0, 1})
      for (const bool adds : {false, true}) {
        auto terms = gradients(count + from).narrow(0, from, count);
        if (count > 4) terms[0] = kNan, terms[1] = kInfinity, terms[2] = -kInfinity, terms[3] = -0.0;
        const auto before = at::randn({count}, at::kDouble);
        auto wanted = before.clone();
        round_into(wanted, terms, kGradientExponent, adds);
        for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
          for (const uint64_t seed : {0, 1}) {
            auto sum = adds ? before.clone() : at::full_like(before, kNan);
            kernels->round_terms({count, numbers(terms), sum.data_ptr<double>(), 1.5 * std::exp2(52 + kGradientExponent), adds}, seed);
            EXPECT_TRUE(are_same(sum, wanted)) << count << " from " << from << ", adds " << adds << ", seed " << seed;
          }
      }
}

TEST(SquareSum, of_a_list_is_that_of_each_on_every_device_and_in_every_dtype) {
  at::manual_seed(5);
  TensorList all, emulated;
  for (int64_t i = 0; i < 150; ++i) all.push_back(gradients(i % 17 == 3 ? 0 : i * 300).to(i % 31 == 0 ? at::kDouble : at::kFloat));
  for (const auto& x : all) emulated.push_back(x.to(device::emulated_device(0)));
  const auto sums = square_sums(all);
  for (int64_t i = 0; i < sums.size(0); ++i)
    EXPECT_TRUE(are_same(sums[i], square_sums({all[static_cast<size_t>(i)].to(at::kFloat)})[0])) << i;
  EXPECT_TRUE(are_same(square_sums(emulated).cpu(), sums));
  EXPECT_EQ(square_sums({}).size(0), 0);
}

TEST(SquareSum, of_a_list_is_a_bounded_number_of_launches_that_read_once) {
  const device::CountingDevice counting(device::Target::gpu);
  const TensorList all(300, at::empty({50}, at::TensorOptions(at::kFloat).device(counting.device())));
  device::Tracer tracer(counting.device());
  square_sums(all);
  const auto trace = tracer.finish();
  int64_t read_bytes = 0;
  for (const auto& operation : trace.operations)
    if (trace.name_of(operation) == "square_sum") read_bytes += operation.read_bytes;
  EXPECT_EQ(read_bytes, 300 * 50 * 4);
  EXPECT_EQ(trace.operations.size(), 2 * 3u);
  EXPECT_TRUE(trace.host_accesses.empty());
}

}  // namespace
}  // namespace ingot::kernels::gpu
