// Where the tokens of a batch stand: positions, document borders and what is already in the cache. Every layer that mixes
// tokens takes it. Tensors are made once per batch and shared by all layers.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "device/aten.h"
#include "kernels/rope.h"
#include "layers/context_schedule.h"

namespace ingot::layers {

/// Rotary frequencies of one kind of layer.
struct RotarySettings {
  double base = 10000;
  int64_t rotated = 0;  // channels of a head that turn; even
  // Llama 3's stretching of low frequencies; factor 1 = off.
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_positions = 8192;
  bool linear = false;  // "linear" scaling: all frequencies divided by factor
  // YaRN (arXiv 2309.00071), where beta_fast > 0: frequencies of beta_fast turns within the original positions and more are kept, those of
  // beta_slow and less divided by factor; cosines and sines are multiplied by amplitude.
  double beta_fast = 0, beta_slow = 1, amplitude = 1;
  bool truncates = true;  // the border channels are rounded outwards
  // LongRoPE (arXiv 2402.13753): what each channel pair's frequency is divided by, in rows of up to the original positions, and in longer
  // ones; [rotated / 2] both, or empty. With amplitude.
  std::vector<double> short_factors{}, long_factors{};
  auto operator<=>(const RotarySettings&) const = default;
};

class Sequences {
 public:
  /// `seq`: tokens of each row that this rank has. `document_start` int32 [batch, tokens of a row]: index within its row of the first
  /// token of each token's document, on the host or the device; undefined when every row is one document. `offset`: tokens of the row
  /// that came before this chunk (decoding; then neither documents nor a context). `document_offsets` are those of a document_start that is
  /// on a GPU, where they are known; there may be empty documents at the end.
  Sequences(int64_t batch, int64_t seq, const at::Tensor& document_start, int64_t offset, at::Device device,
            std::shared_ptr<const ContextSchedule> context = {}, const at::Tensor& document_offsets = {});

  struct Length {
    int64_t tokens = 0, offset = 0;  // in this pass, and before it
  };
  /// Tokens of sequences of any lengths, one behind another in one row: what a server continues in one pass. Inference only.
  static std::shared_ptr<Sequences> side_by_side(const std::vector<Length>& lengths, at::Device device);
  /// Each of those; none otherwise.
  const std::vector<std::unique_ptr<Sequences>>& parts() const { return parts_; }

  int64_t batch() const { return batch_; }
  int64_t seq() const { return seq_; }
  int64_t offset() const { return offset_; }
  int64_t tokens() const { return batch_ * seq_; }
  /// How rows whose tokens lie on several ranks are worked on; null where all of their tokens are here.
  const std::shared_ptr<const ContextSchedule>& context() const { return context_; }
  const TokenOrder& order() const { return order_; }
  /// Rows count as rows of so many tokens, where rotation asks for that (LongRoPE). Before the first layer.
  void count_rows_as(int64_t tokens) { row_tokens_ = tokens; }
  /// All tokens of a document see one another, as in an encoder. Before the first layer; not with a context or an offset.
  void see_both_ways() { sees_both_ways_ = true; }
  /// The last `count` tokens, drafts behind all others, see one another. Before the first layer; not with a context or documents.
  void let_drafts_see_each_other(int64_t count) { drafts_at_end_ = count; }
  bool sees_both_ways() const { return sees_both_ways_; }
  /// Behind the tokens of each row their drafts, as many again (Drafts); null otherwise.
  struct Drafts;
  const Drafts* drafts() const { return drafts_.get(); }
  /// Of rows with drafts, made of those without, which have neither a context nor an offset. Blocks of `block` tokens begin with documents.
  static std::shared_ptr<Sequences> with_drafts(const std::shared_ptr<Sequences>& tokens, int64_t block);

  /// Of whole rows, as given.
  const at::Tensor& document_start() const { return row_document_start_; }

  /// int32 [documents + 1] on a GPU: the first token of each document, rows one after another, and the end of all. Undefined where
  /// they were neither given nor documents on the host, or their tokens lie on several ranks.
  const at::Tensor& document_offsets();
  /// bool [batch, seq], true at the first token of each document; undefined without documents.
  const at::Tensor& is_start() const { return is_start_; }
  /// int32 [batch, seq]: first key that a query sees under causal attention within its document and a window of `window`
  /// tokens, itself included (0 = no window). Undefined when that is 0 everywhere.
  at::Tensor visible_from(int64_t window);  // without a context
  /// int32 [batch, seq]: the key behind the last that a query sees; undefined where that is the one behind itself.
  at::Tensor visible_until(int64_t window);
  /// int32 [1 or batch, seq]: where in its row a token's document begins, and where it ends.
  at::Tensor document_begin() const;
  at::Tensor document_end() const;
  /// Cosines and sines for the positions of these tokens (counted from the start of the document).
  const kernels::RotaryTable& rotary(const RotarySettings& settings, at::ScalarType dtype);
  /// Where the tokens of ContextSchedule::with_halo stand, as [batch * chunks, halo + chunk length]; every row of it is a sequence of its
  /// own, whose first `halo` tokens are looked at alone.
  Sequences& haloed(int64_t halo);

 private:
  int64_t batch_, seq_, offset_;
  at::Device device_;
  std::shared_ptr<const ContextSchedule> context_;
  TokenOrder order_;
  int64_t row_tokens_;  // of a whole row, with those that came before
  at::Tensor row_document_start_, host_document_start_, document_offsets_;
  at::Tensor positions_;                                  // int32 [1 or batch, seq]: in the row
  at::Tensor document_start_, is_start_;                  // of this rank's tokens
  std::map<int64_t, std::unique_ptr<Sequences>> haloed_;  // by halo
  bool sees_both_ways_ = false;
  int64_t drafts_at_end_ = 0;
  std::shared_ptr<const Drafts> drafts_;
  std::vector<std::unique_ptr<Sequences>> parts_;
  std::map<int64_t, at::Tensor> visible_from_, visible_until_;
  std::map<RotarySettings, kernels::RotaryTable> rotary_;
};

/// What a model drafts in one pass behind each prefix (TiDAR, arXiv 2511.08923): the tokens of a row are cut into blocks, and of each block
/// the drafts see the tokens before it and one another. [batch, tokens of a row] int32 each, as masks of attention have them.
struct Sequences::Drafts {
  std::shared_ptr<Sequences> tokens;   // of the rows without drafts
  int64_t block = 0;
  at::Tensor block_begin, block_end;  // of each token's block

  /// The drafts of all blocks of all rows one after another, those of each behind the `halo` tokens before it: what mixers need that look
  /// back one by one.
  struct Rows {
    at::Tensor from;      // int64 [count]: where each lies among the tokens and drafts of all rows
    at::Tensor drafts;    // int64 [batch * tokens of a row]: where the drafts lie among `from`
    at::Tensor is_start;  // bool [1, count]: the first token of a document, and the first of a halo
  };
  const Rows& rows_behind(int64_t halo) const;

 private:
  mutable std::map<int64_t, Rows> rows_;
};

/// int32 [documents + 1] on the host, as above, of a document_start on the host.
at::Tensor document_offsets(const at::Tensor& document_start);

/// Inverse frequencies [rotated / 2] of rows of `tokens` tokens, fp64, made there.
at::Tensor inverse_frequencies(const RotarySettings& settings, at::Device device = at::kCPU, int64_t tokens = 0);

}  // namespace ingot::layers
