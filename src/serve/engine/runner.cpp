#include "serve/engine/runner.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/error.h"
#include "device/device.h"

namespace ingot::serve {

kernels::WeightFormat weight_format_named(const std::string& name) {
  return name == "int8" ? kernels::WeightFormat::int8 : name == "int4" ? kernels::WeightFormat::int4 : kernels::WeightFormat::fp32;
}

std::unique_ptr<models::decode::Decoder> make_decoder(models::Model& model, kernels::WeightFormat weights) {
  if (models::decode::Decoder::takes(model)) return std::make_unique<models::decode::Decoder>(model, weights, at::get_num_threads());
  if (kernels::has_scales(weights)) throw base::ConfigError("weights in 8 or 4 bits are for models in fp32 or bf16 on a CPU, on one rank");
  return nullptr;
}

Runner::Runner(models::Model& model, kernels::WeightFormat weights, int64_t few_tokens)
    : model_(model), decoder_(make_decoder(model, weights)), few_tokens_(few_tokens) {}

std::span<const float> Runner::run(std::span<const Piece> pieces) {
  models::ForwardContext context;
  std::vector<layers::Sequences::Length> lengths;
  std::vector<int64_t> ids, rows;
  for (const auto& piece : pieces) {
    const auto tokens = static_cast<int64_t>(piece.ids.size());
    lengths.push_back({.tokens = tokens, .offset = piece.text->fed});
    context.caches.push_back(&piece.text->caches);
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
    const auto end = static_cast<int64_t>(ids.size());
    for (int64_t row = end - piece.rows; row < end; ++row) rows.push_back(row);
  }
  const float* logits = nullptr;
  const bool has_masks = std::ranges::any_of(pieces, [](const Piece& piece) { return piece.masks > 0; });
  if (decoder_ && !has_masks && (static_cast<int64_t>(ids.size()) <= few_tokens_ || decoder_->takes_long_passes())) {
    logits = decoder_->run(lengths, ids, context.caches, rows);
  } else {
    context.sequences = layers::Sequences::side_by_side(lengths, model_.device());
    for (size_t i = 0; i < pieces.size(); ++i) context.sequences->parts()[i]->let_drafts_see_each_other(pieces[i].masks);
    const auto to_model = [&](const std::vector<int64_t>& values) {
      return device::to_device(at::tensor(values, at::kLong), model_.device());
    };
    const auto hidden = model_.forward(to_model(ids).unsqueeze(0), context);
    if (!rows.empty()) {
      logits_ = model_.logits(hidden.index_select(1, to_model(rows))).squeeze(0).to(at::kCPU, at::kFloat).contiguous();
      logits = logits_.const_data_ptr<float>();
    }
  }
  for (const auto& piece : pieces) {
    piece.text->fed += static_cast<int64_t>(piece.ids.size());
    piece.text->forget_behind(piece.text->fed - piece.masks);
  }
  return {logits, rows.size() * static_cast<size_t>(vocabulary())};
}

}  // namespace ingot::serve
