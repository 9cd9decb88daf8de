// Tensor and sequence parallelism folded on one axis, as layers/tensor_sequence/ runs it: attention's weights are broadcast part by part,
// the MLP's go round in a ring, and every rank works on its own tokens with each part in turn.
#include <algorithm>
#include <utility>

#include "schedule/sequence_core.h"

namespace ingot::schedule {
namespace {

Group whole_group(const Script& script) { return {.first = 0, .size = script.layout().ranks}; }

// Queries that attend in one go: half of a chunk, within one bucket of kv heads (folded_attention.cpp).
struct Piece {
  int64_t bucket;
  Chunk queries;
};

class FoldedAttention : public Part {
 public:
  explicit FoldedAttention(Script& script) : script_(script), group_(whole_group(script)) {
    const auto& s = script.sizes();
    visits_ = std::min<int64_t>(group_.size, s.kv_heads);
    owners_ = group_.size / visits_;
    heads_ = s.heads / visits_;
    kv_heads_ = s.kv_heads / visits_;
    buckets_ = std::clamp<int64_t>(script.layout().head_buckets, 1, kv_heads_);
    rows_ = s.tokens() / group_.size;
    part_elements_ = s.attention_weights() / group_.size;
    for (int64_t bucket = 0; bucket < buckets_; ++bucket)
      for (const auto& chunk : chunks_of(script.layout(), script.rank())) {
        const int64_t half = chunk.length / 2;
        if (half > 0) pieces_.push_back({bucket, {chunk.begin, half}});
        pieces_.push_back({bucket, {chunk.begin + half, chunk.length - half}});
      }
    own_ = script.resident(part_elements_ * script.e());
    if (script.trains()) gradients_ = script.resident(part_elements_ * script.wide());
  }

  Buffer forward(Buffer x, const Meanwhile& meanwhile) override {
    const auto& s = script_.sizes();
    x_ = x;
    attended_ = script_.buffer(rows_ * s.q_width() * script_.e());
    statistics_ = script_.buffer(rows_ * s.heads * script_.wide());
    const auto sum = script_.buffer(rows_ * s.hidden * script_.wide());
    tour(
        meanwhile,
        [&](Stay& stay, const Piece& piece) {
          script_.list().add("attend", Stream::compute, work(piece, false), {stay.q, here(stay, piece.bucket)}, {attended_, statistics_});
        },
        [&](Stay& stay) {
          for (const auto weights : stay.weights)
            script_.product_into("project out, add", rows_, heads_ / owners_ * s.head_dim, s.hidden, {attended_, weights, sum}, sum);
        });
    return script_.compute("narrow", Move{rows_ * s.hidden * (script_.wide() + script_.e())}, {sum}, rows_ * s.hidden * script_.e());
  }

  Buffer backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const auto& s = script_.sizes();
    grad_out_ = grad_out;
    grad_x_ = script_.buffer(rows_ * s.hidden * script_.wide());
    tour(
        meanwhile, [&](Stay& stay, const Piece& piece) { piece_backward(stay, piece); }, [&](Stay& stay) { finish_backward(stay); });
    leaving_.clear();
    script_.compute_into("keep the own part's", Move{3 * part_elements_ * script_.wide()}, {own_sum_, gradients_}, gradients_);
    return script_.compute("narrow", Move{rows_ * s.hidden * (script_.wide() + script_.e())}, {grad_x_}, rows_ * s.hidden * script_.e());
  }

 private:
  struct Stay {
    int64_t visit = 0;
    Script::Buffers weights;  // of each owner
    Buffer q = -1, kv = -1;
    Script::Buffers arriving, here;  // keys and values of whole rows, by bucket
    Buffer grad_attended = -1, grad_q = -1, sums = -1;
    Script::Buffers grad_parts, scattered;  // weights' gradients of each owner; those of keys and values, by bucket
  };

  int64_t q_width() const { return heads_ * script_.sizes().head_dim; }
  int64_t kv_width() const { return kv_heads_ * script_.sizes().head_dim; }
  int64_t bucket_heads(int64_t bucket) const { return kv_heads_ * (bucket + 1) / buckets_ - kv_heads_ * bucket / buckets_; }
  // Keys and values of whole rows.
  int64_t whole_elements(int64_t bucket) const { return 2 * script_.sizes().tokens() * bucket_heads(bucket) * script_.sizes().head_dim; }

  Stay send_for(int64_t visit) {
    Stay stay{.visit = visit};
    for (int64_t i = 0; i < owners_; ++i) {
      const auto owner = static_cast<int>(visit * owners_ + i);
      const int64_t bytes = part_elements_ * script_.e();
      const bool is_own = owner == script_.rank();
      const auto message = is_own ? script_.compute("pack weights", Move{2 * bytes}, {own_}, bytes) : script_.buffer(bytes);
      script_.collective("broadcast weights", Kind::broadcast, group_, bytes, is_own ? Script::Buffers{message} : Script::Buffers{},
                         {message}, owner);
      stay.weights.push_back(message);
    }
    return stay;
  }

  void begin(Stay& stay) {
    const int64_t hidden = script_.sizes().hidden, e = script_.e(), width = q_width() + 2 * kv_width();
    auto reads = stay.weights;
    reads.push_back(x_);
    const auto packed = script_.product("project q k v", rows_, hidden, width, reads, rows_ * width * e);
    stay.q = script_.buffer(rows_ * q_width() * e);
    stay.kv = script_.buffer(rows_ * 2 * kv_width() * e);
    script_.list().add("split, rotate", Stream::compute, Move{2 * rows_ * width * e}, {packed}, {stay.q, stay.kv});
    stay.arriving.assign(static_cast<size_t>(buckets_), -1);
    stay.here.assign(static_cast<size_t>(buckets_), -1);
    gather(stay, 0);
  }

  void gather(Stay& stay, int64_t bucket) {
    if (bucket >= buckets_) return;
    const int64_t bytes = whole_elements(bucket) * script_.e();
    const auto own = script_.compute("pack k v", Move{2 * bytes / group_.size}, {stay.kv}, bytes / group_.size);
    stay.arriving[static_cast<size_t>(bucket)] = script_.gather("gather k v", group_, bytes, own);
  }

  Buffer here(Stay& stay, int64_t bucket) {
    auto& all = stay.here[static_cast<size_t>(bucket)];
    if (all < 0) {
      const int64_t bytes = whole_elements(bucket) * script_.e();
      all = script_.compute("put in order", Move{2 * bytes}, {stay.arriving[static_cast<size_t>(bucket)]}, bytes);
      gather(stay, bucket + 1);
    }
    return all;
  }

  // The next part's weights are on their way from the first piece on; its keys and values are gathered under the last one.
  template <class Visit, class Finish>
  void tour(const Meanwhile& meanwhile, const Visit& visit_piece, const Finish& finish) {
    std::unique_ptr<Stay> before, next;
    auto now = std::make_unique<Stay>(send_for(0));
    begin(*now);
    for (int64_t visit = 0; visit < visits_; ++visit) {
      for (size_t i = 0; i < pieces_.size(); ++i) {
        if (i + 1 == pieces_.size() && next) begin(*next);
        visit_piece(*now, pieces_[i]);
        if (i > 0) continue;
        if (before) finish(*before);
        before.reset();
        if (visit + 1 < visits_) next = std::make_unique<Stay>(send_for(visit + 1));
        else meanwhile();
        if (next && pieces_.size() == 1) begin(*next);
      }
      before = std::move(now);
      now = std::move(next);
    }
    finish(*before);
  }

  Attention work(const Piece& piece, bool backward) const {
    return {.pairs = static_cast<double>(script_.sizes().batch) * pairs_before(piece.queries),
            .heads = heads_ / kv_heads_ * bucket_heads(piece.bucket),
            .head_dim = script_.sizes().head_dim,
            .queries = piece.queries.length,
            .keys = piece.queries.begin + piece.queries.length,
            .backward = backward};
  }

  void begin_backward(Stay& stay) {
    const auto& s = script_.sizes();
    const int64_t width = heads_ / owners_ * s.head_dim;
    stay.grad_attended = script_.buffer(rows_ * q_width() * script_.e());
    stay.grad_q = script_.buffer(rows_ * q_width() * script_.e());
    for (const auto weights : stay.weights) {
      stay.grad_parts.push_back(script_.buffer(part_elements_ * script_.wide()));
      script_.product_into("out, to its input", rows_, s.hidden, width, {grad_out_, weights}, stay.grad_attended);
      script_.product_into("out, to its weight", s.hidden, rows_, width, {grad_out_, attended_}, stay.grad_parts.back());
    }
  }

  void piece_backward(Stay& stay, const Piece& piece) {
    if (stay.grad_attended < 0) begin_backward(stay);
    const auto all = here(stay, piece.bucket);
    const int64_t elements = whole_elements(piece.bucket);
    if (stay.sums < 0) stay.sums = script_.compute("zero sums", Move{elements * script_.wide()}, {}, elements * script_.wide());
    script_.list().add("attention back", Stream::compute, work(piece, true),
                       {stay.grad_attended, stay.q, all, attended_, statistics_, stay.sums}, {stay.grad_q, stay.sums});
    const bool ends_bucket = &piece == &pieces_.back() || (&piece + 1)->bucket != piece.bucket;
    if (!ends_bucket) return;
    const auto by_rank = script_.compute("by rank", Move{elements * (script_.wide() + script_.e())}, {stay.sums}, elements * script_.e());
    stay.scattered.push_back(script_.scatter_sum("sum gradients of k v", group_, elements * script_.e(), by_rank));
    stay.sums = -1;
  }

  void finish_backward(Stay& stay) {
    const auto& s = script_.sizes();
    const int64_t e = script_.e(), width = q_width() + 2 * kv_width();
    auto reads = stay.scattered;
    reads.push_back(stay.grad_q);
    const auto packed = script_.compute("collect, rotate back", Move{2 * rows_ * width * e}, reads, rows_ * width * e);
    auto weights = stay.weights;
    weights.push_back(packed);
    script_.product_into("q k v, to x", rows_, width, s.hidden, weights, grad_x_);
    // Those of the visit before must have left by now.
    auto last_reads = std::exchange(leaving_, {});
    last_reads.insert(last_reads.end(), {packed, x_});
    for (const auto gradients : stay.grad_parts)
      script_.product_into("q k v, to their weights", width / owners_, rows_, s.hidden, last_reads, gradients);
    for (int64_t i = 0; i < owners_; ++i) {
      const auto owner = static_cast<int>(stay.visit * owners_ + i);
      const auto gradients = stay.grad_parts[static_cast<size_t>(i)];
      script_.collective("sum weights' gradients", Kind::reduce, group_, part_elements_ * script_.wide(), {gradients}, {gradients}, owner,
                         script_.wide());
      leaving_.push_back(gradients);
      if (owner == script_.rank()) own_sum_ = gradients;
    }
  }

  Script& script_;
  Group group_;
  int64_t visits_, owners_, heads_, kv_heads_, buckets_, rows_, part_elements_;
  std::vector<Piece> pieces_;
  Buffer own_ = -1, gradients_ = -1, x_ = -1, attended_ = -1, statistics_ = -1, grad_out_ = -1, grad_x_ = -1, own_sum_ = -1;
  Script::Buffers leaving_;  // weights' gradients on their way to their owners
};

// folded_layer.cpp
class FoldedMlp : public Part {
 public:
  explicit FoldedMlp(Script& script)
      : script_(script),
        group_(whole_group(script)),
        rows_(script.sizes().tokens() / group_.size),
        ffn_(script.sizes().ffn / group_.size),
        elements_(3 * script.sizes().hidden * ffn_) {
    own_ = script.resident(elements_ * script.e());
    if (script.trains()) gradients_ = script.resident(elements_ * script.wide());
  }

  Buffer forward(Buffer x, const Meanwhile& meanwhile) override {
    const int64_t hidden = script_.sizes().hidden, e = script_.e(), w = script_.wide();
    x_ = x;
    const auto sum = script_.buffer(rows_ * hidden * w);
    for_each_part(meanwhile, [&](int, Buffer weights) {
      const auto gate_up = script_.product("gate, up", rows_, hidden, 2 * ffn_, {x_, weights}, rows_ * 2 * ffn_ * e);
      const auto middle = script_.compute("swiglu", Move{3 * rows_ * ffn_ * e}, {gate_up}, rows_ * ffn_ * e);
      script_.product_into("down, add", rows_, ffn_, hidden, {middle, weights, sum}, sum);
    });
    return script_.compute("narrow", Move{rows_ * hidden * (w + e)}, {sum}, rows_ * hidden * e);
  }

  // The own part comes first; what the others have added to its gradient comes last.
  Buffer backward(Buffer grad_out, const Meanwhile& meanwhile) override {
    const int64_t hidden = script_.sizes().hidden, e = script_.e(), w = script_.wide();
    const auto grad_x = script_.buffer(rows_ * hidden * w);
    Buffer arriving = -1, own_sum = -1;
    for_each_part(meanwhile, [&](int step, Buffer weights) {
      const auto gradients = script_.buffer(elements_ * w);
      if (step == 0) own_sum = gradients;
      const auto gate_up = script_.product("gate, up again", rows_, hidden, 2 * ffn_, {x_, weights}, rows_ * 2 * ffn_ * e);
      const auto middle = script_.compute("swiglu again", Move{3 * rows_ * ffn_ * e}, {gate_up}, rows_ * ffn_ * e);
      script_.product_into("down, to its weight", hidden, rows_, ffn_, {grad_out, middle}, gradients);
      const auto grad_middle = script_.product("down, to its input", rows_, hidden, ffn_, {grad_out, weights}, rows_ * ffn_ * e);
      const auto grad_gate_up = script_.compute("swiglu back", Move{5 * rows_ * ffn_ * e}, {grad_middle, gate_up}, rows_ * 2 * ffn_ * e);
      script_.product_into("gate, up, to x", rows_, 2 * ffn_, hidden, {grad_gate_up, weights, grad_x}, grad_x);
      script_.product_into("gate, up, to their weights", 2 * ffn_, rows_, hidden, {grad_gate_up, x_}, gradients);
      if (step > 1) script_.compute_into("add what arrived", Move{3 * elements_ * w}, {arriving, gradients}, gradients);
      if (step > 0) arriving = script_.rotate("gradients follow", group_, elements_ * w, gradients);
    });
    script_.compute_into("keep the own part's", Move{6 * elements_ * w}, {arriving, own_sum, gradients_}, gradients_);
    return script_.compute("narrow", Move{rows_ * hidden * (w + e)}, {grad_x}, rows_ * hidden * e);
  }

 private:
  template <class Visit>
  void for_each_part(const Meanwhile& meanwhile, const Visit& visit) {
    const int64_t bytes = elements_ * script_.e();
    auto here = script_.compute("pack weights", Move{2 * bytes}, {own_}, bytes);
    for (int step = 0; step < group_.size; ++step) {
      const auto now = here;
      if (step + 1 < group_.size) here = script_.rotate("weights go round", group_, bytes, now);
      else meanwhile();
      visit(step, now);
    }
  }

  Script& script_;
  Group group_;
  int64_t rows_, ffn_, elements_;
  Buffer own_ = -1, gradients_ = -1, x_ = -1;
};

}  // namespace

std::unique_ptr<Part> folded_attention(Script& script) { return std::make_unique<FoldedAttention>(script); }
std::unique_ptr<Part> folded_mlp(Script& script) { return std::make_unique<FoldedMlp>(script); }

}  // namespace ingot::schedule
