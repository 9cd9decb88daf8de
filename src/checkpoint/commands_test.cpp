#include "checkpoint/commands.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "checkpoint/format/elements.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

using nlohmann::json;
using tensor::DType;
using ::testing::HasSubstr;

struct Summary {
  int nan = 0, infinite = 0;
  double sum_of_absolutes = 0, weighted_sum = 0, smallest = 1e300, largest = 0;
};

Summary all_values(DType dtype, int count) {
  Summary summary;
  for (int i = 0; i < count; ++i) {
    const double value = number_at(dtype, reinterpret_cast<const std::byte*>(&i), 0);
    summary.nan += std::isnan(value);
    summary.infinite += std::isinf(value);
    if (!std::isfinite(value)) continue;
    summary.sum_of_absolutes += std::abs(value);
    summary.weighted_sum += value * (i + 1);
    if (value > 0) summary.smallest = std::min(summary.smallest, value);
    summary.largest = std::max(summary.largest, value);
  }
  return summary;
}

// The oracle: sums that PyTorch 2.11 gives over every value of the dtype, recorded.
TEST(Elements, small_floats_have_the_values_that_pytorch_gives_them) {
  const Summary e4m3 = all_values(DType::fp8_e4m3, 256), e5m2 = all_values(DType::fp8_e5m2, 256), fp16 = all_values(DType::fp16, 65536),
                bf16 = all_values(DType::bf16, 65536);
  EXPECT_EQ(std::tuple(e4m3.nan, e4m3.infinite, e4m3.largest, e4m3.smallest), std::tuple(2, 0, 448.0, 0.001953125));
  EXPECT_EQ(std::pair(e4m3.sum_of_absolutes, e4m3.weighted_sum), std::pair(10815.75, -692208.0));
  EXPECT_EQ(std::tuple(e5m2.nan, e5m2.infinite, e5m2.largest, e5m2.smallest), std::tuple(6, 2, 57344.0, std::ldexp(1, -16)));
  EXPECT_EQ(std::pair(e5m2.sum_of_absolutes, e5m2.weighted_sum), std::pair(720895.9995117188, -46137343.96875));
  EXPECT_EQ(std::tuple(fp16.nan, fp16.infinite, fp16.largest, fp16.smallest), std::tuple(2046, 2, 65504.0, std::ldexp(1, -24)));
  EXPECT_DOUBLE_EQ(fp16.sum_of_absolutes, 201261055.875);
  EXPECT_DOUBLE_EQ(fp16.weighted_sum, -3297461139456.0);
  EXPECT_EQ(std::pair(bf16.nan, bf16.infinite), std::pair(254, 2));
  EXPECT_NEAR(bf16.weighted_sum / -2.1352963527593072e+45, 1, 1e-12);
}

TEST(Elements, differences_know_nan_and_infinity) {
  const float nan = NAN, inf = INFINITY;
  const std::vector<float> a = {1, -8, nan, inf, 0.0f, 5}, b = {1, -8.5, nan, inf, -0.0f, nan};
  Difference difference;
  difference.add(DType::fp32, reinterpret_cast<const std::byte*>(a.data()), DType::fp32, reinterpret_cast<const std::byte*>(b.data()), 5);
  EXPECT_EQ(std::tuple(difference.different, difference.max_abs, difference.max_reference), std::tuple(1, 0.5, 8.0));
  difference.add(DType::fp32, reinterpret_cast<const std::byte*>(a.data() + 5), DType::fp32,
                 reinterpret_cast<const std::byte*>(b.data() + 5), 1);
  EXPECT_EQ(difference.max_abs, INFINITY);
}

class Commands : public TemporaryFolder {
 protected:
  Commands() : TemporaryFolder(memory_folder()) {}
  std::ostringstream out_;
  json parsed() {
    json document = json::parse(out_.str());
    out_.str("");
    return document;
  }
  std::string text() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }
  fs::path save_floats(int64_t step, const std::vector<float>& values, const std::string& config = "a") {
    return save(folder / "checkpoints", step, {whole_item({"w", DType::fp32, {static_cast<int64_t>(values.size())}}, values.data())},
                {{"config", config}}, {.retention = {.keep = 0}})
        .path;
  }
};

TEST_F(Commands, inspect_shows_tensors_extras_and_totals_of_a_run_directory) {
  save(folder / "checkpoints", 10, Sample::usual(1).items(), {});
  const auto path = save(folder / "checkpoints", 20, Sample::usual(1).items(), {{"config", "seed = 1"}}).path;
  EXPECT_EQ(inspect({folder, "", true}, out_), 0);
  const json document = parsed();
  EXPECT_EQ(document["format"], "ingot");
  EXPECT_EQ(document["step"], 20);
  EXPECT_EQ(document["path"], path.string());
  EXPECT_EQ(document["tensors"].size(), 5u);
  EXPECT_EQ(document["tensors"][1]["name"], "layers.0.weight");
  EXPECT_EQ(document["tensors"][1]["shape"], json({96, 200}));
  EXPECT_EQ(document["totals"]["fp32"]["elements"], 19200);
  EXPECT_EQ(document["extras"][0], json({{"name", "config"}, {"bytes", 8}}));
  inspect({folder / "checkpoints"}, out_);
  EXPECT_THAT(text(), HasSubstr("layers.1.weight  bf16"));
  inspect({path, "config"}, out_);
  EXPECT_EQ(text(), "seed = 1");
  EXPECT_THROW(inspect({folder / "none"}, out_), base::CheckpointError);
  fs::create_directories(folder / "empty");
  EXPECT_THROW(inspect({folder / "empty"}, out_), base::CheckpointError);
}

TEST_F(Commands, inspect_and_diff_take_hugging_face_files) {
  const std::vector<float> values = {1, 2, 3}, near = {1, 2, 3.5};
  const auto bytes = std::as_bytes(std::span(values));
  write_safetensors_folder(folder / "hf", {{{"w", DType::fp32, {3}}, [&] { return bytes; }}});
  EXPECT_EQ(inspect({folder / "hf", "", true}, out_), 0);
  EXPECT_EQ(parsed()["format"], "safetensors");
  EXPECT_EQ(inspect({folder / "hf" / "model.safetensors"}, out_), 0);
  EXPECT_THAT(text(), HasSubstr("format = pt"));
  const auto equal = save_floats(1, values), other = save_floats(2, near);
  EXPECT_EQ(diff({folder / "hf", equal}, out_), 0);
  EXPECT_EQ(diff({folder / "hf", other}, out_), 3);
}

TEST_F(Commands, diff_names_what_differs_and_by_how_much) {
  const auto a = save_floats(1, {1, -4, 3}, "x"), b = save_floats(2, {1, -4, 3.25}, "y");
  EXPECT_EQ(diff({a, a}, out_), 0);
  EXPECT_THAT(text(), HasSubstr("1 tensors compared, 0 differ"));
  DiffOptions options{a, b};
  EXPECT_EQ(diff(options, out_), 3);
  EXPECT_THAT(text(), ::testing::AllOf(HasSubstr("0.25"), HasSubstr("1 of 3"), HasSubstr("extra state that differs: config")));
  options.json = true;
  EXPECT_EQ(diff(options, out_), 3);
  const json document = parsed();
  EXPECT_EQ(document["equal"], false);
  EXPECT_EQ(document["tensors"][0]["max_abs"], 0.25);
  EXPECT_EQ(document["tensors"][0]["max_rel"], 0.0625);
  options.atol = 0.3;
  EXPECT_EQ(diff(options, out_), 0);
  EXPECT_EQ(parsed()["tensors"][0]["bytes_equal"], false);
  options.atol = 0.2;
  EXPECT_EQ(diff(options, out_), 3);
}

TEST_F(Commands, diff_tells_bits_from_numbers_and_sees_missing_tensors) {
  const auto a = save_floats(1, {0.0f, 1}), b = save_floats(2, {-0.0f, 1});
  EXPECT_EQ(diff({a, b}, out_), 3) << "the bytes differ";
  EXPECT_EQ(diff({a, b, 1e-9}, out_), 0) << "the numbers do not";
  Sample one(1), two(1);
  one.add("same", DType::int32, {4}).add("gone", DType::int32, {4}).add("reshaped", DType::int32, {4}).add("retyped", DType::int32, {4});
  two.add("same", DType::int32, {4}).add("new", DType::int32, {4}).add("reshaped", DType::int32, {2, 2}).add("retyped", DType::fp32, {4});
  const auto c = save(folder / "c", 1, one.items(), {}).path, d = save(folder / "d", 1, two.items(), {}).path;
  text();
  EXPECT_EQ(diff({c, d, 0, 20, true}, out_), 3);
  const json document = parsed();
  EXPECT_EQ(document["only_in_a"], json({"gone"}));
  EXPECT_EQ(document["only_in_b"], json({"new"}));
  EXPECT_EQ(document["shapes_differ"][0]["name"], "reshaped");
  EXPECT_EQ(document["dtypes_differ"][0]["name"], "retyped");
}

TEST_F(Commands, verify_looks_at_every_checkpoint_and_returns_3_for_damage) {
  const auto sound = save_floats(1, {1, 2}), damaged = save_floats(2, {3, 4});
  EXPECT_EQ(verify(VerifyOptions{folder}, out_), 0);
  EXPECT_THAT(text(), HasSubstr("step_00000002: sound"));
  std::string data = content_of(damaged / "data_00000.bin");
  data[64] = static_cast<char>(data[64] ^ 1);
  put_content(damaged / "data_00000.bin", data);
  EXPECT_EQ(verify(VerifyOptions{folder, true}, out_), 3);
  const json document = parsed();
  EXPECT_EQ(document["sound"], false);
  EXPECT_EQ(document["checkpoints"][0]["sound"], true);
  EXPECT_EQ(document["checkpoints"][1]["damage"][0]["tensor"], "w");
  EXPECT_EQ(document["checkpoints"][1]["damage"][0]["file"], "data_00000.bin");
  EXPECT_EQ(verify(VerifyOptions{sound}, out_), 0);
  EXPECT_EQ(verify(VerifyOptions{damaged}, out_), 3);
  EXPECT_THAT(text(), HasSubstr("tensor 'w': bytes 64..72 do not match their checksum"));
  fs::remove(sound / "metadata.bin");
  EXPECT_EQ(verify(VerifyOptions{sound}, out_), 3);
  fs::create_directories(folder / "other");
  EXPECT_THROW(verify(VerifyOptions{folder / "other"}, out_), base::CheckpointError);
}

TEST_F(Commands, prune_removes_what_dry_run_announces) {
  for (int64_t step = 1; step <= 5; ++step) save_floats(step, {1});
  PruneOptions options{folder, {.keep = 2, .keep_every = 2}, true, true};
  EXPECT_EQ(prune(options, out_), 0);
  const json announced = parsed();
  EXPECT_EQ(all(folder / "checkpoints").size(), 5u);
  options.dry_run = false;
  EXPECT_EQ(prune(options, out_), 0);
  const json done = parsed();
  EXPECT_EQ(done["removed"], announced["removed"]);
  EXPECT_EQ(done["removed"].size(), 2u);
  EXPECT_EQ(done["kept"].size(), 3u);
  EXPECT_THROW(prune(PruneOptions{folder, {.keep = 0}}, out_), base::UsageError);
  fs::create_directories(folder / "other");
  EXPECT_THROW(prune(PruneOptions{folder / "other"}, out_), base::CheckpointError);
}

}  // namespace
}  // namespace ingot::checkpoint
