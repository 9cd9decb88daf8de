// Where tokens mix: attention of a rank's queries to keys and values of all ranks of a sequence axis, one class per method. A core keeps
// what its backward needs; the queries and keys it is given are the caller's.
#pragma once

#include "schedule/script.h"

namespace ingot::schedule {

struct Mixed {
  Buffer q = -1, kv = -1;
};

class SequenceCore {
 public:
  virtual ~SequenceCore() = default;
  /// q [own tokens, heads of this tensor rank], k and v together -> what attention gives, like q.
  virtual Buffer forward(Mixed in, const Meanwhile& meanwhile) = 0;
  /// Gradients of q, and of k and v.
  virtual Mixed backward(Buffer grad_out, const Meanwhile& meanwhile) = 0;
};

/// Sizes that cores share.
struct CoreSizes {
  explicit CoreSizes(const Script& script);
  int64_t batch, seq, own;  // tokens of a row, and of it on this rank
  int64_t heads, kv_heads;  // of this tensor rank
  int64_t key_dim, value_dim;
  int64_t q_bytes, kv_bytes;  // of own tokens
  int64_t out_bytes;
  int64_t rows() const { return batch * own; }
};

/// A run of tokens of a row.
struct Chunk {
  int64_t begin, length;
};
/// Those of a rank of the sequence axis: two in zigzag order, the early one first.
std::vector<Chunk> chunks_of(const Layout& layout, int sequence_rank);
/// (query, key) pairs that a run of queries sees of a run of keys, causally. Runs are equal, or do not overlap.
double pairs_between(Chunk queries, Chunk keys);
/// Of queries with all keys up to their own.
double pairs_before(Chunk queries);

std::unique_ptr<SequenceCore> local_core(Script& script);
std::unique_ptr<SequenceCore> allgather_core(Script& script);
std::unique_ptr<SequenceCore> ring_core(Script& script);
std::unique_ptr<SequenceCore> ulysses_core(Script& script);
std::unique_ptr<SequenceCore> state_core(Script& script);  // lasp1, lasp2, zeco; local when there is one rank

}  // namespace ingot::schedule
