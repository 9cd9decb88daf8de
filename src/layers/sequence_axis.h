// Sequence parallelism: the ranks of a group hold slices of the same sequences, all of the weights, and meet where tokens mix.
// A sequence of `size` ranks is cut into equal chunks, one a rank (contiguous order), or twice as many of which rank r holds
// numbers r and 2 size - 1 - r (zigzag): then causal attention costs all ranks the same.
//
// Tensors of a rank hold its chunks one behind the other: [batch, chunks * chunk length, …].
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "comm/group.h"
#include "tensor/part.h"

namespace ingot::layers {

struct SequenceAxis {
  /// How attention reaches the keys of other ranks (layers/sharded_attention.h).
  enum class Method { ring, allgather, ulysses };
  /// How the states of linear attention get from rank to rank (layers/sharded_linear_attention.h).
  enum class States { lasp2, lasp1, zeco };

  int rank = 0, size = 1;
  Method method = Method::ring;
  States states = States::lasp2;
  bool zigzag = true;
  comm::Group* group = nullptr;  // null while a model is only described, or for size 1

  bool is_on() const { return size > 1; }
  /// Chunks that each rank holds, and all of them.
  int chunks() const { return is_on() && zigzag ? 2 : 1; }
  int all_chunks() const { return chunks() * size; }
  /// Which chunk of the sequence `of`'s i-th is.
  int chunk(int of, int i) const { return i == 0 ? of : 2 * size - 1 - of; }
  int owner(int chunk) const { return chunk < size ? chunk : 2 * size - 1 - chunk; }
  /// This rank's tokens of [batch, sequence, …], a copy; all of them without the axis.
  at::Tensor own_tokens(const at::Tensor& all) const;

  /// [size, …, own tokens, …], the slices of all ranks, as whole sequences […, tokens, …]; `dim`: of the tokens in the result.
  at::Tensor in_order(const at::Tensor& by_rank, int64_t dim) const;
  /// The way back.
  at::Tensor by_rank(const at::Tensor& in_order, int64_t dim) const;
};

SequenceAxis::Method context_method_from_name(const std::string& name);
SequenceAxis::States state_method_from_name(const std::string& name);

/// x [batch, own tokens, width] -> [batch * chunks, halo + chunk length, width]: each chunk behind the last `halo` tokens of the one
/// before it (zeros before the first), which come from the rank that holds it. Backward, their gradients go back there.
/// A rank sends and receives at most 2 messages of batch * halo * width elements each way. Chunks hold at least `halo` tokens.
inline constexpr int64_t kHalo = 2;  // of CCA
at::Tensor with_halo(const at::Tensor& x, const SequenceAxis& axis, int64_t halo = kHalo);

}  // namespace ingot::layers
