#include "device/virtual_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "device/device.h"

namespace ingot::device {
namespace {

at::TensorOptions on(at::Device device, at::ScalarType dtype = at::kFloat) { return at::TensorOptions().device(device).dtype(dtype); }

// Composite, structured, in-place, out and list operations, views and indices.
at::Tensor many_operations(const at::Tensor& x) {
  auto y = at::mm(x, x.t()).add_(1.5).softmax(-1);
  y = device::cat({y, y.sigmoid()}, 1).narrow(1, 1, x.size(0));
  y = std::get<0>(at::native_layer_norm(y, {y.size(1)}, {}, {}, 1e-5));
  y = at::where(y.gt(0), y, at::silu(y)).index_select(0, at::arange(3, on(x.device(), at::kLong)));
  auto out = at::empty({0}, y.options());
  at::mul_out(out, y, y);
  return at::stack({out, out.t().contiguous().t()}).sum(0).to(at::kDouble);
}

TEST(EmulatedDevice, computes_what_the_cpu_computes) {
  at::manual_seed(1);
  const auto x = at::randn({5, 7}, at::kDouble);
  const auto there = many_operations(x.to(emulated_device(0)));
  EXPECT_EQ(there.device(), emulated_device(0));
  EXPECT_TRUE(at::equal(there.cpu(), many_operations(x)));
}

// The device compares each shape and order of strides that it inferred with the CPU's kernel: what is wrong throws.
TEST(EmulatedDevice, knows_the_strides_of_where) {
  const auto device = emulated_device(0);
  const auto below = at::ones({5, 5}, at::kBool).tril(-1).to(device), zero = at::zeros({}, on(device));
  for (const auto& host : {at::rand({4, 5, 1}), at::rand({5, 4}).t().unsqueeze(-1), at::rand({5, 4, 5}).transpose(0, 1),
                           at::rand({4, 5, 5}).transpose(1, 2)}) {
    const auto x = at::empty_strided(host.sizes(), host.strides(), on(device)).copy_(host);
    EXPECT_TRUE(at::equal(at::where(below, x, zero).cpu(), at::where(below.cpu(), host, 0))) << host.strides();
    EXPECT_TRUE(at::equal(at::where(x.gt(0.5), x, zero).cpu(), at::where(host.gt(0.5), host, 0))) << host.strides();
  }
}

TEST(EmulatedDevice, runs_autograd) {
  at::manual_seed(2);
  auto host = at::randn({4, 6}, at::kDouble).requires_grad_(true);
  auto there = host.detach().to(emulated_device(1)).requires_grad_(true);
  for (auto* x : {&host, &there}) (at::silu(at::mm(*x, x->t())) * 3).sum().backward();
  EXPECT_TRUE(at::equal(there.grad().cpu(), host.grad()));
}

TEST(EmulatedDevice, refuses_a_host_tensor_beside_its_own) {
  const auto x = at::ones({3}, on(emulated_device(0)));
  EXPECT_THROW(x + at::ones({3}), c10::Error);
  EXPECT_THROW(device::cat({x, at::ones({3})}), c10::Error);
  EXPECT_EQ((x + at::ones({})).sum().item<float>(), 6);  // a number may come from the host
}

TEST(EmulatedDevice, refuses_a_tensor_of_another_index) {
  const auto x = at::ones({3}, on(emulated_device(0))), y = at::ones({3}, on(emulated_device(1)));
  EXPECT_THROW(x + y, c10::Error);
  EXPECT_THROW(at::mm(x.view({3, 1}), y.view({1, 3})), c10::Error);
}

TEST(EmulatedDeviceDeathTest, host_code_cannot_touch_its_memory) {
  const auto x = at::ones({3}, on(emulated_device(0)));
  EXPECT_EXIT(static_cast<void>(*static_cast<volatile float*>(x.data_ptr())), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(host_view(x).data_ptr<float>()[2], 1);
}

TEST(EmulatedDevice, a_host_view_keeps_the_memory) {
  auto x = at::full({1000}, 7, on(emulated_device(0)));
  const auto view = host_view(x);
  x = at::Tensor();
  const auto other = at::zeros({1000}, on(emulated_device(0)));
  EXPECT_EQ(view.sum().item<float>(), 7000);
}

TEST(EmulatedDevice, stands_for_a_gpu) {
  EXPECT_TRUE(is_gpu(emulated_device(0)));
  EXPECT_FALSE(is_cpu(emulated_device(0)));
  EXPECT_EQ(device_named("emulated"), emulated_device(0));
  EXPECT_TRUE(is_cpu(at::Device(at::kCPU)));
  EXPECT_THROW(emulated_device(kEmulatedDevices), std::exception);
}

TEST(CountingDevice, gives_the_shapes_of_the_cpu) {
  const CountingDevice counting;
  const auto host = many_operations(at::randn({5, 7}, at::kDouble));
  const auto counted = many_operations(at::empty({5, 7}, on(counting.device(), at::kDouble)));
  EXPECT_EQ(counted.sizes(), host.sizes());
  EXPECT_EQ(counted.strides(), host.strides());
  EXPECT_EQ(counted.scalar_type(), host.scalar_type());
}

TEST(CountingDevice, needs_no_memory) {
  const CountingDevice counting;
  const auto x = at::zeros({int64_t{1} << 44}, on(counting.device()));
  EXPECT_EQ(memory_use(counting.device()).allocated_bytes, int64_t{1} << 46);
}

TEST(CountingDevice, counts_what_lives_and_the_peak) {
  const CountingDevice counting;
  const auto device = counting.device();
  const auto a = at::empty({100}, on(device));
  {
    const auto b = at::empty({1000}, on(device)), view = b.narrow(0, 10, 20);
    EXPECT_EQ(memory_use(device).allocated_bytes, 4400);
  }
  EXPECT_EQ(memory_use(device).allocated_bytes, 400);
  EXPECT_EQ(memory_use(device).peak_bytes, 4400);
  EXPECT_EQ(peak_memory_bytes(device), 4400);
  reset_peak_memory(device);
  EXPECT_EQ(peak_memory_bytes(device), 400);
}

TEST(CountingDevice, has_the_peak_of_the_emulated_device) {
  const CountingDevice counting;
  std::vector<int64_t> peaks;
  for (const auto device : {counting.device(), emulated_device(2)}) {
    auto x = at::zeros({64, 32}, on(device)).requires_grad_(true);
    reset_peak(device);
    const int64_t before = memory_use(device).allocated_bytes;
    (at::silu(at::mm(x, x.t())).softmax(-1) * 3).sum().backward();
    peaks.push_back(memory_use(device).peak_bytes - before);
  }
  EXPECT_EQ(peaks[0], peaks[1]);
  EXPECT_GT(peaks[0], 3 * 64 * 64 * 4);
}

TEST(CountingDevice, spreads_a_bincount_evenly) {
  const CountingDevice counting;
  const auto choice = at::empty({10}, on(counting.device(), at::kLong));
  EXPECT_TRUE(at::equal(choice.bincount({}, 4).cpu(), at::tensor({3, 3, 2, 2}, at::kLong)));
}

TEST(CountingDevice, remembers_small_integers_and_forgets_them_when_they_are_written) {
  const CountingDevice counting;
  auto x = at::tensor({4, 5, 6}, at::kLong).to(counting.device());
  EXPECT_TRUE(at::equal(x.clone().cpu(), at::tensor({4, 5, 6}, at::kLong)));
  EXPECT_EQ(x[1].item<int64_t>(), 5);
  x.add_(1);
  EXPECT_FALSE(contents_of(x).has_value());
}

TEST(CountingDevice, says_where_a_shape_is_not_known) {
  const CountingDevice counting;
  const auto x = at::ones({4}, on(counting.device()));
  try {
    static_cast<void>(x.nonzero());
    FAIL() << "the shape of nonzero() depends on data that is not there";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("aten::nonzero"));
  }
}

TEST(CountingDevice, answers_for_its_target) {
  const CountingDevice cpu(Target::cpu), gpu(Target::gpu, 1.5);
  EXPECT_TRUE(is_cpu(cpu.device()));
  EXPECT_TRUE(is_gpu(gpu.device()));
  EXPECT_EQ(expert_load(gpu.device()), 1.5);
  EXPECT_TRUE(counted("kernel", {at::empty({2}, on(cpu.device()))}, {}, 0));
  EXPECT_FALSE(counted("kernel", {at::empty({2})}, {}, 0));
  EXPECT_FALSE(counted("kernel", {at::empty({2}, on(emulated_device(0)))}, {}, 0));
}

TEST(CountingDevice, there_are_as_many_as_it_says) {
  std::vector<std::unique_ptr<CountingDevice>> all;
  for (int i = 0; i < kCountingDevices; ++i) all.push_back(std::make_unique<CountingDevice>());
  EXPECT_THROW(CountingDevice(), std::exception);
  all.pop_back();
  EXPECT_NO_THROW(CountingDevice());
}

}  // namespace
}  // namespace ingot::device
