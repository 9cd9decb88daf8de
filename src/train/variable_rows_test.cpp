#include "train/variable_rows.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "device/test_device.h"
#include "kernels/differentiable.h"
#include "models/family.h"
#include "train/step.h"
#include "train/test_layouts.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;

TEST(CutRows, gives_runs_of_whole_rows_within_the_most_tokens_and_as_many_as_are_asked_for) {
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const auto draw = [&](uint64_t index, int64_t bound) {
      return static_cast<int64_t>(base::uniform_at(trial, index) * static_cast<double>(bound));
    };
    const int64_t rows = 1 + draw(0, 20), longest = 1 + draw(1, 30), most = longest * (1 + draw(2, 3));
    std::vector<int64_t> begins{0};
    for (int64_t row = 0; row < rows; ++row) begins.push_back(begins.back() + 1 + draw(3 + static_cast<uint64_t>(row), longest));
    const auto fewest = static_cast<int64_t>(cut_rows(begins, most).size()) - 1;
    for (int64_t parts = fewest; parts <= rows; ++parts) {
      const auto cuts = cut_rows(begins, most, parts);
      ASSERT_EQ(static_cast<int64_t>(cuts.size()) - 1, parts) << "trial " << trial;
      EXPECT_EQ(cuts.front(), 0);
      EXPECT_EQ(cuts.back(), begins.back());
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        EXPECT_GT(cuts[i + 1], cuts[i]);
        EXPECT_LE(cuts[i + 1] - cuts[i], most);
        EXPECT_THAT(begins, ::testing::Contains(cuts[i]));
      }
    }
  }
}

// Documents of uneven lengths, one a row.
constexpr int64_t kLengths[] = {7, 1, 19, 2, 24, 5};

std::vector<data::Batch> documents_of(int64_t step) {
  std::vector<data::Batch> documents;
  for (const int64_t length : kLengths) {
    auto& document = documents.emplace_back(data::Batch{.batch = 1, .seq = length});
    for (int64_t i = 0; i < length; ++i) {
      const int64_t n = step * 1009 + static_cast<int64_t>(documents.size()) * 101 + i;
      document.inputs.push_back(static_cast<int32_t>(n * n * 7 % 47));
      document.targets.push_back(n % 11 == 4 || i + 1 == length ? -100 : static_cast<int32_t>((n * n * 7 + n) % 47));
    }
    document.document_starts.assign(static_cast<size_t>(length), 0);
  }
  return documents;
}

data::Batch rows_of(const std::vector<data::Batch>& documents) {
  data::Batch rows{.batch = static_cast<int64_t>(documents.size()), .seq = 24};
  rows.row_begins = {0};
  for (const auto& document : documents) {
    rows.inputs.insert(rows.inputs.end(), document.inputs.begin(), document.inputs.end());
    rows.targets.insert(rows.targets.end(), document.targets.begin(), document.targets.end());
    rows.document_starts.insert(rows.document_starts.end(), document.inputs.size(), static_cast<int32_t>(rows.row_begins.back()));
    rows.row_begins.push_back(static_cast<int64_t>(rows.inputs.size()));
  }
  return rows;
}

struct TrainedModel {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  TrainedModel(const models::ModelConfig& config, at::ScalarType dtype) : model(models::create_model(config)) {
    model->allocate(dtype, device::test_device());
    model->initialise(3);
    optimizer = std::make_unique<optim::Optimizer>(model->parameters(), optim::OptimizerConfig{.name = "adamw"});
  }
};

int64_t targets_of(const data::Batch& batch) {
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t id) { return id >= 0; });
}

struct Passed {
  double loss = 0, norm = 0, validation = 0;
  std::map<std::string, at::Tensor> moments;  // of one update, by gradients; those of balancing biases are made of loads
};

Passed passed(const TrainedModel& of, double loss, double norm, double validation) {
  Passed result{loss, norm, validation, {}};
  for (const auto& slice : of.optimizer->state())
    if (slice.name.find("first_moment") != std::string::npos && slice.name.find("balancing") == std::string::npos)
      result.moments[slice.name] = slice.flat.cpu();
  EXPECT_FALSE(result.moments.empty());
  return result;
}

// The oracle: each document alone, without a neighbour or padding, and one update.
Passed document_by_document(const models::ModelConfig& config, at::ScalarType dtype, const std::vector<data::Batch>& documents) {
  TrainedModel of(config, dtype);
  int64_t all = 0;
  for (const auto& document : documents) all += targets_of(document);
  const auto loss_of = [&](const data::Batch& document) {
    const auto there = [&](const std::vector<int32_t>& ids) {
      return device::to_device(at::tensor(ids, at::kInt).to(at::kLong).unsqueeze(0), of.model->device());
    };
    models::ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(1, document.seq, at::Tensor(), 0, of.model->device());
    context.sequences->count_rows_as(24);
    return of.model->loss(there(document.inputs), there(document.targets), 1.0 / static_cast<double>(all), context);
  };
  double sum = 0, validation = 0;
  for (const auto& document : documents) {
    const at::NoGradGuard no_grad;
    validation += loss_of(document).item<double>();
  }
  for (const auto& document : documents) {
    const auto loss = loss_of(document);
    kernels::backward({loss});
    of.model->parameters().collect_gradients();
    sum += loss.item<double>();
  }
  const auto norm = of.optimizer->gradient_norm();
  of.optimizer->step(1e-2, norm.norm);
  return passed(of, sum, norm.norm, validation);
}

Passed as_rows(const models::ModelConfig& config, at::ScalarType dtype, const std::vector<data::Batch>& documents, int64_t microbatch) {
  TrainedModel of(config, dtype);
  TrainingStep step(*of.model, *of.optimizer, models::Recompute::none, microbatch);
  int64_t targets = 0, tokens = 0;
  const double validation = step.evaluate(rows_of(documents), targets);
  EXPECT_EQ(targets,
            std::accumulate(documents.begin(), documents.end(), int64_t{0}, [](int64_t n, const auto& d) { return n + targets_of(d); }));
  for (const auto& document : documents) tokens += document.seq;
  const auto result = step.run(rows_of(documents), 1e-2);
  EXPECT_EQ(result.tokens, tokens);
  return passed(of, result.loss, result.grad_norm, validation);
}

void expect_documents_alone(const TestLayout& layout, at::ScalarType dtype, int64_t microbatch, double tolerance) {
  const auto config = model_of(layout);
  const auto documents = documents_of(0);
  const auto alone = document_by_document(config, dtype, documents), rows = as_rows(config, dtype, documents, microbatch);
  const auto name = name_of(layout);
  EXPECT_NEAR(rows.loss / alone.loss, 1, tolerance) << name;
  EXPECT_NEAR(rows.validation / alone.validation, 1, tolerance) << name;
  EXPECT_NEAR(rows.norm / alone.norm, 1, 100 * tolerance) << name;
  ASSERT_EQ(rows.moments.size(), alone.moments.size());
  for (const auto& [parameter, moment] : alone.moments) {
    const auto scale = moment.abs().max().item<double>() + 1e-9 * alone.norm;
    EXPECT_LT((rows.moments.at(parameter) - moment).abs().max().item<double>() / scale, 1e3 * tolerance) << name << " " << parameter;
  }
}

// Attention, windows, recurrent states, convolutions and CCA begin anew with each document, and so do rotary positions.
TEST(VariableRows, of_every_family_have_the_losses_and_gradients_of_documents_alone) {
  at::set_num_threads(1);  // for work as small as this more of them wait for one another
  for (const auto& family : models::family_names()) expect_documents_alone({.family = family, .seq = 24}, at::kDouble, 1, 1e-12);
  for (const auto& layout :
       {TestLayout{.seq = 24, .window = 5}, TestLayout{.seq = 24, .longrope = true}, TestLayout{.seq = 24, .encoder = true}})
    expect_documents_alone(layout, at::kDouble, 0, 1e-12);
}

TEST(VariableRows, in_fp32_differ_from_documents_alone_by_rounding) {
  at::set_num_threads(1);
  for (const char* family : {"llama", "linear_llama", "zaya1"}) expect_documents_alone({.family = family, .seq = 24}, at::kFloat, 1, 1e-6);
}

TEST(VariableRows, are_refused_where_a_layout_needs_rows_of_one_length) {
  const auto refused = [](const auto& change, const std::string& words) {
    RunConfig config;
    config.data.rows = "variable";
    change(config);
    try {
      check_variable_rows(config);
      ADD_FAILURE() << words << " was taken";
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
    config.data.rows = "fixed";
    EXPECT_NO_THROW(check_variable_rows(config));
  };
  refused([](RunConfig& c) { c.parallel.pipeline = 2; }, "parallel.pipeline");
  refused([](RunConfig& c) { c.parallel.context = 2; }, "parallel.context");
  refused([](RunConfig& c) { c.parallel.tensor_sequence = 2; }, "parallel.tensor_sequence");
  refused([](RunConfig& c) { c.parallel.tensor = 2; }, "parallel.sequence_parallel");
  refused([](RunConfig& c) { c.train.gpu_graphs = true; }, "train.gpu_graphs");
  refused([](RunConfig& c) { c.train.reproducible = true; }, "train.reproducible");
  refused([](RunConfig& c) { c.train.balance_loss = 0.1, c.train.balance_over = "sequence"; }, "train.balance_over");
}

}  // namespace
}  // namespace ingot::train
