// The matrix instructions as the host computes them: what each thread of a wave holds, by the vendors' documents written down again here,
// and the product against fp64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/aten.h"
#include "kernels/gpu/dialect.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

struct Place {
  int row, column;
};

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": group = lane >> 2, in_group = lane % 4.
//   a0..a7  row     group for a0, a1, a4, a5, else group + 8
//           column  in_group * 2 + (i & 1) for i < 4, else that + 8
//   b0..b3  row     in_group * 2 + (i & 1) for i < 2, else that + 8
//           column  group
//   c0..c3  row     group for i < 2, else group + 8
//           column  in_group * 2 + (i & 1)
// Two instructions make 16 columns: elements 4 to 7 of b and c are the second one's.
Place left_of_warp(int lane, int i) {
  return {(lane >> 2) + (i == 0 || i == 1 || i == 4 || i == 5 ? 0 : 8), (lane % 4) * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Place right_of_warp(int lane, int i) { return {(lane % 4) * 2 + (i & 1) + (i % 4 < 2 ? 0 : 8), (lane >> 2) + (i < 4 ? 0 : 8)}; }
Place sum_of_warp(int lane, int i) { return {(lane >> 2) + (i % 4 < 2 ? 0 : 8), (lane % 4) * 2 + (i & 1) + (i < 4 ? 0 : 8)}; }

// AMD matrix instruction calculator, v_mfma_f32_16x16x16_bf16 (CDNA 2: .._bf16_1k), one block:
//   A[i][k]  lane i + 16 * (k / 4), half k % 4 of its two registers
//   B[k][j]  lane j + 16 * (k / 4), half k % 4
//   D[i][j]  lane j + 16 * (i / 4), register i % 4
Place left_of_wave(int lane, int i) { return {lane & 15, (lane >> 4) * 4 + i}; }
Place right_of_wave(int lane, int i) { return {(lane >> 4) * 4 + i, lane & 15}; }
Place sum_of_wave(int lane, int i) { return {(lane >> 4) * 4 + i, lane & 15}; }

struct Layout {
  const HostKernels& kernels;
  int threads;
  Place (*left)(int, int);
  Place (*right)(int, int);
  Place (*sum)(int, int);
};
const Layout kLayouts[] = {{host_kernels_wave32, 32, left_of_warp, right_of_warp, sum_of_warp},
                           {host_kernels_wave64, 64, left_of_wave, right_of_wave, sum_of_wave}};

struct Matrices {
  at::Tensor left = at::randn({16, 16}, at::kBFloat16), right = at::randn({16, 16}, at::kBFloat16), sums = at::randn({16, 16}, at::kFloat);
  at::Tensor stored_left, stored_right;  // alive while the case is
  std::vector<uint32_t> left_pairs = std::vector<uint32_t>(128), right_pairs = left_pairs;
  std::vector<float> sums_of_threads = std::vector<float>(256);

  MatrixCase as(bool left_is_by_row, bool right_is_by_row) {
    const auto stored = [](const at::Tensor& x, bool is_by_row) { return (is_by_row ? x : x.t()).contiguous(); };
    const auto bits = [](const at::Tensor& x) { return static_cast<const uint16_t*>(x.const_data_ptr()); };
    stored_left = stored(left, left_is_by_row), stored_right = stored(right, right_is_by_row);
    return {.left = bits(stored_left),
            .right = bits(stored_right),
            .left_is_by_row = left_is_by_row,
            .right_is_by_row = right_is_by_row,
            .left_pairs = left_pairs.data(),
            .right_pairs = right_pairs.data(),
            .sums_of_threads = sums_of_threads.data(),
            .sums = sums.data_ptr<float>()};
  }
};

double at_place(const at::Tensor& x, const Place& place) { return x[place.row][place.column].item<double>(); }

// Of the registers of bf16 pairs: the first in the lower half.
double element(const std::vector<uint32_t>& pairs, int i) {
  const auto bits = static_cast<uint16_t>(pairs[static_cast<size_t>(i / 2)] >> (i % 2 == 0 ? 0 : 16));
  return c10::BFloat16(bits, c10::BFloat16::from_bits());
}

TEST(GpuMatrix, lies_in_the_threads_of_a_wave_as_the_vendors_document_it) {
  for (const auto& layout : kLayouts)
    for (const bool left_is_by_row : {false, true})
      for (const bool right_is_by_row : {false, true})
        for (const uint64_t seed : {0, 1, 2}) {
          SCOPED_TRACE(testing::Message() << layout.threads << left_is_by_row << right_is_by_row << " seed " << seed);
          Matrices m;
          const auto expected = m.sums.to(at::kDouble) + at::matmul(m.left.to(at::kDouble), m.right.to(at::kDouble));
          layout.kernels.matrices(m.as(left_is_by_row, right_is_by_row), seed);
          const int each = 256 / layout.threads;
          for (int lane = 0; lane < layout.threads; ++lane)
            for (int i = 0; i < each; ++i) {
              const int at = lane * each + i;
              EXPECT_EQ(element(m.left_pairs, at), at_place(m.left, layout.left(lane, i))) << lane << " " << i;
              EXPECT_EQ(element(m.right_pairs, at), at_place(m.right, layout.right(lane, i))) << lane << " " << i;
              EXPECT_NEAR(m.sums_of_threads[static_cast<size_t>(at)], at_place(expected, layout.sum(lane, i)), 1e-5) << lane << " " << i;
            }
          EXPECT_LT((m.sums - expected).abs().max().item<double>(), 1e-5);
        }
}

// The host took the waves to begin behind a first thread that had returned, and let the others go on.
TEST(GpuMatrix, without_a_thread_of_the_wave_is_an_error) {
  for (const auto& layout : kLayouts) {
    Matrices m;
    auto wanting = m.as(true, true);
    wanting.comes_whole = false;
    try {
      layout.kernels.matrices(wanting, 0);
      FAIL() << "it came back";
    } catch (const base::Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("wait for their wave"));
    }
  }
}

// Shuffles of a wave stand for no barrier of the block.
TEST(HostBlock, a_barrier_that_is_missing_behind_a_shuffle_is_reported) {
#if !defined(INGOT_LOGS_ACCESSES)
  GTEST_SKIP() << "a sanitizer's build, or another compiler than GCC";
#else
  const auto sum_of = [](bool has_barrier, uint64_t seed) {
    float sum = 0;
    host::run(1, 64, seed, [&] {
      INGOT_SHARED_FLOATS(area, 64);
      for (int round = 0; round < 2; ++round) {
        area[thread_index()] = static_cast<float>(round);
        barrier();
        shuffle_xor(0.0F, 1);
        sum += area[(thread_index() + 32) % 64];  // of the other wave
        if (has_barrier) barrier();
      }
    });
    return sum;
  };
  for (const uint64_t seed : {0, 1}) {
    EXPECT_EQ(sum_of(true, seed), 64);
    EXPECT_THROW(sum_of(false, seed), base::Error);
  }
#endif
}

}  // namespace
}  // namespace ingot::kernels::gpu
