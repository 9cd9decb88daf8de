#include "serve/score.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "device/device.h"

namespace ingot::serve {
namespace {

// Neighbouring documents [first, end) as one row.
struct Row {
  int64_t first = 0, end = 0;
  std::vector<int32_t> inputs, targets, starts;
};

Row row_from(const data::IndexedDataset& dataset, int64_t first, int64_t row_tokens) {
  Row row{.first = first, .end = first, .inputs = {}, .targets = {}, .starts = {}};
  while (row.end < dataset.documents()) {
    const auto length = static_cast<size_t>(dataset.document_tokens(row.end)), at = row.inputs.size();
    if (at > 0 && static_cast<int64_t>(at + length) > row_tokens) break;
    const int64_t begin = dataset.document_begin(row.end++);
    row.inputs.resize(at + length);
    row.targets.resize(at + length, data::kIgnoredTarget);
    row.starts.resize(at + length, static_cast<int32_t>(at));
    if (length == 0) continue;
    dataset.read(begin, std::span(row.inputs).subspan(at, length));
    dataset.read_targets(begin + 1, std::span(row.targets).subspan(at, length - 1));
  }
  return row;
}

at::Tensor losses_of(models::Model& model, Row& row) {
  const auto tokens = static_cast<int64_t>(row.inputs.size());
  const auto host = [&](std::vector<int32_t>& values) { return at::from_blob(values.data(), {1, tokens}, at::kInt); };
  const auto there = [&](std::vector<int32_t>& values) { return device::to_device(host(values).to(at::kLong), model.device()); };
  at::Tensor found;
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(1, tokens, host(row.starts), 0, model.device());
  context.weigh = [&](const at::Tensor& losses) {
    found = losses.to(at::kDouble).cpu();
    return layers::Objective{.value = losses.sum(), .weights = {}};
  };
  model.loss(there(row.inputs), there(row.targets), 1, context);
  return found.view({-1});
}

}  // namespace

std::vector<double> score_documents(models::Model& model, const data::IndexedDataset& dataset, const ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<double> scores;
  // Factors of longrope are chosen by the length of a row: documents that need none of the long ones do not get them from their neighbours.
  const auto& config = model.config();
  const int64_t row_tokens =
      config.rope_scaling == "longrope" ? std::min(options.row_tokens, config.rope_original_positions) : options.row_tokens;
  while (static_cast<int64_t>(scores.size()) < dataset.documents()) {
    auto row = row_from(dataset, static_cast<int64_t>(scores.size()), row_tokens);
    if (!row.inputs.empty() && *std::max_element(row.inputs.begin(), row.inputs.end()) >= model.config().vocab_size)
      throw base::DataError("{} has ids beyond the model's vocabulary of {}: it was made with another tokenizer", dataset.prefix().string(),
                            model.config().vocab_size);
    const auto losses = row.inputs.empty() ? at::Tensor() : losses_of(model, row);
    int64_t at = 0;
    for (int64_t document = row.first; document < row.end; ++document) {
      const int64_t length = dataset.document_tokens(document);
      scores.push_back(length > 0 ? -losses.narrow(0, at, length).sum().item<double>() : 0);
      at += length;
    }
    dataset.release_pages();
    if (options.progress) options.progress(static_cast<int64_t>(scores.size()));
  }
  return scores;
}

}  // namespace ingot::serve
