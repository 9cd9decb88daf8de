#include "schedule/sequence_core.h"

#include <algorithm>

namespace ingot::schedule {

CoreSizes::CoreSizes(const Script& script) {
  const auto& s = script.sizes();
  const auto& layout = script.layout();
  batch = s.batch;
  seq = s.seq;
  own = s.seq / layout.sequence_size();
  heads = s.heads / layout.tensor_size();
  kv_heads = layout.is_linear() ? heads : s.kv_heads / layout.tensor_size();
  key_dim = s.head_dim;
  value_dim = layout.is_linear() && s.value_dim > 0 ? s.value_dim : s.head_dim;
  q_bytes = rows() * heads * key_dim * script.e();
  kv_bytes = rows() * kv_heads * (key_dim + value_dim) * script.e();
  out_bytes = rows() * heads * value_dim * script.e();
}

std::vector<Chunk> chunks_of(const Layout& layout, int sequence_rank) {
  const int64_t ranks = layout.sequence_size();
  if (!layout.zigzag || ranks == 1) return {{sequence_rank * (layout.sizes.seq / ranks), layout.sizes.seq / ranks}};
  const int64_t length = layout.sizes.seq / (2 * ranks);
  return {{sequence_rank * length, length}, {(2 * ranks - 1 - sequence_rank) * length, length}};
}

double pairs_between(Chunk queries, Chunk keys) {
  const auto q = static_cast<double>(queries.length), k = static_cast<double>(keys.length);
  if (queries.begin == keys.begin) return q * (q + 1) / 2;
  return keys.begin < queries.begin ? q * k : 0;
}

double pairs_before(Chunk queries) {
  const auto q = static_cast<double>(queries.length);
  return q * static_cast<double>(queries.begin) + q * (q + 1) / 2;
}

namespace {

Attention of_whole_rows(const CoreSizes& s, int64_t heads, bool backward) {
  return {.pairs = static_cast<double>(s.batch) * pairs_before({0, s.seq}),
          .heads = heads,
          .head_dim = s.key_dim,
          .queries = s.seq,
          .keys = s.seq,
          .backward = backward};
}

class LocalCore : public SequenceCore {
 public:
  explicit LocalCore(Script& script) : script_(script), s_(script) {}

  Buffer forward(Mixed in, const Meanwhile& meanwhile) override {
    in_ = in;
    meanwhile();
    statistics_ = script_.buffer(s_.rows() * s_.heads * script_.wide());
    out_ = script_.buffer(s_.out_bytes);
    script_.list().add("attend", Stream::compute, work(false), {in.q, in.kv}, {out_, statistics_});
    return out_;
  }
  Mixed backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    meanwhile();
    const Mixed grads{script_.buffer(s_.q_bytes), script_.buffer(s_.kv_bytes)};
    script_.list().add("attention back", Stream::compute, work(true), {grad_out, in_.q, in_.kv, out_, statistics_}, {grads.q, grads.kv});
    return grads;
  }

 private:
  Attention work(bool backward) const { return of_whole_rows(s_, s_.heads, backward); }
  Script& script_;
  CoreSizes s_;
  Mixed in_;
  Buffer out_ = -1, statistics_ = -1;
};

constexpr int64_t kGroups = 4;  // of kv heads, at most (layers/allgather_attention.cpp)

// Keys and values gathered group by group of kv heads, the next while one is attended to.
class AllGatherCore : public SequenceCore {
 public:
  explicit AllGatherCore(Script& script)
      : script_(script), s_(script), groups_(std::min(s_.kv_heads, kGroups)), chunks_(chunks_of(script.layout(), script.sequence_rank())) {}

  Buffer forward(Mixed in, const Meanwhile& meanwhile) override {
    in_ = in;
    out_ = script_.buffer(s_.out_bytes);
    statistics_ = script_.buffer(s_.rows() * s_.heads * script_.wide());
    for_each_group(meanwhile, [&](int64_t group, Buffer all) {
      script_.list().add("attend", Stream::compute, work(group, false), {in.q, all}, {out_, statistics_});
    });
    return out_;
  }

  Mixed backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const Mixed grads{script_.buffer(s_.q_bytes), script_.buffer(s_.kv_bytes)};
    std::vector<Buffer> arriving;
    for_each_group(meanwhile, [&](int64_t group, Buffer all) {
      const int64_t elements = whole_elements(group);
      const auto sums = script_.buffer(elements * script_.wide());
      script_.list().add("attention back", Stream::compute, work(group, true), {grad_out, in_.q, all, out_, statistics_}, {grads.q, sums});
      const auto by_rank = script_.compute("by rank", Move{elements * (script_.wide() + script_.e())}, {sums}, elements * script_.e());
      arriving.push_back(script_.scatter_sum("sum gradients of k v", script_.sequence_group(), elements * script_.e(), by_rank));
    });
    script_.compute_into("collect gradients of k v", Move{2 * s_.kv_bytes}, arriving, grads.kv);
    return grads;
  }

 private:
  int64_t first_head(int64_t group) const { return s_.kv_heads * group / groups_; }
  int64_t kv_heads_of(int64_t group) const { return first_head(group + 1) - first_head(group); }
  // Of both keys and values of whole rows.
  int64_t whole_elements(int64_t group) const { return s_.batch * s_.seq * kv_heads_of(group) * (s_.key_dim + s_.value_dim); }

  Buffer start(int64_t group) {
    const int64_t bytes = whole_elements(group) * script_.e();
    const auto own =
        script_.compute("pack k v", Move{2 * bytes / script_.layout().sequence_size()}, {in_.kv}, bytes / script_.layout().sequence_size());
    return script_.gather("gather k v", script_.sequence_group(), bytes, own);
  }

  template <class Visit>
  void for_each_group(const Meanwhile& meanwhile, const Visit& visit) {
    auto next = start(0);
    for (int64_t group = 0; group < groups_; ++group) {
      const auto now = next;
      if (group + 1 < groups_) next = start(group + 1);
      else meanwhile();
      const int64_t bytes = whole_elements(group) * script_.e();
      visit(group, script_.compute("put in order", Move{2 * bytes}, {now}, bytes));
    }
  }

  Attention work(int64_t group, bool backward) const {
    double pairs = 0;
    int64_t keys = 0;
    for (const auto& chunk : chunks_) {
      pairs += pairs_before(chunk);
      keys += chunk.begin + chunk.length;
    }
    return {.pairs = static_cast<double>(s_.batch) * pairs,
            .heads = s_.heads / s_.kv_heads * kv_heads_of(group),
            .head_dim = s_.key_dim,
            .calls = static_cast<int64_t>(chunks_.size()),
            .queries = chunks_[0].length,
            .keys = keys / static_cast<int64_t>(chunks_.size()),
            .backward = backward};
  }

  Script& script_;
  CoreSizes s_;
  int64_t groups_;
  std::vector<Chunk> chunks_;
  Mixed in_;
  Buffer out_ = -1, statistics_ = -1;
};

// Keys and values go round; backward once more, and their gradients behind them in the wide type (layers/ring_attention.cpp).
class RingCore : public SequenceCore {
 public:
  explicit RingCore(Script& script) : script_(script), s_(script), group_(script.sequence_group()) {}

  Buffer forward(Mixed in, const Meanwhile& meanwhile) override {
    in_ = in;
    const int64_t e = script_.e(), w = script_.wide();
    const int64_t elements = s_.rows() * s_.heads * s_.value_dim;
    const auto sum = script_.buffer(elements * w);
    statistics_ = script_.buffer(s_.rows() * s_.heads * w);
    auto here = script_.compute("pack k v", Move{2 * s_.kv_bytes}, {in.kv}, s_.kv_bytes);
    for (int step = 0; step < group_.size; ++step) {
      const auto now = here;
      if (step + 1 < group_.size) here = script_.rotate("k v go round", group_, s_.kv_bytes, now);
      if (step + 1 == group_.size) meanwhile();
      const auto part = work(step, false);
      if (part.pairs == 0) continue;
      script_.list().add("attend", Stream::compute, part, {in.q, now}, {sum, statistics_});
      if (step > 0) script_.compute_into("merge", Move{elements * (2 * w + e)}, {sum}, sum);
    }
    out_ = script_.compute("narrow", Move{elements * (w + e)}, {sum}, s_.out_bytes);
    return out_;
  }

  Mixed backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const int64_t w = script_.wide(), kv_elements = s_.kv_bytes / script_.e();
    const auto grad_q = script_.buffer(s_.q_bytes / script_.e() * w);
    auto here = script_.compute("pack k v", Move{2 * s_.kv_bytes}, {in_.kv}, s_.kv_bytes);
    Buffer arriving = -1;
    for (int step = 0; step < group_.size; ++step) {
      const auto now = here;
      if (step + 1 < group_.size) here = script_.rotate("k v go round", group_, s_.kv_bytes, now);
      if (step + 1 == group_.size) meanwhile();
      const auto sums = script_.compute("zero sums", Move{kv_elements * w}, {}, kv_elements * w);
      const auto part = work(step, true);
      if (part.pairs > 0)
        script_.list().add("attention back", Stream::compute, part, {grad_out, in_.q, now, out_, statistics_}, {grad_q, sums});
      if (arriving >= 0) script_.compute_into("add what arrived", Move{3 * kv_elements * w}, {arriving, sums}, sums);
      arriving = script_.rotate("their gradients", group_, kv_elements * w, sums);
    }
    return {script_.compute("narrow", Move{s_.q_bytes + s_.q_bytes / script_.e() * w}, {grad_q}, s_.q_bytes),
            script_.compute("narrow", Move{s_.kv_bytes + kv_elements * w}, {arriving}, s_.kv_bytes)};
  }

 private:
  // With the keys of the rank `step` places before.
  Attention work(int step, bool backward) const {
    const auto& layout = script_.layout();
    const int rank = script_.sequence_rank(), peer = (rank + group_.size - step) % group_.size;
    Attention a{.heads = s_.heads, .head_dim = s_.key_dim, .calls = 0, .backward = backward};
    for (const auto& queries : chunks_of(layout, rank))
      for (const auto& keys : chunks_of(layout, peer)) {
        const double pairs = pairs_between(queries, keys);
        if (pairs == 0) continue;
        a.pairs += static_cast<double>(s_.batch) * pairs;
        ++a.calls;
        a.queries = queries.length;
        a.keys = keys.length;
      }
    return a;
  }

  Script& script_;
  CoreSizes s_;
  Group group_;
  Mixed in_;
  Buffer out_ = -1, statistics_ = -1;
};

// Tokens are exchanged for heads and back (layers/ulysses_attention.cpp).
class UlyssesCore : public SequenceCore {
 public:
  explicit UlyssesCore(Script& script)
      : script_(script),
        s_(script),
        group_(script.sequence_group()),
        heads_(s_.heads / group_.size),
        kv_heads_(std::max<int64_t>(1, s_.kv_heads / group_.size)) {}

  Buffer forward(Mixed in, const Meanwhile& meanwhile) override {
    meanwhile();
    whole_ = there(packed_bytes(), {in.q, in.kv});
    attended_ = script_.buffer(s_.out_bytes);
    statistics_ = script_.buffer(s_.rows() * s_.heads * script_.wide());
    script_.list().add("attend", Stream::compute, work(false), {whole_}, {attended_, statistics_});
    return there(s_.out_bytes, {attended_});
  }

  Mixed backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    meanwhile();
    const auto grad = there(s_.out_bytes, {grad_out});
    const auto grads = script_.compute("attention back", work(true), {grad, whole_, attended_, statistics_}, packed_bytes());
    const auto home = there(packed_bytes(), {grads});
    const Mixed made{script_.buffer(s_.q_bytes), script_.buffer(s_.kv_bytes)};
    script_.list().add("add up shared k v", Stream::compute, Move{2 * packed_bytes()}, {home}, {made.q, made.kv});
    return made;
  }

 private:
  // Of queries, keys and values of whole rows with this rank's heads.
  int64_t packed_bytes() const { return s_.batch * s_.seq * (heads_ * s_.key_dim + kv_heads_ * (s_.key_dim + s_.value_dim)) * script_.e(); }

  Buffer there(int64_t bytes, const Script::Buffers& from) {
    const auto leaving = script_.compute("by owner", Move{2 * bytes}, from, bytes);
    const auto arriving = script_.buffer(bytes);
    script_.collective("exchange tokens and heads", Kind::all_to_all, group_, bytes, {leaving}, {arriving});
    return script_.compute("put in order", Move{2 * bytes}, {arriving}, bytes);
  }

  Attention work(bool backward) const { return of_whole_rows(s_, heads_, backward); }

  Script& script_;
  CoreSizes s_;
  Group group_;
  int64_t heads_, kv_heads_;
  Buffer whole_ = -1, attended_ = -1, statistics_ = -1;
};

}  // namespace

std::unique_ptr<SequenceCore> local_core(Script& script) { return std::make_unique<LocalCore>(script); }
std::unique_ptr<SequenceCore> allgather_core(Script& script) { return std::make_unique<AllGatherCore>(script); }
std::unique_ptr<SequenceCore> ring_core(Script& script) { return std::make_unique<RingCore>(script); }
std::unique_ptr<SequenceCore> ulysses_core(Script& script) { return std::make_unique<UlyssesCore>(script); }

}  // namespace ingot::schedule
