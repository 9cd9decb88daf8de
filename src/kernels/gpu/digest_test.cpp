// Digests on the CPU, by the GPU's kernel, which the host runs thread by thread, by ATen, and on emulated and counting devices: the same
// bits everywhere, and other ones of other bytes.
#include "kernels/digest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>

#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/cpu/rows_digest.h"
#include "kernels/gpu/host_kernels.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels::gpu {
namespace {

using Digest = std::array<uint64_t, 2>;
constexpr int64_t kChunk = cpu::DigestProblem::kChunkBytes;

// The formula of digest.h, byte by byte.
Digest expected(const uint8_t* data, int64_t bytes) {
  Digest sums{};
  const auto add = [&](uint64_t word, uint64_t position) {
    uint64_t x = word ^ (0xd6e8feb86659fd93 + position * 0x9e3779b97f4a7c15);
    x *= 0x9e3779b1;
    x ^= x >> 32;
    x *= 0x85ebca77;
    sums[0] += x ^ (x >> 32);
    sums[1] += (x & 0xffffffff) * (x >> 32);
  };
  add(static_cast<uint64_t>(bytes), 0);
  for (int64_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    for (int64_t k = 0; k < 8 && at + k < bytes; ++k) word |= static_cast<uint64_t>(data[at + k]) << (8 * k);
    add(word, static_cast<uint64_t>(at / 8 + 1));
  }
  return sums;
}

Digest expected(const at::Tensor& x) { return expected(static_cast<const uint8_t*>(x.const_data_ptr()), static_cast<int64_t>(x.nbytes())); }

std::vector<Digest> digests_of(const at::Tensor& sums) {
  const auto host = sums.cpu();
  std::vector<Digest> all(static_cast<size_t>(host.size(0)));
  if (!all.empty()) std::memcpy(all.data(), host.const_data_ptr(), host.nbytes());
  return all;
}

Digest digest_of(const at::Tensor& x) { return digests_of(digest({x})).at(0); }

at::Tensor bytes_of(int64_t count) {
  auto x = at::empty({count}, at::kByte);
  for (int64_t i = 0; i < count; ++i) x.data_ptr<uint8_t>()[i] = static_cast<uint8_t>((i * i * 7 + i) % 251);
  return x;
}

Digest by_gpu(const HostKernels& kernels, const at::Tensor& x, uint64_t seed) {
  Digest sums{};
  cpu::DigestProblem p{};
  p.tensors = 1;
  p.of[0] = {x.const_data_ptr(), static_cast<int64_t>(x.nbytes()), 0};
  p.rows = std::max<int64_t>(1, (p.of[0].bytes + kChunk - 1) / kChunk);
  p.sums = sums.data();
  kernels.digest(p, seed);
  return sums;
}

// Within a word, of whole words, of pairs and vectors of them or not, of a chunk or more.
std::vector<int64_t> sizes() {
  std::vector<int64_t> all;
  for (int64_t n = 0; n <= 70; ++n) all.push_back(n);
  for (const int64_t n : {256, 4096, 16384, 16392, 16401, 65528, 65535, 65536, 65537, 65544, 65552, 131072, 200003}) all.push_back(n);
  return all;
}

// What another program (Python's integers) makes of the formula; runs that were recorded can be compared for ever.
TEST(Digest, is_the_recorded_one) {
  const std::pair<int64_t, Digest> recorded[] = {
      {0, {0x02cde90f29178f35, 0x007afa9ca948c766}},     {1, {0x48e8f9330b8630fa, 0xec80b54e9f940b14}},
      {7, {0x1fc16ad6b73ceb14, 0x62f5f780d410189e}},     {8, {0xe0d16571e2dc1f6a, 0x0ac898d73730781f}},
      {13, {0x3cc62097601a3fad, 0x16bcc0cdb32d6aa9}},    {65536, {0xa2745d06af42ece3, 0x592d1c3d5df42d78}},
      {100003, {0xa935acbb76a353b6, 0xd02697f530409de6}}};
  for (const auto& [bytes, of_bytes] : recorded) EXPECT_EQ(digest_of(bytes_of(bytes)), of_bytes) << bytes;
}

TEST(Digest, has_the_same_bits_on_every_device_from_any_address) {
  const auto memory = at::randint(0, 256, {300000}, at::kByte);
  for (const int64_t bytes : sizes())
    for (const int64_t from : {0, 1, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} bytes from {}", bytes, from));
      const auto x = memory.narrow(0, from, bytes);
      const auto wanted = expected(x);
      EXPECT_EQ(digest_of(x), wanted);
      EXPECT_EQ(digests_of(reference::digest(x).unsqueeze(0)).at(0), wanted);
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        for (const uint64_t seed : {0, 1}) EXPECT_EQ(by_gpu(*kernels, x, seed), wanted);
    }
}

TEST(Digest, takes_every_dtype) {
  for (const auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
                           at::kDouble, at::kFloat8_e4m3fn}) {
    const auto x = at::randn({7, 11, 3}, at::kFloat).to(dtype);
    const auto wanted = expected(x);
    EXPECT_EQ(digest_of(x), wanted) << c10::toString(dtype);
    EXPECT_EQ(digests_of(reference::digest(x).unsqueeze(0)).at(0), wanted) << c10::toString(dtype);
    if (dtype == at::kFloat || dtype == at::kBFloat16) {
      EXPECT_EQ(digest_of(x.to(device::emulated_device(0))), wanted) << c10::toString(dtype);
    }
  }
}

TEST(Digest, of_many_tensors_is_that_of_each) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < 150; ++i) all.push_back(at::randn({i % 13 == 0 ? 0 : i % 7 == 0 ? 40000 + i : i}, at::kFloat));
  const auto on_cpu = digests_of(digest(all));
  std::vector<at::Tensor> emulated;
  for (const auto& x : all) emulated.push_back(x.to(device::emulated_device(0)));
  const auto on_emulated = digests_of(digest(emulated));
  ASSERT_EQ(on_cpu.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(on_cpu[i], expected(all[i])) << i;
  EXPECT_EQ(on_emulated, on_cpu);
  EXPECT_EQ(digest({}).size(0), 0);
}

// One launch with as many tensors as it takes, of one chunk, none and several, as the GPU's blocks find them.
TEST(Digest, of_a_gpu_finds_the_tensor_of_each_block) {
  for (const int64_t count : {1, 2, 3, 63, 64}) {
    std::vector<at::Tensor> all;
    cpu::DigestProblem p{};
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(bytes_of(i % 5 == 1 ? 0 : i % 9 == 2 ? 3 * kChunk + i : i * 3));
      const auto bytes = all.back().numel();
      p.of[p.tensors++] = {all.back().const_data_ptr(), bytes, p.rows};
      p.rows += std::max<int64_t>(1, (bytes + kChunk - 1) / kChunk);
    }
    for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
      std::vector<Digest> sums(static_cast<size_t>(count));
      p.sums = sums.data()->data();
      kernels->digest(p, 1);
      for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(sums[i], expected(all[i])) << i << " of " << count;
    }
  }
}

TEST(Digest, changes_with_every_bit) {
  for (const int64_t bytes : {1, 8, 45}) {
    auto x = bytes_of(bytes);
    auto* data = x.data_ptr<uint8_t>();
    std::set<uint64_t> first{digest_of(x)[0]}, second{digest_of(x)[1]};
    for (int64_t bit = 0; bit < 8 * bytes; ++bit) {
      data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      first.insert(digest_of(x)[0]);
      second.insert(digest_of(x)[1]);
      data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
    EXPECT_EQ(first.size(), static_cast<size_t>(8 * bytes + 1));
    EXPECT_EQ(second.size(), static_cast<size_t>(8 * bytes + 1));
  }
  // The last bit of a large tensor, and signs of two numbers, which undo each other in a plain sum.
  auto x = at::randn({100003}, at::kFloat);
  const auto before = digest_of(x);
  x[100002] = x[100002] * (1 + 1e-7f);
  EXPECT_NE(digest_of(x), before);
  std::set<uint64_t> first, second;
  auto pairs = at::zeros({64}, at::kFloat);
  for (int64_t i = 0; i < 64; ++i)
    for (int64_t j = 0; j < i; ++j) {
      pairs[i] = pairs[j] = -0.0f;
      const auto found = digest_of(pairs);
      first.insert(found[0]), second.insert(found[1]);
      pairs[i] = pairs[j] = 0.0f;
    }
  EXPECT_EQ(first.size(), 64 * 63 / 2);
  EXPECT_EQ(second.size(), 64 * 63 / 2);
}

TEST(Digest, changes_with_order_and_length) {
  const auto x = at::arange(64, at::kLong);
  std::set<Digest> found{digest_of(x)};
  for (int64_t i = 0; i < 64; ++i)
    for (int64_t j = 0; j < i; ++j) {
      auto swapped = x.clone();
      swapped[i] = x[j], swapped[j] = x[i];
      found.insert(digest_of(swapped));
    }
  EXPECT_EQ(found.size(), 64 * 63 / 2 + 1);
  // Zeros of every length.
  found.clear();
  for (int64_t n = 0; n < 100; ++n) found.insert(digest_of(at::zeros({n}, at::kByte)));
  EXPECT_EQ(found.size(), 100);
}

TEST(Digest, is_counted_as_one_pass_that_reads_and_no_host_waits) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto x = at::empty({50, 7}, at::TensorOptions(at::kBFloat16).device(counting.device()));
  device::Tracer tracer(counting.device());
  digest({x, x});
  const auto trace = tracer.finish();
  ASSERT_FALSE(trace.operations.empty());
  EXPECT_EQ(trace.name_of(trace.operations.back()), "digest");
  EXPECT_EQ(trace.operations.back().read_bytes, 2 * 50 * 7 * 2);
  EXPECT_TRUE(trace.host_accesses.empty());
}

}  // namespace
}  // namespace ingot::kernels::gpu
