// Tasks on the ranks that train a model: what all of them say together is what one rank says alone, in fp64, and training goes on as if
// nobody had asked.
#include "eval/run_evaluations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <mutex>

#include "base/error.h"
#include "comm/world.h"
#include "eval/test_bytes.h"

namespace ingot::eval {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  mesh::ParallelConfig parallel;
  int ranks = 2;
  std::string family = "llama";
  bool writes = false;  // a task whose answers are written, too
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }  // NOLINT(readability-identifier-naming): gtest's name

models::ModelConfig model_of(const Case& c) {
  auto sizes = models::small_sizes();
  sizes.hidden = 24, sizes.vocab_size = 306, sizes.heads = 12, sizes.kv_heads = 12, sizes.head_dim = 4, sizes.ffn = 48;
  auto config = models::small_model(c.family, sizes);
  config.vocab_size = 306, config.max_positions = 64;
  return config;
}

train::TrainingSetup setup_of(const Case& c) {
  train::TrainingSetup setup{.model = model_of(c), .parallel = c.parallel, .precision = "fp64"};
  setup.optimizer.name = "adamw";
  setup.parallel.bucket_mib = 0.01;
  return setup;
}

data::Batch batch_of(int64_t step, int64_t first_row, int64_t rows) {
  data::Batch b{.batch = rows, .seq = 24};
  for (int64_t n = (step * 12 + first_row) * b.seq; n < (step * 12 + first_row + rows) * b.seq; ++n) {
    b.inputs.push_back(static_cast<int32_t>(n * n * 7 % 290));
    b.targets.push_back(static_cast<int32_t>((n * n * 7 + n) % 290));
    b.document_starts.push_back(0);
  }
  return b;
}

// Questions of many lengths, so that ranks have passes of other sizes and in other numbers; texts of several windows.
class TaskFiles {
 public:
  TaskFiles() : folder_(fs::temp_directory_path() / ("ingot_run_evaluations_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    std::ofstream questions(file("questions.jsonl")), texts(file("texts.jsonl"));
    for (int i = 0; i < 7; ++i)
      questions << R"({"q": ")" << std::string(static_cast<size_t>(1 + 5 * i % 23), static_cast<char>('a' + i))
                << R"(", "c": ["yes", "no", "perhaps"], "g": )" << i % 3 << "}\n";
    for (int i = 0; i < 3; ++i)
      texts << R"({"t": ")" << std::string(static_cast<size_t>(40 + 50 * i), static_cast<char>('k' + i)) << "\"}\n";
    write("choice.toml", "kind = \"multiple_choice\"\ndata = \"questions.jsonl\"\nprompt = \"q\"\nchoices = [\"c\"]\nanswer = \"g\"\n");
    write("likely.toml", "kind = \"loglikelihood\"\ndata = \"texts.jsonl\"\nprompt = \"{{ t[:20] }}\"\ntarget = \"{{ t[20:30] }}\"\n");
    write("texts.toml", "kind = \"perplexity\"\ndata = \"texts.jsonl\"\ntarget = \"t\"\nlengths = [16]\n");
    write("written.toml", "kind = \"generate\"\ndata = \"questions.jsonl\"\nprompt = \"q\"\ntarget = \"q\"\nmost_tokens = 5\n");
  }
  ~TaskFiles() { fs::remove_all(folder_); }
  fs::path file(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(file(name)) << text; }

 private:
  fs::path folder_;
};

struct Outcome {
  std::vector<double> losses, norms;  // of two steps
  std::vector<TaskResult> results;    // between them
};

Outcome outcome_of(const Case& c, const TaskFiles& files, bool evaluates) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    mesh::Groups groups(world, c.parallel);
    train::ParallelModel model(setup_of(c), groups);
    const int64_t share = 12 / groups.mesh().size(mesh::Axis::data), first = share * groups.mesh().position(mesh::Axis::data);
    for (int64_t step = 0; step < 2; ++step) {
      const auto result = model.step().run(batch_of(step, first, share), 1e-2);
      std::vector<TaskResult> results;
      if (step == 0 && evaluates) {
        const Bytes tokenizer;
        const auto ranks = ranks_of(model, groups);
        Options options{.pass_tokens = 40, .ranks = &ranks};
        std::vector<std::unique_ptr<Prepared>> tasks;
        for (const auto* name : {"choice.toml", "likely.toml", "texts.toml", "written.toml"})
          if (c.writes || name != std::string("written.toml")) tasks.push_back(prepare(read_task(files.file(name)), options));
        results = evaluate(tasks, model.model(), tokenizer, options);
      }
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) {
        outcome.losses.push_back(result.loss);
        outcome.norms.push_back(result.grad_norm);
      }
      if (results.empty()) continue;
      if (outcome.results.empty()) outcome.results = results;
      for (size_t i = 0; i < results.size(); ++i)
        EXPECT_EQ(json_of(results[i])["metrics"], json_of(outcome.results[i])["metrics"]) << "rank " << world.rank();
    }
  });
  return outcome;
}

void expect_near(const nlohmann::ordered_json& got, const nlohmann::ordered_json& expected, const std::string& where) {
  ASSERT_EQ(got.type(), expected.type()) << where;
  if (got.is_number_float() && got != expected) {  // inf is near itself
    EXPECT_NEAR(got.get<double>(), expected.get<double>(), 1e-6 * (1 + std::abs(expected.get<double>()))) << where;
  } else if (got.is_structured()) {
    ASSERT_EQ(got.size(), expected.size()) << where;
    for (const auto& [key, value] : got.items())
      expect_near(value, got.is_array() ? expected[std::stoul(key)] : expected.at(key), where + "/" + key);
  } else {
    EXPECT_EQ(got, expected) << where;
  }
}

class RunEvaluationsOver : public ::testing::TestWithParam<Case> {};

TEST_P(RunEvaluationsOver, ranks_say_what_one_says_and_training_is_the_same) {
  const TaskFiles files;
  const auto got = outcome_of(GetParam(), files, true), silent = outcome_of(GetParam(), files, false);
  EXPECT_EQ(got.losses, silent.losses);
  EXPECT_EQ(got.norms, silent.norms);
  auto alone = GetParam();
  alone.parallel = {}, alone.ranks = 1;
  const auto expected = outcome_of(alone, files, true);
  ASSERT_EQ(got.results.size(), expected.results.size());
  for (size_t i = 0; i < got.results.size(); ++i) {
    auto ours = json_of(got.results[i]), theirs = json_of(expected.results[i]);
    ours.erase("seconds"), theirs.erase("seconds");
    expect_near(ours, theirs, got.results[i].name);
    ASSERT_EQ(got.results[i].each.size(), expected.results[i].each.size());
    for (size_t item = 0; item < got.results[i].each.size(); ++item)
      expect_near(got.results[i].each[item].details, expected.results[i].each[item].details, got.results[i].each[item].where);
  }
}

using P = mesh::ParallelConfig;

P with_whole_norms(P parallel) {
  parallel.sequence_parallel = false;
  return parallel;
}

INSTANTIATE_TEST_SUITE_P(Layouts, RunEvaluationsOver,
                         ::testing::Values(Case{"one", P{}, 1, "llama", true}, Case{"data2_zero0", P{.zero = 0}, 2, "llama", true},
                                           Case{"data3_zero1", P{.zero = 1}, 3, "llama", true},
                                           Case{"data2_zero2_zaya1", P{.zero = 2}, 2, "zaya1", true}, Case{"data3_zero3", P{.zero = 3}, 3},
                                           Case{"data2_zero3_zaya1", P{.zero = 3}, 2, "zaya1"}, Case{"tensor2", P{.tensor = 2}},
                                           Case{"tensor2_whole_norms", with_whole_norms(P{.tensor = 2})},
                                           Case{"data2_tensor2_zero3", P{.tensor = 2, .zero = 3}, 4},
                                           Case{"tensor2_zaya1", P{.tensor = 2}, 2, "zaya1"},
                                           Case{"expert2_zaya1", P{.expert = 2}, 2, "zaya1"},
                                           Case{"expert2_tensor2_zaya1", P{.tensor = 2, .expert = 2}, 4, "zaya1"},
                                           Case{"expert_tensor2_zaya1", P{.expert_tensor = 2}, 2, "zaya1"},
                                           Case{"tensor3_linear", P{.tensor = 3}, 3, "linear_llama"},
                                           Case{"data2_linear_zero3", P{.zero = 3}, 2, "linear_llama"},
                                           Case{"data3_zero3_deepseek", P{.zero = 3}, 3, "deepseek_v3"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ingot::eval
