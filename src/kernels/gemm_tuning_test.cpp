#include "kernels/gemm_tuning.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "device/test_device.h"
#include "kernels/gemm_backend.h"
#include "kernels/matmul.h"

namespace ingot::kernels {
namespace {

namespace fs = std::filesystem;
using gpu::GemmAlgorithm;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GemmAlgorithm algorithm(uint64_t number) { return {{number}, 1024 * number}; }

// Multiplies rightly whatever the algorithm, and takes the seconds that the test says.
struct Script {
  std::vector<double> seconds = {3, 1, 2};  // of algorithms 0, 1, 2; below 0: it fails
  std::string name = "a library";
  std::vector<uint64_t> ran;
  double clock = 0;
};

class ScriptedLibrary : public GemmLibrary {
 public:
  explicit ScriptedLibrary(Script& script) : script_(script) {}
  std::string name() const override { return script_.name; }
  std::vector<GemmAlgorithm> algorithms(const GemmCall& /*call*/) override {
    std::vector<GemmAlgorithm> all;
    for (size_t i = 0; i < script_.seconds.size(); ++i) all.push_back(algorithm(i));
    return all;
  }
  void run(const GemmCall& call, const GemmAlgorithm& taken) override {
    const double seconds = script_.seconds.at(taken.words[0]);
    if (seconds < 0) throw base::Error("not able to");
    script_.ran.push_back(taken.words[0]);
    script_.clock += seconds;
    const auto product = at::mm(call.a, call.b);
    call.adds ? call.out.add_(product) : call.out.copy_(product);
    if (call.bias.defined()) call.out.add_(call.bias);
  }
  bool is_able(const GemmCall& /*call*/, const GemmAlgorithm& taken) override { return taken.words[0] < script_.seconds.size(); }

 private:
  Script& script_;
};

struct Tuning : ::testing::Test {
  Tuning() { fs::create_directories(folder); }
  ~Tuning() override {
    fs::remove_all(folder);
    use_gemm_backend(GemmBackend::standard);
    if (is_on_device) keep_gemm_choices(device(), {}, {}, false);
  }
  // The one that tests run on, if GEMMs have algorithms there.
  at::Device device() {
    is_on_device = true;
    return device::is_gpu(device::test_device()) ? device::test_device() : device::emulated_device(0);
  }
  GemmTuner tuner(const fs::path& own = {}, const fs::path& shared = {}, bool writes_shared = true) {
    return {std::make_unique<ScriptedLibrary>(script), own, shared, writes_shared, [this](const std::function<void()>& work) {
              const double before = script.clock;
              work();
              return script.clock - before;
            }};
  }
  // A GEMM by `tuner`; which algorithm it took in the end.
  uint64_t run(GemmTuner& tuner, int64_t m = 4, bool adds = false) {
    const auto out = at::ones({m, 6});
    EXPECT_TRUE(tuner.run({out, a.narrow(0, 0, m), b, {}, adds}));
    EXPECT_TRUE(at::allclose(out, at::mm(a.narrow(0, 0, m), b) + (adds ? 1 : 0)));
    return script.ran.back();
  }

  // Tests are processes that run side by side.
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("gemm_tuning_{}", getpid());
  const fs::path own = folder / "run" / "rank.json", shared = folder / "cache" / "shared.json";
  const at::Tensor a = at::randn({9, 5}), b = at::randn({5, 6});
  Script script;
  bool is_on_device = false;
};

TEST_F(Tuning, takes_the_fastest_and_measures_each_shape_once) {
  auto tuned = tuner();
  EXPECT_EQ(run(tuned), 1);
  const auto measured = script.ran.size();
  EXPECT_EQ(run(tuned), 1);
  EXPECT_EQ(script.ran.size(), measured + 1);
  EXPECT_EQ(run(tuned, 5), 1);
  EXPECT_GT(script.ran.size(), measured + 2) << "other rows are another shape";
  EXPECT_EQ(run(tuned, 4, /*adds=*/true), 1) << "and adding is; what was there is added to once";
  EXPECT_EQ(tuned.table().size(), 3);
}

TEST_F(Tuning, keeps_the_librarys_first_choice_unless_another_is_clearly_faster) {
  script.seconds = {1, 0.99, 1.5};
  auto close = tuner();
  EXPECT_EQ(run(close), 0);
  script.seconds = {1, 0.97, 0.96};
  auto clear = tuner();
  EXPECT_EQ(run(clear), 2);
}

TEST_F(Tuning, leaves_out_what_the_library_cannot_do_after_all) {
  script.seconds = {-1, 2, -1, 1};
  auto tuned = tuner();
  EXPECT_EQ(run(tuned), 3);
  script.seconds = {-1, -1};
  auto none = tuner();
  EXPECT_FALSE(none.run({at::empty({9, 6}), a, b, {}, false}));
  script.seconds = {1, 1};
  EXPECT_FALSE(none.run({at::empty({9, 6}), a, b, {}, false})) << "it is not asked again";
}

TEST_F(Tuning, leaves_alone_what_no_library_takes) {
  auto tuned = tuner();
  const auto wide = at::empty({9, 12});
  EXPECT_FALSE(tuned.run({wide.slice(1, 0, 12, 2), a, b, {}, false})) << "columns apart";
  EXPECT_FALSE(tuned.run({at::empty({6, 9}).t(), a, b, {}, false})) << "by column";
  EXPECT_FALSE(tuned.run({at::empty({9, 6}), at::randn({5, 18}).slice(1, 0, 18, 2).t(), b, {}, false}));
  EXPECT_FALSE(tuned.run({at::empty({9, 6}, at::kDouble), a.to(at::kDouble), b.to(at::kDouble), {}, false}));
  EXPECT_FALSE(tuned.run({at::empty({9, 6}, at::kBFloat16), a, b, {}, false})) << "narrower than what is multiplied";
  EXPECT_FALSE(tuned.run({at::empty({0, 6}), a.narrow(0, 0, 0), b, {}, false}));
  EXPECT_FALSE(tuned.run({at::empty({9, 6}), at::randn({9 * 5 + 1}).narrow(0, 1, 45).view({9, 5}), b, {}, false})) << "at an odd address";
  EXPECT_TRUE(script.ran.empty());
}

TEST_F(Tuning, a_run_that_goes_on_takes_what_it_took) {
  {
    auto first = tuner(own, shared);
    EXPECT_EQ(run(first), 1);
  }
  script.seconds = {1, 2, 3};  // by now another would be faster
  script.ran.clear();
  auto again = tuner(own, shared);
  EXPECT_EQ(run(again), 1);
  EXPECT_EQ(script.ran.size(), 1) << "nothing was measured";
  auto other = tuner(folder / "other.json", shared);
  EXPECT_EQ(run(other), 1) << "another run has it from the machine";
  EXPECT_EQ(script.ran.size(), 2);
  EXPECT_EQ(GemmTable::from_json(base::read_file(folder / "other.json"), "f").size(), 1) << "and keeps it for itself";
  fs::remove(shared);
  auto alone = tuner(folder / "other.json", shared);
  EXPECT_EQ(run(alone), 1);
}

TEST_F(Tuning, what_a_run_has_goes_before_what_the_machine_has) {
  {
    auto one = tuner(own, {});
    run(one);
  }
  script.seconds = {1, 2, 3};
  {
    auto two = tuner({}, shared);
    EXPECT_EQ(run(two), 0);
  }
  auto both = tuner(own, shared);
  EXPECT_EQ(run(both), 1);
}

TEST_F(Tuning, measures_anew_what_the_library_does_not_take_any_more) {
  {
    auto first = tuner(own);
    script.seconds = {4, 3, 2, 1};
    EXPECT_EQ(run(first), 3);
  }
  script.seconds = {2, 1};
  ::testing::internal::CaptureStderr();
  auto again = tuner(own);
  EXPECT_EQ(run(again), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("[4, 5] x [5, 6] that a library does not take"));
  EXPECT_EQ(run(again), 1);
}

TEST_F(Tuning, two_that_measure_keep_what_both_found) {
  auto one = tuner({}, shared), two = tuner({}, shared);
  run(one, 4);
  run(two, 5);
  run(one, 6);
  EXPECT_EQ(GemmTable::from_json(base::read_file(shared), "f").size(), 3);
}

TEST_F(Tuning, what_was_not_measured_is_the_runs_alone) {
  script.seconds = {1};
  auto tuned = tuner(own, shared);
  EXPECT_EQ(run(tuned), 0);
  EXPECT_TRUE(fs::exists(own));
  EXPECT_FALSE(fs::exists(shared));
}

TEST_F(Tuning, numbers_of_rows_without_end_end) {
  GemmTable many("a library");
  for (size_t i = 0; i < kMostTunedShapes; ++i) many.keep({static_cast<int64_t>(i) + 100, 6, 5}, {algorithm(0), 1, 1});
  fs::create_directories(own.parent_path());
  std::ofstream(own) << many.to_json();
  auto tuned = tuner(own);
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(tuned.run({at::empty({9, 6}), a, b, {}, false}));
  EXPECT_FALSE(tuned.run({at::empty({4, 6}), a.narrow(0, 0, 4), b, {}, false}));
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("more than 4096 shapes"), said.rfind("more than 4096 shapes")) << "once";
  EXPECT_THAT(said, HasSubstr("more than 4096 shapes"));
  EXPECT_TRUE(script.ran.empty());
}

TEST_F(Tuning, one_of_many_ranks_writes_what_is_shared) {
  auto silent = tuner(own, shared, /*writes_shared=*/false);
  run(silent);
  EXPECT_TRUE(fs::exists(own));
  EXPECT_FALSE(fs::exists(shared));
}

TEST_F(Tuning, a_table_of_another_library_is_not_taken) {
  {
    auto first = tuner(own);
    run(first);
  }
  script.name = "its successor";
  script.seconds = {1, 2, 3};
  ::testing::internal::CaptureStderr();
  auto again = tuner(own);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("is of a library, and here is its successor"));
  EXPECT_EQ(run(again), 0);
}

TEST_F(Tuning, goes_on_when_a_file_cannot_be_read_or_written) {
  fs::create_directories(own.parent_path());
  std::ofstream(own) << "{\"library\": \"a library\", \"gemms\": [{}]}";
  ::testing::internal::CaptureStderr();
  auto damaged = tuner(own, folder / "folder");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("lacks 'm'"));
  EXPECT_EQ(run(damaged), 1);
  std::ofstream(folder / "file") << "x";
  ::testing::internal::CaptureStderr();
  auto unwritable = tuner(folder / "file" / "below.json");
  EXPECT_EQ(run(unwritable), 1);
  EXPECT_EQ(run(unwritable, 5), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("algorithms of GEMMs are not kept"));
}

TEST_F(Tuning, a_table_is_the_same_after_a_file) {
  GemmTable table("cuBLASLt 130000 on a GPU");
  const GemmShape shape{4096, 11008, 4096, true, false, 4096, 11008, 11008, at::kBFloat16, at::kFloat, true, false};
  const GemmChoice choice{{{1, ~uint64_t{0}, 3, 4, 5, 6, 7, uint64_t{1} << 63}, 32 << 20}, 1.25e-4, 1.5e-4};
  table.keep(shape, choice);
  auto other = shape;
  other.a_by_column = false;
  table.keep(other, {});
  const auto read = GemmTable::from_json(table.to_json(), "f");
  EXPECT_EQ(read.library(), table.library());
  EXPECT_EQ(read.size(), 2);
  ASSERT_TRUE(read.find(shape));
  EXPECT_EQ(*read.find(shape), choice);
  EXPECT_EQ(read.to_json(), table.to_json());
}

TEST_F(Tuning, hostile_tables_are_refused_by_name) {
  GemmTable table("l");
  table.keep({1, 1, 1, false, false, 1, 1, 1}, {algorithm(1)});
  const auto good = nlohmann::json::parse(table.to_json());
  const auto message = [](const nlohmann::json& json) -> std::string {
    try {
      GemmTable::from_json(json.dump(), "table.json");
    } catch (const base::ProfileError& error) {
      return error.what();
    }
    return "";
  };
  const auto with = [&](const char* member, const nlohmann::json& value) {
    auto json = good;
    json["gemms"][0][member] = value;
    return message(json);
  };
  EXPECT_EQ(message(good), "");
  EXPECT_THAT(with("m", 0), HasSubstr("table.json.gemms[0].m must be"));
  EXPECT_THAT(with("a", "diagonal"), HasSubstr("rows, columns"));
  EXPECT_THAT(with("strides", {1, 2}), HasSubstr("3 to 3"));
  EXPECT_THAT(with("strides", {1, 2, -1}), HasSubstr("strides"));
  EXPECT_THAT(with("algorithm", {1}), HasSubstr("8 to 8"));
  EXPECT_THAT(with("workspace_bytes", 1e12), HasSubstr("workspace_bytes"));
  EXPECT_THAT(with("workspace_bytes", int64_t{1} << 40), HasSubstr("workspace_bytes")) << "more than there will be";
  EXPECT_THAT(with("adds", 1), HasSubstr("true or false"));
  EXPECT_THAT(with("more", 1), HasSubstr("unknown member 'more'"));
  EXPECT_THAT(message({{"library", "l"}}), HasSubstr("lacks 'gemms'"));
  EXPECT_THROW(GemmTable::from_json("{", "f"), base::ProfileError);
}

TEST_F(Tuning, damaged_tables_are_read_or_refused) {
  GemmTable table("a library");
  for (int64_t m = 1; m <= 3; ++m) table.keep({m, 6, 5, false, true, 5, 5, 6}, {algorithm(7), 1e-3, 2e-3});
  const auto good = table.to_json();
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    auto text = good;
    for (int bytes = 1 + i % 3; bytes > 0; --bytes) text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 7 == 0) text.resize(random() % text.size());
    try {
      GemmTable::from_json(text, "f");
    } catch (const base::ProfileError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

// As Libraries.all_multiply_and_add_up_to_rounding, where GEMMs have algorithms.
TEST_F(Tuning, gemms_go_through_it_on_the_device) {
  const auto where = device();
  if (!gemm_library_of(where)) GTEST_SKIP() << "this build has no algorithms to choose from";
  use_gemm_backend(gemm_backend_named("tuned", at::kBFloat16, where));
  keep_gemm_choices(where, own, {}, false);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool transposed : {false, true}) {
      const auto host_a = (transposed ? at::randn({64, 24}).t() : at::randn({24, 64})).to(dtype),
                 host_b = (transposed ? at::randn({64, 48}) : at::randn({48, 64}).t()).to(dtype);
      const auto exact = at::mm(host_a.to(at::kDouble), host_b.to(at::kDouble));
      const auto x = host_a.to(where), y = host_b.to(where);
      const auto close = [&](const at::Tensor& result, double times) {
        const double most = result.scalar_type() == at::kFloat ? 1e-4 : 0.3;
        EXPECT_LT((result.cpu().to(at::kDouble) - times * exact).abs().max().item<double>(), most) << dtype << transposed;
      };
      close(matmul(x, y, dtype), 1);
      close(matmul(x, y, at::kFloat), 1);
      const auto wide = at::zeros({24, 100}, at::TensorOptions().device(where));
      matmul_into(wide.narrow(1, 8, 48), x, y, true);
      close(wide.narrow(1, 8, 48), 1);
      matmul_into(wide.narrow(1, 8, 48), x, y, false);
      close(wide.narrow(1, 8, 48), 2);
      EXPECT_EQ(wide.narrow(1, 56, 44).abs().max().item<float>(), 0) << "beside the view";
      const auto bias = at::arange(48, at::kFloat).to(dtype).to(where), beside = at::zeros({24, 100}, x.options());
      matmul_with_bias_into(beside.narrow(1, 8, 48), x, y, bias);
      close(beside.narrow(1, 8, 48) - bias, 1);
      EXPECT_EQ(beside.narrow(1, 56, 44).abs().max().item<float>(), 0) << "beside the view";
    }
  const auto measured = base::read_file(own);
  EXPECT_GE(GemmTable::from_json(measured, "f").size(), 18);
  EXPECT_THAT(measured, HasSubstr("\"bias\": true"));
  const UntunedGemms scope;
  const auto narrow = at::ones({16, 64}, at::TensorOptions().device(where));
  EXPECT_EQ(matmul(narrow, narrow.t(), at::kFloat).cpu().min().item<float>(), 64);
  EXPECT_EQ(base::read_file(own), measured) << "not while an UntunedGemms lives";
}

TEST_F(Tuning, the_choice_in_a_file_is_the_one_that_runs) {
  const auto where = device::emulated_device(0);
  const auto x = at::randn({32, 4096}).to(where), y = at::randn({4096, 64}).to(where);
  const auto by = [&](uint64_t parts) {
    GemmTable table(gemm_library_of(where)->name());
    table.keep({32, 64, 4096, false, false, 4096, 64, 64, at::kFloat, at::kFloat, false, false}, {{{parts}, 0}});
    fs::create_directories(own.parent_path());
    std::ofstream(own) << table.to_json();
    use_gemm_backend(GemmBackend::tuned);
    keep_gemm_choices(where, own, {}, false);
    return matmul(x, y, at::kFloat).cpu();
  };
  const auto whole = by(1);
  EXPECT_FALSE(at::equal(whole, by(3)));
  EXPECT_TRUE(at::equal(whole, by(1)));
  EXPECT_TRUE(at::allclose(whole, by(3), 1e-3, 1e-3));
}

}  // namespace
}  // namespace ingot::kernels
