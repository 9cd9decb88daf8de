// Products of matrices with their own transposes: the GPU's kernel, which the host runs thread by thread, against products in fp64; and
// what Muon calls, on emulated and counting devices.
#include "kernels/symmetric_matmul.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "base/test_night.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

struct Case {
  int64_t batch, m, k;
  bool has_c = false;
  float alpha = 1, beta = 1;
};
// Vectors, slabs and tiles that are whole and that are not; one to fifteen tiles; several matrices.
constexpr Case kCases[] = {{1, 1, 1},
                           {1, 1, 513, true, 2.0315F, -4.775F},
                           {2, 7, 8},
                           {1, 8, 7, true},
                           {3, 16, 32, true, -0.5F, 2},
                           {1, 64, 33},
                           {1, 65, 64, true, 1, 0.25F},
                           {1, 127, 129},
                           {2, 128, 128, true, 2.0315F, -4.775F},
                           {1, 129, 127, true, 2.0315F, -4.775F},
                           {1, 129, 513},
                           {2, 200, 40, true, 0.125F, 3},
                           {1, 256, 31},
                           {3, 257, 1, true},
                           {1, 264, 136, true, 2.0315F, -4.775F},
                           {1, 513, 24, true, 2.0315F, -4.775F}};

// [batch, m, columns] of bf16, whose rows are a multiple of 8 elements apart, in memory that ends where no memory is, but for less than a
// vector. What is between the rows and behind them is NaN.
class Guarded {
 public:
  Guarded(int64_t batch, int64_t m, int64_t columns)
      : row_stride_((columns + 7) / 8 * 8 + 8), batch_stride_(row_stride_ * m + 16), batch_(batch), m_(m), columns_(columns) {
    const int64_t elements = (batch - 1) * batch_stride_ + (m - 1) * row_stride_ + columns;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), used = static_cast<size_t>((elements + 7) / 8 * 16);
    bytes_ = (used + page - 1) / page * page + page;
    memory_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_ + bytes_ - page, page, PROT_NONE);
    all_ = at::from_blob(memory_ + bytes_ - page - used, {static_cast<int64_t>(used / 2)}, at::kBFloat16);
    all_.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  ~Guarded() { munmap(memory_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  at::Tensor view() const { return all_.as_strided({batch_, m_, columns_}, {batch_stride_, row_stride_, 1}); }
  // How many elements that belong to no row are still NaN, and how many there are.
  std::pair<int64_t, int64_t> untouched() const {
    const auto nan = all_.isnan().sum().item<int64_t>() - view().isnan().sum().item<int64_t>();
    return {nan, all_.numel() - batch_ * m_ * columns_};
  }
  MatrixRows rows() const { return {static_cast<uint16_t*>(all_.data_ptr()), batch_stride_, row_stride_}; }

 private:
  int64_t row_stride_, batch_stride_, batch_, m_, columns_;
  size_t bytes_;
  char* memory_;
  at::Tensor all_;
};

struct Call {
  Case of;
  std::unique_ptr<Guarded> p, c;

  explicit Call(const Case& c_) : of(c_), p(std::make_unique<Guarded>(of.batch, of.m, of.k)) {
    at::manual_seed(of.m + of.k);
    p->view().copy_(at::randn({of.batch, of.m, of.k}));
    if (!of.has_c) return;
    c = std::make_unique<Guarded>(of.batch, of.m, of.m);
    const auto random = at::randn({of.batch, of.m, of.m});
    c->view().copy_(random + random.mT());
  }
  // What the kernel wrote, where nothing else was touched.
  at::Tensor run(const HostKernels& kernels, uint64_t seed) const {
    const Guarded out(of.batch, of.m, of.m);
    kernels.symmetric_matmul({of.batch, of.m, of.k, p->rows(), c ? c->rows() : MatrixRows{}, out.rows(), of.alpha, c ? of.beta : NAN},
                             seed);
    const auto [nan, all] = out.untouched();
    EXPECT_EQ(nan, all) << "elements between the rows";
    return out.view().clone();
  }
};

// In fp64, and how far from it a sum in fp32 in any order may be that is rounded to bf16 once.
void expect_product(const at::Tensor& found, const at::Tensor& p, const at::Tensor& c, double alpha, double beta) {
  const auto wide = p.to(at::kDouble);
  auto expected = alpha * at::bmm(wide, wide.mT()), magnitude = std::abs(alpha) * at::bmm(wide.abs(), wide.abs().mT());
  if (c.defined()) expected += beta * c.to(at::kDouble), magnitude += std::abs(beta) * c.to(at::kDouble).abs();
  const auto bound = expected.abs() * std::ldexp(1.001, -8) + magnitude * static_cast<double>(p.size(2) + 4) * std::ldexp(1.01, -24);
  const auto excess = (found.to(at::kDouble) - expected).abs() - bound;
  EXPECT_FALSE(excess.isnan().any().item<bool>());
  EXPECT_LE(excess.max().item<double>(), 0);
  EXPECT_TRUE(at::equal(found, found.mT())) << "not symmetric to the bit";
}

class GpuSymmetricMatmul : public testing::TestWithParam<Case> {};

TEST_P(GpuSymmetricMatmul, equals_the_product_in_fp64_in_every_order_of_threads) {
  const Call call(GetParam());
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
    at::Tensor first;
    for (const uint64_t seed : {0, 1}) {
      if (seed == 1 && GetParam().m > 128 && !base::tests_run_at_night()) continue;  // large ones by day in one order
      SCOPED_TRACE(fmt::format("waves of {}, seed {}", kernels == &host_kernels_wave32 ? 32 : 64, seed));
      const auto found = call.run(*kernels, seed);
      if (first.defined()) EXPECT_TRUE(at::equal(found, first));
      else expect_product(first = found, call.p->view(), call.c ? call.c->view() : at::Tensor(), call.of.alpha, call.of.beta);
    }
  }
}

std::string title(const testing::TestParamInfo<Case>& info) {
  const auto& c = info.param;
  return fmt::format("{}_of_{}x{}{}", c.batch, c.m, c.k, c.has_c ? "_added" : "");
}
INSTANTIATE_TEST_SUITE_P(Sizes, GpuSymmetricMatmul, testing::ValuesIn(kCases), title);

// As Newton-Schulz has it: A is what is multiplied and what is added.
TEST(SymmetricMatmul, of_a_gpu_adds_what_it_multiplies) {
  at::manual_seed(1);
  const Guarded gram(1, 136, 136);
  const auto x = at::randn({1, 136, 136});
  gram.view().copy_(x + x.mT());
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
    const Guarded out(1, 136, 136);
    kernels->symmetric_matmul({1, 136, 136, gram.rows(), gram.rows(), out.rows(), 2.0315F, -4.775F}, 1);
    expect_product(out.view(), gram.view(), gram.view(), 2.0315F, -4.775F);
  }
}

at::Tensor random(at::IntArrayRef sizes) {
  at::manual_seed(7);
  return at::randn(sizes).to(at::kBFloat16);
}

std::vector<std::string> operations_of(const at::Tensor& p, const at::Tensor& c, double& flops) {
  device::Tracer tracer(p.device());
  symmetric_matmul(p, c, 2, -3);
  const auto trace = tracer.finish();
  std::vector<std::string> names;
  flops = 0;
  for (const auto& operation : trace.operations) names.emplace_back(trace.name_of(operation)), flops += operation.flops;
  return names;
}

TEST(SymmetricMatmul, of_an_emulated_gpu_is_that_of_the_kernel) {
  const auto there = [](const at::Tensor& x) { return x.to(device::emulated_device(0)); };
  const auto p = random({2, 200, 72}), x = random({2, 200, 200}), c = (x + x.mT()).contiguous();
  expect_product(symmetric_matmul(there(p)).cpu(), p, {}, 1, 0);
  expect_product(symmetric_matmul(there(p), there(c), 2.0315, -4.775).cpu(), p, c, 2.0315F, -4.775F);
  const auto part = there(p).narrow(1, 8, 136).narrow(2, 16, 40);  // of rows that are further apart
  expect_product(symmetric_matmul(part).cpu(), part.cpu(), {}, 1, 0);
}

TEST(SymmetricMatmul, of_a_gpu_is_counted_with_the_tiles_that_it_computes) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto empty = [&](at::IntArrayRef sizes) { return at::empty(sizes, at::TensorOptions(at::kBFloat16).device(counting.device())); };
  double flops = 0;
  EXPECT_THAT(operations_of(empty({3, 304, 40}), empty({3, 304, 304}), flops), testing::ElementsAre("symmetric_matmul"));
  EXPECT_EQ(flops, 3 * 2.0 * 40 * (128 * 304 + 128 * 176 + 48 * 48));
  EXPECT_EQ(symmetric_matmul_flops(1, 512, 512) / (2.0 * 512 * 512 * 512), 0.625);
}

// What no vector of eight elements fits, and what is no bf16.
TEST(SymmetricMatmul, of_other_rows_is_a_library_gemm) {
  const auto device = device::emulated_device(0);
  double flops = 0;
  for (const auto& p :
       {random({2, 63, 64}), random({2, 64, 63}), random({2, 64, 72}).narrow(2, 1, 64), random({2, 64, 64}).to(at::kFloat)}) {
    SCOPED_TRACE(fmt::format("{} x {}", p.size(1), p.size(2)));
    const auto there = at::empty_strided(p.sizes(), p.strides(), p.options().device(device)),
               c = at::zeros({2, p.size(1), p.size(1)}, p.options());
    const auto moved = p.storage_offset() == 0 ? there.copy_(p) : random({2, 64, 72}).to(device).narrow(2, 1, 64);
    EXPECT_THAT(operations_of(moved, c.to(device), flops), testing::Contains("aten::baddbmm"));
    const auto found = symmetric_matmul(moved, {}, 2).cpu().to(at::kDouble), wide = moved.cpu().to(at::kDouble);
    EXPECT_LT((found - 2 * at::bmm(wide, wide.mT())).abs().max().item<double>(), 1);
  }
}

}  // namespace
}  // namespace ingot::kernels::gpu
