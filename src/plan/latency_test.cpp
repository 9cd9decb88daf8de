// Latencies of a model whose bytes, FLOPs and kernels are counted by hand, on devices of round numbers.
#include "plan/latency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

constexpr double kForNothing = 1e30;  // a rate at which something takes no time

schedule::Cluster cluster_of(double bytes_per_s, double flops_per_s, double launch_s) {
  schedule::Cluster c;
  c.name = "round";
  c.memory_bytes = 1e12;
  c.memory_bytes_per_s = bytes_per_s;
  c.kernel_launch_s = launch_s;
  c.compute = {{.dtype = "fp32",
                .gemm_flops_per_s = flops_per_s,
                .attention_flops_per_s = flops_per_s / 2,
                .attention_backward_flops_per_s = flops_per_s / 2,
                .state_flops_per_s = flops_per_s}};
  return c;
}

Device device(double bytes_per_s, double flops_per_s, double launch_s) {
  return device_of(cluster_of(bytes_per_s, flops_per_s, launch_s), "fp32", 0);
}

std::unique_ptr<models::Model> model_of(const std::string& family) { return models::create_model(small_model(family)); }

// Three blocks of hidden 96 with q 128, k and v 64 each, o and three matrices of the MLP with ffn 256; the head over 320 ids.
constexpr double kBlockElements = 96 * (128 + 64 + 64) + 128 * 96 + 3 * 96 * 256, kHeadElements = 320 * 96;
constexpr double kWeightBytes = 4 * (3 * kBlockElements + kHeadElements);
// rms_norm; q, k and v; split_and_rotate; attention; o; join_norm; gate and up; swiglu; down; join.
constexpr int kBlockKernels = 13, kOuterKernels = 3;

TEST(Latency, of_a_token_is_its_bytes_where_they_bind) {
  const auto model = model_of("llama");
  const auto l = decode_latency(*model, 100, device(1e9, kForNothing, 0));
  EXPECT_DOUBLE_EQ(l.weight_bytes, kWeightBytes);
  EXPECT_DOUBLE_EQ(l.cache_bytes, 3.0 * 2 * 64 * 101 * 4);  // its own key and value among them
  EXPECT_DOUBLE_EQ(l.flops, 2 * kWeightBytes / 4 + 3.0 * 4 * 128 * 101);
  // What the program does beside its kernels: keys and values move into the cache, rows and angles are cut out.
  EXPECT_GE(l.launches, 3 * kBlockKernels + kOuterKernels);
  EXPECT_LE(l.launches, 1.5 * (3 * kBlockKernels + kOuterKernels));
  EXPECT_GT(l.memory_s, (l.weight_bytes + l.cache_bytes) / 1e9);
  EXPECT_LT(l.memory_s, 1.25 * (l.weight_bytes + l.cache_bytes) / 1e9);
  EXPECT_NEAR(l.total_s, l.memory_s, 1e-12);
}

TEST(Latency, of_a_token_is_its_flops_or_its_launches_where_they_bind) {
  const auto model = model_of("llama");
  const auto computing = decode_latency(*model, 100, device(kForNothing, 1e9, 0));
  EXPECT_NEAR(computing.total_s, computing.flops / 1e9, 1e-12);
  const auto launching = decode_latency(*model, 100, device(kForNothing, kForNothing, 1e-3));
  EXPECT_NEAR(launching.total_s, 1e-3 * static_cast<double>(launching.launches), 1e-9);
}

TEST(Latency, of_a_prompt_is_its_gemms_attention_and_one_row_of_the_head) {
  const auto model = model_of("llama");
  const auto on = device(kForNothing, 1e9, 0);
  const auto l = prefill_latency(*model, 64, on, Rates(on.profile, "fp32"));
  const double gemms = 2 * 64 * 3 * kBlockElements + 2 * kHeadElements, attention = 3 * 4.0 * (64 * 65 / 2) * 128;
  EXPECT_NEAR(l.total_s, gemms / 1e9 + attention / 0.5e9, 1e-9);
  // Where memory binds, each weight is read once, however long the prompt is.
  const auto slow = device(1e6, kForNothing, 0);
  EXPECT_GE(prefill_latency(*model, 64, slow, Rates(slow.profile, "fp32")).total_s, kWeightBytes / 1e6);
  EXPECT_DOUBLE_EQ(prefill_latency(*model, 64, slow, Rates(slow.profile, "fp32")).weight_bytes, kWeightBytes);
}

TEST(Latency, of_a_mixture_reads_the_experts_that_tokens_use) {
  const auto model = model_of("zaya1");
  const auto on = device(1e9, 1e12, 0);
  const double expert = 4.0 * 3 * 96 * 128;  // gate, up and down of one
  const auto one = decode_latency(*model, 10, on), two = decode_latency(*model, 10, on, 2), four = decode_latency(*model, 10, on, 4),
             eight = decode_latency(*model, 10, on, 8);
  EXPECT_DOUBLE_EQ(two.weight_bytes - one.weight_bytes, 3 * expert);
  EXPECT_DOUBLE_EQ(four.weight_bytes - one.weight_bytes, 3 * 3 * expert);
  EXPECT_DOUBLE_EQ(eight.weight_bytes, four.weight_bytes);
  EXPECT_GE(four.launches - one.launches, 3 * 3 * 2);
  EXPECT_DOUBLE_EQ(eight.cache_bytes, 8 * one.cache_bytes);
  EXPECT_DOUBLE_EQ(prefill_latency(*model, 3, on, Rates(on.profile, "fp32")).weight_bytes - one.weight_bytes, 3 * 2 * expert);
  // All matrices that a token meets, as the model itself counts them; vectors and convolutions are left out.
  const double active = 4.0 * static_cast<double>(model->active_elements() + 320 * 96);
  EXPECT_LE(one.weight_bytes, active);
  EXPECT_GE(one.weight_bytes, 0.85 * active);
}

TEST(Latency, grows_with_context_prompt_and_launches_and_shrinks_with_bandwidth) {
  for (const char* family : {"llama", "zaya1"}) {
    const auto model = model_of(family);
    double before = 0;
    for (const int64_t context : {1, 10, 100, 1000}) {
      const double now = decode_latency(*model, context, device(1e9, 1e11, 1e-6)).total_s;
      EXPECT_GT(now, before);
      before = now;
    }
    before = 0;
    for (const int64_t prompt : {64, 128, 512}) {
      const auto on = device(1e9, 1e11, 1e-6);
      const double now = prefill_latency(*model, prompt, on, Rates(on.profile, "fp32")).total_s;
      EXPECT_GT(now, before);
      before = now;
    }
    EXPECT_GT(decode_latency(*model, 10, device(1e9, 1e11, 2e-6)).total_s, decode_latency(*model, 10, device(1e9, 1e11, 1e-6)).total_s);
    EXPECT_LT(decode_latency(*model, 10, device(2e9, 1e11, 1e-6)).total_s, decode_latency(*model, 10, device(1e9, 1e11, 1e-6)).total_s);
  }
}

TEST(Latency, a_window_bounds_the_cache_that_is_read) {
  auto config = small_model("llama");
  config.layer_types = {"sliding"};
  config.window = 16;
  const auto model = models::create_model(config);
  const auto on = device(1e9, 1e12, 0);
  EXPECT_DOUBLE_EQ(decode_latency(*model, 1000, on).cache_bytes,
                   decode_latency(*models::create_model(small_model("llama")), 15, on).cache_bytes);
}

TEST(Latency, of_linear_attention_does_not_grow_with_the_context) {
  auto config = small_model("linear_llama");
  config.layer_pattern = "L";
  const auto model = models::create_model(config);
  const auto on = device(1e9, 1e12, 0);
  EXPECT_DOUBLE_EQ(decode_latency(*model, 10, on).total_s, decode_latency(*model, 1000, on).total_s);
}

TEST(Device, of_a_measured_profile_reads_at_its_largest_array_and_launches_at_a_third_of_an_operation) {
  auto profile = round_machine(1e10, 1e9);
  profile.memory.push_back({"triad", 1 << 26, 5e8});
  profile.operation_s = 3e-6;
  const auto device = device_of(profile, "bf16", 1 << 30, 1 << 20);
  EXPECT_TRUE(device.is_measured());
  EXPECT_NEAR(device.memory_bytes_per_s, 5e8, 1);
  EXPECT_DOUBLE_EQ(device.launch_s, 1e-6);
  EXPECT_THROW(device_of(profile, "fp16", 1, 1), base::ProfileError);
}

}  // namespace
}  // namespace ingot::plan
