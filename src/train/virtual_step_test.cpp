// A training step on the emulated and the counting device against the same step on the CPU: the same numbers to the last bit where
// the same kernels run, the same operations, and the same bytes.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/test_night.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "layers/dtype.h"
#include "train/step.h"

namespace ingot::train {
namespace {

struct Case {
  std::string family;
  layers::Precision precision = at::kDouble;
  std::string optimizer = "adamw";
  models::Recompute recompute = models::Recompute::none;
  std::string linear = "gated_delta";
  std::string newton_schulz = "auto";
  bool offloads = false, offloads_optimizer = false;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const auto& c = info.param;
  return fmt::format("{}{}_{}{}_{}{}", c.family, c.family == "linear_llama" ? "_" + c.linear : "", c10::toString(c.precision.dtype),
                     c.precision.quantization ? fmt::format("_fp8_{}", static_cast<int>(*c.precision.quantization)) : "", c.optimizer,
                     c.recompute == models::Recompute::full        ? "_full_recompute"
                     : c.recompute == models::Recompute::selective ? "_selective_recompute"
                                                                   : "") +
         (c.offloads ? "_offloaded" : "") + (c.offloads_optimizer ? "_optimizer_offloaded" : "");
}

models::ModelConfig model_of(const Case& test) {
  models::ModelConfig c;
  c.family = test.family;
  c.layers = 4, c.hidden = 64, c.vocab_size = 96, c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.ffn = 96;
  c.experts = 4, c.expert_ffn = 32, c.router_hidden = 16, c.rope_fraction = 0.5;
  c.linear_attention = test.linear, c.feature_map = test.linear.ends_with("delta") || test.linear == "kda" ? "l2" : "silu",
  c.layer_pattern = "LLN";
  c.gate_rank = 4;
  c.force_balance = true;  // a router's choice is even, as a counting device takes it to be
  return c;
}

data::Batch batch_of(int64_t rows, int64_t seq, bool has_documents) {
  data::Batch b{rows, seq, {}, {}, std::vector<int32_t>(static_cast<size_t>(rows * seq), 0)};
  for (int64_t i = 0; i < rows * seq; ++i) {
    b.inputs.push_back(static_cast<int32_t>(i * 7 % 95));
    b.targets.push_back(i % 5 == 4 ? -100 : static_cast<int32_t>(i * 11 % 95));
    if (has_documents && i % seq >= seq / 2) b.document_starts[static_cast<size_t>(i)] = static_cast<int32_t>(seq / 2);
  }
  return b;
}

struct SmallTraining {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<TrainingStep> step;

  SmallTraining(const Case& test, at::Device device) : model(models::create_model(model_of(test))) {
    model->allocate(test.precision, device);
    model->initialise(3);
    optim::OptimizerConfig config;
    config.name = test.optimizer;
    config.newton_schulz_precision = test.newton_schulz;
    config.clip = 0;  // whether gradients are scaled depends on data
    config.offload = test.offloads_optimizer && !device.is_cpu();
    optimizer = std::make_unique<optim::Optimizer>(model->parameters(), config);
    step = std::make_unique<TrainingStep>(*model, *optimizer, test.recompute, 1);
    if (test.offloads && !device.is_cpu()) step->offload_activations();
  }
};

std::vector<std::string> names_of(const device::Trace& trace) {
  std::vector<std::string> names;
  for (const auto& o : trace.operations) names.emplace_back(trace.name_of(o));
  return names;
}

class VirtualStep : public testing::TestWithParam<Case> {};

// What a plan counts is what a device does.
TEST_P(VirtualStep, counting_and_emulated_devices_do_the_same_in_the_same_memory) {
  const auto batch = batch_of(2, 48, true);
  std::vector<device::Trace> traces;
  const device::CountingDevice counting;
  for (const auto device : {device::emulated_device(0), counting.device()}) {
    SmallTraining run(GetParam(), device);
    run.step->run(batch, 1e-2);
    device::Tracer tracer(device);
    run.step->run(batch, 1e-2);
    traces.push_back(tracer.finish());
  }
  const auto emulated = names_of(traces[0]), counted = names_of(traces[1]);
  EXPECT_EQ(emulated.size(), counted.size());
  const auto [here, there] = std::mismatch(emulated.begin(), emulated.end(), counted.begin(), counted.end());
  EXPECT_EQ(here, emulated.end()) << *here << " of the emulated device, number " << here - emulated.begin() << " in "
                                  << traces[0].path_of(traces[0].operations[static_cast<size_t>(here - emulated.begin())].scope);
  EXPECT_EQ(traces[0].flops(), traces[1].flops());
  EXPECT_EQ(traces[0].peak_bytes, traces[1].peak_bytes);
  EXPECT_EQ(traces[0].waits(), traces[1].waits());
  EXPECT_TRUE(traces[1].guessed.empty()) << testing::PrintToString(traces[1].guessed);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto* family : {"llama", "zaya1"})
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      cases.push_back({family, dtype});
      cases.push_back({family, dtype, "muon"});
    }
  for (const auto* family : {"llama", "zaya1", "linear_llama"})
    for (const auto recompute : {models::Recompute::selective, models::Recompute::full})
      cases.push_back({family, at::kBFloat16, "adamw", recompute});
  for (const auto* family : {"llama", "zaya1", "linear_llama"})
    cases.push_back({.family = family, .precision = at::kBFloat16, .recompute = models::Recompute::full, .offloads = true});
  for (const auto* optimizer : {"adamw", "muon", "normuon", "dion"})
    cases.push_back({.family = "zaya1", .precision = at::kBFloat16, .optimizer = optimizer, .offloads_optimizer = true});
  for (const auto* linear : {"basic", "retention", "scalar_gate", "diagonal_gate", "delta", "gated_delta", "kda"})
    cases.push_back({.family = "linear_llama", .linear = linear});
  cases.push_back({"linear_llama", at::kBFloat16, "muon"});
  for (const char* precision : {"fp8", "fp8_block", "mxfp8", "nvfp4"})
    for (const char* family : {"llama", "zaya1"}) cases.push_back({family, layers::precision_named(precision)});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(, VirtualStep, testing::ValuesIn(all_cases()), name_of);

class Fp64Step : public testing::TestWithParam<Case> {};

TEST_P(Fp64Step, the_emulated_device_has_the_bits_of_the_cpu) {
  const auto batch = batch_of(2, 24, true);
  SmallTraining cpu(GetParam(), at::kCPU), there(GetParam(), device::emulated_device(0));
  for (int step = 0; step < 2; ++step) {
    const auto a = cpu.step->run(batch, 1e-2), b = there.step->run(batch, 1e-2);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    EXPECT_EQ(a.expert_tokens, b.expert_tokens);
  }
  for (const auto& p : cpu.model->parameters().all())
    EXPECT_TRUE(at::equal(p->value, there.model->parameters().get(p->name).value.detach().cpu())) << p->name;
}

INSTANTIATE_TEST_SUITE_P(, Fp64Step,
                         testing::Values(Case{"llama"}, Case{"llama", at::kDouble, "muon"}, Case{"zaya1", at::kDouble, "muon"},
                                         Case{"linear_llama"}, Case{"zaya1", at::kDouble, "adamw", models::Recompute::full},
                                         Case{.family = "zaya1", .recompute = models::Recompute::full, .offloads = true},
                                         Case{.family = "llama", .recompute = models::Recompute::full, .offloads = true},
                                         Case{.family = "zaya1", .optimizer = "muon", .offloads_optimizer = true},
                                         Case{.family = "llama", .optimizer = "normuon", .offloads_optimizer = true}),
                         name_of);

// Experts in grouped GEMMs of 8 bits there, one by one and emulated here. What differs is the order of sums and the rounding of weights'
// gradients, until AdamW has spread it: later losses of a dense model lie as far apart, and norms of gradients farther on some CPUs.
TEST(Fp8Step, of_a_mixture_on_the_emulated_device_is_near_the_emulation_on_a_cpu) {
  const auto batch = batch_of(2, 48, true);
  for (const char* family : {"olmoe", "zaya1"}) {
    const Case test{family, layers::precision_named("fp8")};
    SmallTraining cpu(test, at::kCPU), there(test, device::emulated_device(0));
    const device::CountingDevice counting;
    SmallTraining counted(test, counting.device());
    device::Tracer tracer(counting.device());
    counted.step->run(batch, 1e-2);
    const auto names = names_of(tracer.finish());
    EXPECT_GT(std::count(names.begin(), names.end(), "scaled_grouped_gemm.gradient"), 0) << family;
    for (int step = 0; step < 6; ++step) {
      const auto expected = cpu.step->run(batch, 3e-3), found = there.step->run(batch, 3e-3);
      EXPECT_NEAR(found.loss, expected.loss, (step == 0 ? 1e-5 : 6e-3) * expected.loss) << family << " step " << step;
      // Attention's weights are rounded to bf16 where a CPU multiplies that.
      EXPECT_NEAR(found.grad_norm, expected.grad_norm, (step == 0 ? 5e-3 : 0.4) * expected.grad_norm) << family << " step " << step;
    }
  }
}

// Each block's input is on the device while it, or one of the two behind it, runs.
TEST(OffloadedStep, keeps_the_inputs_of_a_few_blocks_however_many_there_are) {
  const auto batch = batch_of(2, 512, false);
  const auto peak_of = [&](int64_t layers, bool offloads) {
    const device::CountingDevice counting(device::Target::gpu);
    auto config = model_of({"llama"});
    config.layers = layers;
    const auto model = models::create_model(config);
    model->allocate(at::kFloat, counting.device());
    optim::Optimizer optimizer(model->parameters(), {});
    TrainingStep step(*model, optimizer, models::Recompute::full, 0);
    if (offloads) step.offload_activations();
    step.run(batch, 1e-2);
    const int64_t before = device::memory_use(counting.device()).allocated_bytes;
    device::reset_peak(counting.device());
    step.run(batch, 1e-2);
    return device::memory_use(counting.device()).peak_bytes - before;
  };
  constexpr int64_t kInput = 2 * 512 * 64 * 4;  // [batch, seq, hidden] in fp32
  const int64_t others = peak_of(12, true) - peak_of(4, true), kept = peak_of(12, false) - peak_of(4, false);
  EXPECT_NEAR(static_cast<double>(kept - others), 8 * kInput, 0.02 * kInput);
}

// In bf16, whose masters move too; and back from what a checkpoint reads.
TEST(OffloadedStep, of_masters_and_moments_has_the_bits_of_those_that_stay) {
  const auto batch = batch_of(2, 24, false);
  for (const auto* name : {"adamw", "muon", "normuon", "dion"}) {
    const Case stays{.family = "llama", .precision = at::kBFloat16, .optimizer = name};
    auto moves = stays;
    moves.offloads_optimizer = true;
    SmallTraining a(stays, device::emulated_device(0)), b(moves, device::emulated_device(1)), restored(moves, device::emulated_device(2));
    for (int step = 0; step < 3; ++step) EXPECT_EQ(a.step->run(batch, 1e-2).loss, b.step->run(batch, 1e-2).loss) << name;
    const auto expected = a.optimizer->state(), found = b.optimizer->state(), to = restored.optimizer->state();
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(expected[i].flat.cpu(), found[i].flat.cpu())) << name << " " << found[i].name;
      to[i].flat.copy_(found[i].flat);
    }
    restored.optimizer->set_steps_done(3);
    restored.optimizer->publish_masters();
    const double next = b.step->run(batch, 1e-2).loss;
    EXPECT_EQ(a.step->run(batch, 1e-2).loss, next) << name;
    EXPECT_EQ(restored.step->run(batch, 1e-2).loss, next) << name;
  }
}

// The device holds masters and moments of three parameters at a time.
TEST(OffloadedStep, has_masters_and_moments_of_a_few_parameters_on_the_device) {
  const auto held = [](bool offloads) {
    const device::CountingDevice counting(device::Target::gpu);
    SmallTraining run({.family = "llama", .precision = at::kBFloat16, .offloads_optimizer = offloads}, counting.device());
    return device::memory_use(counting.device()).allocated_bytes;
  };
  int64_t elements = 0;
  const auto model = models::create_model(model_of({"llama"}));
  for (const auto& p : model->parameters().all()) elements += p->elements();
  EXPECT_NEAR(static_cast<double>(held(false) - held(true)), 12.0 * static_cast<double>(elements),
              0.01 * 12.0 * static_cast<double>(elements));
}

// Bytes that live on the CPU, as its allocator is asked for them.
class WatchedAllocator : public c10::Allocator {
 public:
  static WatchedAllocator& get() {
    static WatchedAllocator watched;
    return watched;
  }
  void reset_peak() { peak_ = bytes_.load(); }
  int64_t bytes() const { return bytes_; }
  int64_t peak() const { return peak_; }

  c10::DataPtr allocate(size_t n) override {
    auto* block = static_cast<char*>(std::aligned_alloc(kHeader, (n + 2 * kHeader - 1) / kHeader * kHeader));
    std::memcpy(block, &n, sizeof n);
    const int64_t now = bytes_ += static_cast<int64_t>(n);
    int64_t peak = peak_;
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
    void* data = block + kHeader;
    return {data, data, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }

 private:
  static constexpr size_t kHeader = 64;
  static void release(void* data) {
    auto* block = static_cast<char*>(data) - kHeader;
    size_t n = 0;
    std::memcpy(&n, block, sizeof n);
    get().bytes_ -= static_cast<int64_t>(n);
    std::free(block);
  }
  std::atomic<int64_t> bytes_ = 0, peak_ = 0;
};

class FusedStep : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    c10::SetCPUAllocator(&WatchedAllocator::get());
    at::set_num_threads(2);
  }
  void TearDown() override { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator()); }
};

// With ingot's own kernels: what a plan for a CPU counts is what the CPU's allocator is asked for.
TEST_P(FusedStep, a_counted_cpu_allocates_what_the_cpu_does) {
  const auto batch = batch_of(2, 96, true);
  int64_t counted = 0;
  {
    const device::CountingDevice counting(device::Target::cpu);
    SmallTraining run(GetParam(), counting.device());
    run.step->run(batch, 1e-2);
    device::reset_peak(counting.device());
    run.step->run(batch, 1e-2);
    counted = device::memory_use(counting.device()).peak_bytes;
  }
  const auto near = 0.005 * static_cast<double>(counted);
  const int64_t before = WatchedAllocator::get().bytes();
  SmallTraining run(GetParam(), at::kCPU);
  run.step->run(batch, 1e-2);
  WatchedAllocator::get().reset_peak();
  int64_t peak = 0;
  // Threads of a kernel hold scratch of their own: all at once in most steps, one after another in some, in many on a busy machine.
  for (int i = 0; i < (base::tests_run_at_night() ? 8 : 3) || (i < 300 && static_cast<double>(peak) < static_cast<double>(counted) - near);
       ++i) {
    run.step->run(batch, 1e-2);
    peak = WatchedAllocator::get().peak() - before;
  }
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(peak), near);
}

std::vector<Case> fused_cases() {
  std::vector<Case> cases;
  for (const auto& c : all_cases())
    if (c.precision.dtype != at::kDouble && !c.offloads && !c.offloads_optimizer) cases.push_back(c);
  for (const auto* linear : {"basic", "retention", "scalar_gate", "diagonal_gate", "delta", "gated_delta", "kda"})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) cases.push_back({.family = "linear_llama", .precision = dtype, .linear = linear});
  // In bf16, as is fastest with AMX, each thread holds strips of its own, as many at once as happen to.
  for (auto& c : cases) c.newton_schulz = "own";
  return cases;
}

INSTANTIATE_TEST_SUITE_P(, FusedStep, testing::ValuesIn(fused_cases()), name_of);

}  // namespace
}  // namespace ingot::train
