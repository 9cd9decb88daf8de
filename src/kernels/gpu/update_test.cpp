// Updates of many parameters by the GPU's kernels, which the host runs thread by thread, against the CPU's.
#include "kernels/update.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/gpu/host_kernels.h"
#include "kernels/row_kernel.h"
#include "kernels/stochastic_rounding.h"

namespace ingot::kernels::gpu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// Of a number: the CPU's compiler makes one operation of a product and a sum.
constexpr double kTolerance = 1e-6;

// As a model's: of one chunk, none and several, on addresses of vectors and between them.
TensorList tensors_like(const std::vector<int64_t>& sizes, int64_t from, at::ScalarType dtype = at::kFloat) {
  TensorList all;
  for (const int64_t size : sizes) all.push_back(at::randn({size + from}).to(dtype).narrow(0, from, size));
  return all;
}
TensorList copies_of(const TensorList& all, at::ScalarType dtype) {
  TensorList copies;
  for (const auto& x : all) {  // as far from a vector's address as they were
    const int64_t from = x.storage_offset();
    copies.push_back(at::empty({x.numel() + from}, dtype).narrow(0, from, x.numel()).copy_(x));
  }
  return copies;
}
TensorList copies_of(const TensorList& all) { return all.empty() ? all : copies_of(all, all.front().scalar_type()); }

void expect_close(const TensorList& found, const TensorList& expected, const std::string& what) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].numel() == 0) continue;
    EXPECT_LT(((found[i] - expected[i]).abs() / (expected[i].abs() + 1)).max().item<double>(), kTolerance) << what << " " << i;
  }
}
void expect_same(const TensorList& found, const TensorList& expected, const std::string& what) {
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << what << " " << i;
}
template <class Problem>
typename Problem::Tensor& add_to(Problem& p, const at::Tensor& x) {
  auto& next = p.of[p.tensors++];
  next.elements = x.numel(), next.first_chunk = p.rows;
  p.rows += (x.numel() + Problem::kChunk - 1) / Problem::kChunk;
  return next;
}
uint16_t* bf16_numbers(const at::Tensor& x) { return static_cast<uint16_t*>(address(x)); }

struct Update {
  std::vector<int64_t> sizes;
  int64_t from;
  std::string name() const { return fmt::format("{} tensors from {}", sizes.size(), from); }
};

std::vector<Update> updates() {
  std::vector<Update> all;
  for (const int64_t from : {0, 1})
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {1027}, {4096}, {16384, 0, 5, 16385, 0, 33000, 3, 0}})
      all.push_back({sizes, from});
  Update most{{}, 0};
  for (int64_t i = 0; i < cpu::AdamwProblem::kMost; ++i) most.sizes.push_back(i % 5 == 1 ? 0 : i * 9);
  all.push_back(most);
  return all;
}

template <class Run>
void in_every_order(const Run& run) {
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      run(*kernels, seed);
    }
}

struct Adamw {
  TensorList master, grad, first, second, narrow;

  // Every third without a copy in bf16.
  cpu::AdamwProblem problem() const {
    cpu::AdamwProblem p{};
    p.beta1 = 0.9F, p.rest1 = 0.1F, p.beta2 = 0.95F, p.rest2 = 0.05F, p.eps = 1e-8F, p.gradient_scale = 0.5F, p.inverse2 = 7;
    for (size_t i = 0; i < master.size(); ++i) {
      auto& t = add_to(p, master[i]);
      t.master = numbers(master[i]), t.grad = numbers(grad[i]), t.first = address(first[i]), t.second = address(second[i]);
      t.has_bf16_moments = first[i].scalar_type() == at::kBFloat16;
      t.narrow = i % 3 == 2 ? nullptr : bf16_numbers(narrow[i]);
      t.shrink = 1 - 0.001F * static_cast<float>(i + 1), t.step = 0.02F * static_cast<float>(i + 1);
      t.rounding_key = static_cast<uint32_t>(i) * 77 + 1;
    }
    return p;
  }
  Adamw copy(at::ScalarType moments) const {
    return {copies_of(master), grad, copies_of(first, moments), copies_of(second, moments), copies_of(narrow)};
  }
};

Adamw random_adamw(const Update& u) {
  at::manual_seed(3);
  Adamw a{tensors_like(u.sizes, u.from), tensors_like(u.sizes, u.from), tensors_like(u.sizes, u.from), tensors_like(u.sizes, u.from),
          tensors_like(u.sizes, u.from, at::kBFloat16)};
  for (auto& x : a.first) x.copy_(x.to(at::kBFloat16));  // of which both dtypes begin with the same
  for (auto& x : a.second) x.copy_(x.abs().to(at::kBFloat16));
  return a;
}

TEST(GpuUpdates, adamw_is_the_cpus_in_every_order_of_threads_and_blocks) {
  for (const auto& u : updates()) {
    SCOPED_TRACE(u.name());
    const auto before = random_adamw(u), expected = before.copy(at::kFloat);
    const auto on_cpu = expected.problem();
    cpu::adamw(on_cpu, 0, on_cpu.rows);
    Adamw once;
    in_every_order([&](const HostKernels& kernels, uint64_t seed) {
      const auto found = before.copy(at::kFloat);
      kernels.adamw(found.problem(), seed);
      expect_close(found.master, expected.master, "master");
      expect_close(found.first, expected.first, "first moment");
      expect_close(found.second, expected.second, "second moment");
      for (size_t i = 0; i < found.narrow.size(); ++i)
        EXPECT_TRUE(at::equal(found.narrow[i], i % 3 == 2 ? before.narrow[i] : found.master[i].to(at::kBFloat16))) << i;
      if (once.master.empty()) once = found;
      expect_same(found.master, once.master, "master");
      expect_same(found.second, once.second, "second moment");
    });
  }
}

TEST(GpuUpdates, moments_in_bf16_are_those_in_fp32_rounded_stochastically_to_the_bit) {
  for (const auto& u : updates()) {
    SCOPED_TRACE(u.name());
    const auto before = random_adamw(u);
    in_every_order([&](const HostKernels& kernels, uint64_t seed) {
      const auto fp32 = before.copy(at::kFloat), bf16 = before.copy(at::kBFloat16);
      const auto problem = bf16.problem();
      kernels.adamw(fp32.problem(), seed);
      kernels.adamw(problem, seed);
      expect_same(bf16.master, fp32.master, "master");
      expect_same(bf16.narrow, fp32.narrow, "bf16 copy");
      for (size_t i = 0; i < u.sizes.size(); ++i) {
        EXPECT_TRUE(at::equal(bf16.first[i], round_stochastically(fp32.first[i], problem.of[i].rounding_key))) << i;
        EXPECT_TRUE(at::equal(bf16.second[i], round_stochastically(fp32.second[i], ~problem.of[i].rounding_key))) << i;
      }
    });
  }
}

TEST(GpuUpdates, keep_what_is_not_finite) {
  const float infinity = std::numeric_limits<float>::infinity();
  // Of the last NaN rounding up would make -0.
  for (const float bad : {infinity, -infinity, std::bit_cast<float>(0x7fffffff)}) {
    auto a = random_adamw({{9}, 0});
    a.grad[0][7] = bad;
    in_every_order([&](const HostKernels& kernels, uint64_t seed) {
      const auto found = a.copy(at::kBFloat16), expected = a.copy(at::kBFloat16);
      const auto on_cpu = expected.problem();
      cpu::adamw(on_cpu, 0, on_cpu.rows);
      kernels.adamw(found.problem(), seed);
      for (const auto& [one, other] :
           {std::pair{found.first[0], expected.first[0]}, {found.second[0], expected.second[0]}, {found.narrow[0], expected.narrow[0]}})
        EXPECT_TRUE(at::equal(one[7].to(at::kFloat).nan_to_num(7, 8, 9), other[7].to(at::kFloat).nan_to_num(7, 8, 9))) << bad;
    });
  }
}

TEST(GpuUpdates, momentum_and_directions_are_the_cpus_in_every_order_of_threads_and_blocks) {
  for (const auto& u : updates())
    for (const bool nesterov : {false, true}) {
      SCOPED_TRACE(u.name());
      at::manual_seed(4);
      const auto before = tensors_like(u.sizes, u.from, at::kBFloat16), grad = tensors_like(u.sizes, u.from),
                 master = tensors_like(u.sizes, u.from);
      struct Results {
        TensorList momentum, direction, master, narrow;
      };
      const auto run = [&](at::ScalarType dtype, const auto& momentum_of, const auto& apply) {
        Results r{copies_of(before, dtype), copies_of(grad), copies_of(master), copies_of(before)};
        for (auto& x : r.direction) x.fill_(kNan);
        cpu::MomentumProblem m{};
        cpu::ApplyProblem a{};
        m.mu = 0.9F, m.gradient_scale = 0.5F, m.nesterov = nesterov;
        for (size_t i = 0; i < u.sizes.size(); ++i) {
          auto& t = add_to(m, r.momentum[i]);
          t.momentum = address(r.momentum[i]), t.grad = numbers(grad[i]), t.direction = numbers(r.direction[i]);
          t.is_bf16 = dtype == at::kBFloat16, t.rounding_key = static_cast<uint32_t>(i) + 5;
          auto& to = add_to(a, r.master[i]);
          to.master = numbers(r.master[i]), to.direction = numbers(r.direction[i]);
          to.narrow = i % 3 == 2 ? nullptr : bf16_numbers(r.narrow[i]), to.keep = 0.99F, to.step = 0.01F * static_cast<float>(i);
        }
        momentum_of(m);
        apply(a);
        return r;
      };
      const auto expected = run(
          at::kFloat, [](const auto& p) { cpu::momentum(p, 0, p.rows); }, [](const auto& p) { cpu::apply(p, 0, p.rows); });
      in_every_order([&](const HostKernels& kernels, uint64_t seed) {
        const auto by = [&](at::ScalarType dtype) {
          return run(
              dtype, [&](const auto& p) { kernels.momentum(p, seed); }, [&](const auto& p) { kernels.apply_direction(p, seed); });
        };
        const auto found = by(at::kFloat), rounded = by(at::kBFloat16);
        expect_close(found.momentum, expected.momentum, "momentum");
        expect_close(found.direction, expected.direction, "direction");
        expect_close(found.master, expected.master, "master");
        expect_same(rounded.direction, found.direction, "direction");
        for (size_t i = 0; i < u.sizes.size(); ++i) {
          EXPECT_TRUE(at::equal(found.narrow[i], i % 3 == 2 ? before[i] : found.master[i].to(at::kBFloat16))) << i;
          EXPECT_TRUE(at::equal(rounded.momentum[i], round_stochastically(found.momentum[i], static_cast<uint32_t>(i) + 5))) << i;
        }
      });
    }
}

// Masters in fp32 and fp64 between each other, with and without a copy in bf16; more than a launch takes.
TEST(Updates, of_a_list_are_those_of_each_tensor_on_every_device) {
  constexpr int64_t kTensors = 150;
  for (const auto moments : {at::kFloat, at::kBFloat16})
    for (const bool is_emulated : {false, true}) {
      at::manual_seed(5);
      const auto there = [&](const at::Tensor& x) { return is_emulated ? x.to(device::emulated_device(0)) : x.clone(); };
      std::vector<AdamwTensors> all, single;
      std::vector<MomentumTensors> momenta, single_momenta;
      for (int64_t i = 0; i < kTensors; ++i) {
        const auto dtype = i % 11 == 0 ? at::kDouble : at::kFloat;
        const auto random = [&] { return at::randn({i % 13 == 0 ? 0 : i * 40}, at::kDouble).abs().to(dtype); };
        const auto state = dtype == at::kDouble ? dtype : moments;
        const AdamwTensors t{
            random(), random(), random().to(state), random().to(state), {}, 1e-3 * static_cast<double>(i), 0.1, static_cast<uint32_t>(i)};
        for (auto* to : {&all, &single}) {
          auto copy = t;
          for (const auto member : {&AdamwTensors::master, &AdamwTensors::grad, &AdamwTensors::first, &AdamwTensors::second})
            copy.*member = to == &all ? there(t.*member) : (t.*member).clone();
          copy.value = i % 3 == 0 ? copy.master : at::zeros_like(copy.master, copy.master.options().dtype(at::kBFloat16));
          to->push_back(copy);
        }
        momenta.push_back({there(t.first), there(t.grad), t.rounding_key}),
            single_momenta.push_back({t.first.clone(), t.grad.clone(), t.rounding_key});
      }
      const AdamwStep step{0.9, 0.95, 1e-8, 0.5, 2};
      adamw_update(all, step);
      const auto directions = momentum_update(momenta, {0.9, 0.5, true});
      std::vector<DirectedTensors> directed;
      for (size_t i = 0; i < all.size(); ++i)
        directed.push_back({all[i].master, directions[i], all[i].value, 0.99, 0.01 * static_cast<double>(i)});
      apply_directions(directed);
      ASSERT_EQ(directions.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        adamw_update({single[i]}, step);
        const auto direction = momentum_update({single_momenta[i]}, {0.9, 0.5, true})[0];
        apply_directions({{single[i].master, direction, single[i].value, 0.99, 0.01 * static_cast<double>(i)}});
        for (const auto member : {&AdamwTensors::master, &AdamwTensors::first, &AdamwTensors::second, &AdamwTensors::value})
          EXPECT_TRUE(at::equal((all[i].*member).cpu(), single[i].*member)) << i;
        EXPECT_TRUE(at::equal(directions[i].cpu(), direction) && at::equal(momenta[i].momentum.cpu(), single_momenta[i].momentum)) << i;
      }
    }
}

}  // namespace
}  // namespace ingot::kernels::gpu
