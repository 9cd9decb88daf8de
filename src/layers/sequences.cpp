#include "layers/sequences.h"

#include <cmath>
#include <numbers>

#include "device/device.h"
#include "kernels/fp32_islands.h"

namespace ingot::layers {

using kernels::Fp32Islands;

Sequences::Sequences(int64_t batch, int64_t seq, const at::Tensor& document_start, int64_t offset, at::Device device,
                     std::shared_ptr<const ContextSchedule> context, const at::Tensor& document_offsets)
    : batch_(batch), seq_(seq), offset_(offset), device_(device), context_(std::move(context)), document_offsets_(document_offsets) {
  if (context_) order_ = context_->order();
  row_tokens_ = offset + seq * order_.size;
  const auto options = at::TensorOptions().dtype(at::kInt).device(device);
  positions_ = order_.own_tokens(at::arange(offset, row_tokens_, options).unsqueeze(0));
  if (!document_start.defined()) return;
  if (document_start.is_cpu() && !context_) host_document_start_ = document_start;
  row_document_start_ = document_start.is_cpu() ? device::to_device(document_start, device) : document_start;
  document_start_ = order_.own_tokens(row_document_start_);
  is_start_ = document_start_.eq(positions_);
}

std::shared_ptr<Sequences> Sequences::side_by_side(const std::vector<Length>& lengths, at::Device device) {
  std::vector<int32_t> positions;
  std::vector<std::unique_ptr<Sequences>> parts;
  for (const auto& [tokens, offset] : lengths) {
    for (int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<int32_t>(offset + i));
    parts.push_back(std::make_unique<Sequences>(1, tokens, at::Tensor(), offset, device));
  }
  const auto all = std::make_shared<Sequences>(1, static_cast<int64_t>(positions.size()), at::Tensor(), 0, device);
  all->positions_ = device::to_device(at::tensor(positions, at::kInt).unsqueeze(0), device);
  all->parts_ = std::move(parts);
  return all;
}

const at::Tensor& Sequences::document_offsets() {
  if (document_offsets_.defined() || !host_document_start_.defined() || !device::is_gpu(device_)) return document_offsets_;
  return document_offsets_ = device::to_device(layers::document_offsets(host_document_start_), device_);
}

at::Tensor document_offsets(const at::Tensor& document_start) {
  const auto begins = document_start.eq(at::arange(document_start.size(1), at::kInt)).flatten().nonzero().flatten();
  return device::cat({begins, at::full({1}, document_start.numel(), begins.options())}).to(at::kInt);
}

Sequences& Sequences::haloed(int64_t halo) {
  auto& haloed = haloed_[halo];
  if (haloed) return *haloed;
  const int64_t chunks = order_.chunks(), length = seq_ / chunks;
  haloed = std::make_unique<Sequences>(batch_ * chunks, halo + length, at::Tensor(), 0, device_);
  haloed->row_tokens_ = row_tokens_;
  const auto widened = [&](const at::Tensor& own) {  // the value of a chunk's first token in front of it
    const auto by_chunk = own.expand({batch_, seq_}).unflatten(1, {chunks, length});
    return device::cat({by_chunk.narrow(2, 0, 1).expand({-1, -1, halo}), by_chunk}, 2).flatten(0, 1);
  };
  haloed->positions_ = widened(positions_);
  haloed->positions_.narrow(1, 0, halo) += at::arange(-halo, 0, positions_.options());
  // A token that comes before the first of a chunk begins a document just when that one's document begins there.
  haloed->document_start_ = document_start_.defined() ? widened(document_start_) : at::zeros_like(haloed->positions_);
  haloed->is_start_ = haloed->document_start_.eq(haloed->positions_);
  return *haloed;
}

at::Tensor Sequences::visible_from(int64_t window) {
  const auto found = visible_from_.find(window);
  if (found != visible_from_.end()) return found->second;
  at::Tensor from = document_start_;
  if (window > 0) {
    const auto options = at::TensorOptions().dtype(at::kInt).device(device_);
    const auto edge = (at::arange(seq_, options) + (offset_ + 1 - window)).clamp_min(0).expand({batch_, seq_});
    from = from.defined() ? at::maximum(from, edge) : edge.contiguous();
  }
  return visible_from_[window] = from;
}

at::Tensor Sequences::document_begin() const { return document_start_.defined() ? document_start_ : at::zeros_like(positions_); }

at::Tensor Sequences::document_end() const {
  const int64_t end = offset_ + seq_;
  if (!document_start_.defined()) return at::full_like(positions_, end);
  if (host_document_start_.defined()) {
    const auto starts = host_document_start_.contiguous();
    auto ends = at::empty_like(starts);
    for (int64_t row = 0; row < batch_; ++row) {
      const int32_t* from = starts.const_data_ptr<int32_t>() + row * seq_;
      int32_t* to = ends.data_ptr<int32_t>() + row * seq_;
      auto next = static_cast<int32_t>(end);
      for (int64_t s = seq_ - 1; s >= 0; --s) {
        to[s] = next;
        if (from[s] == s) next = static_cast<int32_t>(s);
      }
    }
    return device::to_device(ends, device_);
  }
  // Of the starts behind a token the nearest: seen from the end of the row the smallest so far.
  const auto starts = positions_.expand_as(is_start_).masked_fill(is_start_.logical_not(), static_cast<double>(end));
  const auto nearest = std::get<0>(starts.flip(1).cummin(1)).flip(1);
  return device::cat({nearest.narrow(1, 1, seq_ - 1), at::full_like(nearest.narrow(1, 0, 1), end)}, 1);
}

at::Tensor Sequences::visible_until(int64_t window) {
  if (!sees_both_ways_ && drafts_at_end_ == 0) return {};
  auto& until = visible_until_[window];
  if (until.defined()) return until;
  if (sees_both_ways_) until = document_end();
  else {
    until = positions_ + 1;
    until = device::cat({until.narrow(1, 0, seq_ - drafts_at_end_), at::full_like(until.narrow(1, 0, drafts_at_end_), offset_ + seq_)}, 1);
  }
  if (window > 0 && sees_both_ways_) until = until.minimum(positions_ + window);
  return until = until.expand({batch_, seq_}).contiguous();
}

std::shared_ptr<Sequences> Sequences::with_drafts(const std::shared_ptr<Sequences>& tokens, int64_t block) {
  auto both = std::make_shared<Sequences>(tokens->batch_, 2 * tokens->seq_, at::Tensor(), 0, tokens->device_);
  both->row_tokens_ = tokens->row_tokens_;
  both->positions_ = tokens->positions_.repeat({1, 2});
  if (tokens->document_start_.defined()) {
    both->document_start_ = tokens->document_start_.repeat({1, 2});
    both->is_start_ = tokens->is_start_.repeat({1, 2});
  }
  auto drafts = std::make_shared<Drafts>();
  drafts->tokens = tokens;
  drafts->block = block;
  const auto begin = tokens->document_begin(), within = tokens->positions_ - begin;
  const auto whole = [&](const at::Tensor& x) { return x.expand({tokens->batch_, tokens->seq_}).contiguous(); };
  drafts->block_begin = whole(begin + within.div(block, "floor") * block);
  drafts->block_end = whole((drafts->block_begin + block).minimum(tokens->document_end()));
  both->drafts_ = std::move(drafts);
  return both;
}

const Sequences::Drafts::Rows& Sequences::Drafts::rows_behind(int64_t halo) const {
  const auto found = rows_.find(halo);
  if (found != rows_.end()) return found->second;
  const int64_t seq = tokens->seq_;
  const auto starts = tokens->host_document_start_.defined() ? tokens->host_document_start_
                      : tokens->document_start_.defined()    ? tokens->document_start_.cpu()
                                                             : at::zeros({1, seq}, at::kInt);
  const auto start_of = starts.expand({tokens->batch_, seq}).contiguous();
  std::vector<int64_t> from, drafts;
  std::vector<uint8_t> is_start;
  for (int64_t row = 0; row < tokens->batch_; ++row) {
    const int32_t* begin = start_of.const_data_ptr<int32_t>() + row * seq;
    const int64_t first = row * 2 * seq;
    for (int64_t s = 0; s < seq; ++s) {
      for (int64_t back = (s - begin[s]) % block == 0 ? halo : 0; back > 0; --back) {
        const int64_t before = std::max<int64_t>(0, s - back);
        from.push_back(first + before);
        is_start.push_back(back == halo || begin[before] == before);
      }
      drafts.push_back(static_cast<int64_t>(from.size()));
      from.push_back(first + seq + s);
      is_start.push_back(begin[s] == s);
    }
  }
  const auto there = [&](const at::Tensor& x) { return device::to_device(x, tokens->device_); };
  const auto flags = at::from_blob(is_start.data(), {1, static_cast<int64_t>(is_start.size())}, at::kByte).to(at::kBool);
  return rows_[halo] = {there(at::tensor(from, at::kLong)), there(at::tensor(drafts, at::kLong)), there(flags)};
}

const kernels::RotaryTable& Sequences::rotary(const RotarySettings& settings, at::ScalarType dtype) {
  const auto found = rotary_.find(settings);
  if (found != rotary_.end()) return found->second;
  if (!parts_.empty() && !settings.short_factors.empty()) {  // chosen by the length of each
    std::vector<at::Tensor> cosines, sines;
    for (const auto& part : parts_) {
      const auto& own = part->rotary(settings, dtype);
      cosines.push_back(own.cosine), sines.push_back(own.sine);
    }
    return rotary_[settings] = {device::cat(cosines, 1), device::cat(sines, 1)};
  }
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device_);
  auto positions = positions_.to(options);
  if (document_start_.defined()) positions = positions - document_start_;
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  auto angles = positions.unsqueeze(-1) * inverse_frequencies(settings, device_, row_tokens_);  // [batch or 1, seq, rotated / 2]
  if (Fp32Islands::active() && settings.factor == 1 && settings.short_factors.empty()) {
    const auto exponents = at::arange(0, settings.rotated, 2, options.dtype(at::kFloat)) / static_cast<double>(settings.rotated);
    angles = positions.to(at::kFloat).unsqueeze(-1) * at::pow(settings.base, exponents).reciprocal();
  }
  if (Fp32Islands::active() && settings.amplitude == 1) {
    // Twice side by side, as transformers has them: the last bit of a vectorised cosine depends on where an element lies.
    const auto twice = device::cat({angles, angles}, -1);
    return rotary_[settings] = {twice.cos().narrow(-1, 0, settings.rotated / 2).to(wide),
                                twice.sin().narrow(-1, 0, settings.rotated / 2).to(wide)};
  }
  const auto amplified = [&](const at::Tensor& x) { return (settings.amplitude == 1 ? x : x * settings.amplitude).to(wide); };
  return rotary_[settings] = {amplified(angles.cos()), amplified(angles.sin())};
}

at::Tensor inverse_frequencies(const RotarySettings& s, at::Device device, int64_t tokens) {
  const auto exponents =
      at::arange(0, s.rotated, 2, at::TensorOptions().dtype(at::kDouble).device(device)) / static_cast<double>(s.rotated);
  const auto frequencies = at::pow(s.base, exponents).reciprocal();
  if (!s.short_factors.empty()) {
    const auto& factors = tokens > s.original_positions ? s.long_factors : s.short_factors;
    return frequencies / device::to_device(at::tensor(factors, at::kDouble), device);
  }
  if (s.factor == 1) return frequencies;
  if (s.linear) return frequencies / s.factor;
  if (s.beta_fast > 0) {
    const double channels = static_cast<double>(s.rotated);
    // The channel pair whose frequency turns so often within the original positions.
    const auto pair_of = [&](double turns) {
      return channels * std::log(static_cast<double>(s.original_positions) / (turns * 2 * std::numbers::pi)) / (2 * std::log(s.base));
    };
    double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
    if (s.truncates) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, channels - 1);
    if (high == low) high += 0.001;
    const auto stretched = ((at::arange(s.rotated / 2, frequencies.options()) - low) / (high - low)).clamp(0, 1);
    return frequencies / s.factor * stretched + frequencies * (1 - stretched);
  }
  // Llama 3: wavelengths longer than the original context are stretched, short ones kept, those between interpolated.
  const auto turns = frequencies * static_cast<double>(s.original_positions) / (2 * std::numbers::pi);
  const auto smooth = ((turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor)).clamp(0, 1);
  return (1 - smooth) * frequencies / s.factor + smooth * frequencies;
}

}  // namespace ingot::layers
