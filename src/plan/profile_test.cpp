#include "plan/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

MachineProfile sample() {
  auto p = round_machine(1e11, 2e10);
  p.kernels.push_back({"rms_norm", "fp32", 128, 256, 1, 1e-5, 2e-5, 262144, 393216});
  p.collectives.push_back({"all_gather", "fp32", "neighbours", 2, 1, 4096, 1e-5});
  p.storage.push_back({"random_read", "ext4", 4096, 16, true, 2.5e8, 6.1e4, 1e-4, 2e-3});
  p.storage.push_back({"unlink", "nfs4", 4096, 1, false, 0, 900, 1e-3, 1e-2});
  p.quick = true;
  p.foreign_load = 0.25;
  p.operation_s = 3e-6;
  return p;
}

std::string error_of(const std::string& text) {
  try {
    MachineProfile::from_json(text, "p.json");
  } catch (const base::ProfileError& error) {
    return error.what();
  }
  return "";
}

std::string changed(const std::function<void(Json&)>& change) {
  auto json = Json::parse(sample().to_json());
  change(json);
  return error_of(json.dump());
}

TEST(MachineProfileFile, comes_back_as_it_was_written) {
  const auto p = sample();
  const auto back = MachineProfile::from_json(p.to_json(), "p.json");
  EXPECT_EQ(back.to_json(), p.to_json());
  EXPECT_EQ(back.gemm[1].pass, "grad_input");
  EXPECT_DOUBLE_EQ(back.kernels[0].backward_s, 2e-5);
  EXPECT_DOUBLE_EQ(back.peak_gemm("bf16"), 1e11);
  EXPECT_EQ(back.peak_gemm("fp64"), 0);
}

TEST(MachineProfileFile, of_the_version_before_lacks_the_bytes_of_kernels) {
  auto p = sample();
  p.kernels[0].forward_bytes = 4096, p.kernels[0].backward_bytes = 8192, p.kernels[0].backward_flops = 5;
  auto json = Json::parse(p.to_json());
  EXPECT_DOUBLE_EQ(MachineProfile::from_json(json.dump(), "p.json").kernels[0].backward_bytes, 8192);
  EXPECT_DOUBLE_EQ(MachineProfile::from_json(json.dump(), "p.json").kernels[0].backward_flops, 5);
  EXPECT_FALSE(json["kernels"][0].contains("forward_flops"));
  json["version"] = 2;
  json["within_steps"] = {{{"dtype", "fp32"}, {"kind", "products"}, {"measured_s", 1}, {"predicted_s", 2}}};
  for (auto& kernel : json["kernels"]) kernel.erase("forward_bytes"), kernel.erase("backward_bytes");
  const auto old = MachineProfile::from_json(json.dump(), "p.json");
  EXPECT_EQ(old.kernels[0].forward_bytes, 0);
  EXPECT_EQ(old.within_steps[0].kind, "matmul") << "which was called products";
}

TEST(MachineProfileFile, many_gemms_and_windows_come_back_and_older_files_lack_them) {
  auto p = sample();
  const auto before = p.to_json();
  for (const char* word : {"imbalance", "window", "libraries"})
    EXPECT_EQ(before.find(word), std::string::npos) << "nothing new about what is plain";
  p.gemm.push_back({"fp32", "grouped", "grad_weight", 64, 32, 16, 1e10, 8, 2.5});
  p.gemm.push_back({"fp32", "batched", "forward", 64, 32, 16, 1e10, 4});
  p.attention.push_back({"bf16", 1, 64, 2, 1, 16, 1, 2, 32});
  p.memory.push_back({"host_to_device_pinned", 4096, 5e10});
  p.libraries.push_back({"bf16", "upcast", "grad_input", 64, 32, 16, 2e10, 1e10, 3e10});
  const auto back = MachineProfile::from_json(p.to_json(), "p.json");
  EXPECT_EQ(back.to_json(), p.to_json());
  EXPECT_DOUBLE_EQ(back.gemm[back.gemm.size() - 2].imbalance, 2.5);
  EXPECT_EQ(back.gemm.back().groups, 4);
  EXPECT_DOUBLE_EQ(back.libraries.back().high_flops_per_s, 3e10);
  EXPECT_EQ(back.attention.back().window, 32);
  EXPECT_EQ(back.attention.front().window, 0);
}

TEST(MachineProfileFile, what_is_wrong_is_named) {
  EXPECT_NE(error_of("{").find("p.json is not JSON"), std::string::npos);
  EXPECT_NE(error_of("[]").find("is not an object"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["format"] = "something"; }).find("not a machine profile"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["version"] = 1; }).find("reads versions 2 to 4"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j.erase("threads"); }).find("lacks 'threads'"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["thread"] = 2; }).find("did you mean 'threads'"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["gemm"][2]["m"] = -4; }).find("p.json.gemm[2].m must be a whole number"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["gemm"][0]["flops_per_s"] = 0; }).find("must be a positive number"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["gemm"][0]["k"] = 1e300; }).find("gemm[0].k"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["gemm"][0]["kind"] = "grouped"; }).find("gemm[0] lacks 'groups'"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["gemm"][0]["groups"] = 4; }).find("unknown member 'groups'"), std::string::npos) << "of a plain one";
  EXPECT_NE(changed([](Json& j) {
              j["gemm"][0].update({{"kind", "grouped"}, {"groups", 4}, {"imbalance", 5}});
            }).find("imbalance must be from 1"),
            std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["attention"][0]["window"] = -1; }).find("attention[0].window must be a whole number"),
            std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["memory"][0]["operation"] = "swap"; }).find("must be one of copy, scale, add, triad, dot"),
            std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["kernels"][0]["name"] = std::string(5000, 'x'); }).find("at most 4096 bytes"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["storage"][0]["writers"] = 0; }).find("storage[0].writers must be a whole number"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["storage"][1]["direct"] = 1; }).find("must be true or false"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["storage"][0]["operation"] = "trim"; }).find("must be one of sequential_write"), std::string::npos);
  EXPECT_NE(changed([](Json& j) { j["attention"] = Json::object(); }).find("must be a list"), std::string::npos);
}

TEST(MachineProfileFile, mutated_bytes_are_read_or_refused_but_never_crash) {
  const auto good = sample().to_json();
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto text = good;
    for (int change = 0; change < 3; ++change) text[random() % text.size()] = static_cast<char>(random());
    if (i % 3 == 0) text.resize(random() % text.size());
    refused += error_of(text).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

struct Cache : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("ingot_profile_test_" + std::to_string(::getpid()));
  ~Cache() override { fs::remove_all(folder); }
};

TEST_F(Cache, keeps_one_file_for_each_machine_and_number_of_threads) {
  auto machine = describe_machine(2, 1, "cpu");
  EXPECT_FALSE(cached_profile(machine, folder));
  machine.memory.push_back({"copy", 1024, 1e9});
  write_profile(profile_path(folder, machine), machine);
  const auto found = cached_profile(describe_machine(2, 1, "cpu"), folder);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->memory.size(), 1u);
  EXPECT_FALSE(cached_profile(describe_machine(3, 1, "cpu"), folder));
  EXPECT_FALSE(cached_profile(describe_machine(2, 1, "cuda:0"), folder));
  EXPECT_FALSE(cached_profile(describe_machine(2, 2, "cpu"), folder));
}

TEST_F(Cache, of_another_build_or_broken_is_not_used) {
  auto machine = describe_machine(2, 1, "cpu");
  auto older = machine;
  older.program = "another build";
  write_profile(profile_path(folder, machine), older);
  EXPECT_FALSE(cached_profile(machine, folder));
  base::write_file_atomically(profile_path(folder, machine), "{\"format\": 3");
  EXPECT_FALSE(cached_profile(machine, folder));
}

TEST_F(Cache, host_names_cannot_leave_the_folder) {
  auto machine = describe_machine(2, 1, "cpu");
  machine.host = "../../etc/passwd";
  EXPECT_EQ(profile_path(folder, machine).parent_path(), folder);
}

}  // namespace
}  // namespace ingot::plan
