// Which tokens of a row each rank of a context axis has. A row is cut into equal chunks, one a rank (contiguous order), or twice as many of
// which rank r holds numbers r and 2 size - 1 - r (zigzag): then causal attention costs all ranks the same. Plain values and local copies;
// how tokens reach those of other ranks is a ContextSchedule (layers/context_schedule.h).
//
// Tensors of a rank hold its chunks one behind the other: [batch, chunks * chunk length, …].
#pragma once

#include "device/aten.h"

namespace ingot::layers {

struct TokenOrder {
  int rank = 0, size = 1;
  bool zigzag = true;

  bool is_on() const { return size > 1; }
  /// Chunks that each rank holds, and all of them.
  int chunks() const { return is_on() && zigzag ? 2 : 1; }
  int all_chunks() const { return chunks() * size; }
  /// Which chunk of the row rank `of`'s i-th is.
  int chunk(int of, int i) const { return i == 0 ? of : 2 * size - 1 - of; }
  int owner(int chunk) const { return chunk < size ? chunk : 2 * size - 1 - chunk; }
  /// This rank's tokens of [batch, sequence, …], a copy; all of them without the axis.
  at::Tensor own_tokens(const at::Tensor& all) const;

  /// [size, …, own tokens, …], the slices of all ranks, as whole rows […, tokens, …]; `dim`: of the tokens in the result.
  at::Tensor in_order(const at::Tensor& by_rank, int64_t dim) const;
  /// The way back.
  at::Tensor by_rank(const at::Tensor& in_order, int64_t dim) const;
};

}  // namespace ingot::layers
