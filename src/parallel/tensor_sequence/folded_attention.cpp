#include "parallel/tensor_sequence/folded_attention.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "layers/deferred.h"
#include "parallel/context/attention_spread.h"
#include "parallel/tensor_sequence/packed_weights.h"

namespace ingot::parallel {
namespace {

using layers::as_rows, layers::AttentionLayer, layers::Context, layers::DeferredGradients, layers::Function, layers::Parameter,
    layers::TensorList, layers::WorkKind;

struct Kept {
  const AttentionLayer* layer;
  AttentionLayer::Heads heads;
  AttentionLayer::Projection project;
  AttentionSpread spread;
  TensorSequenceAxis axis;
};

std::vector<Parameter*> all_weights(const AttentionLayer& layer) {
  auto all = layer.projections();
  all.push_back(&layer.output());
  return all;
}

// Queries that attend in one go: of one chunk, within one bucket of kv heads.
struct Piece {
  int64_t bucket;
  int chunk;            // of this rank
  int64_t from, count;  // within the chunk
};

// One part of the weights after another, each from its broadcast to the sum of its outputs; what is common to forward and backward.
class Tour {
 public:
  Tour(const Kept& kept, const at::Tensor& x)
      : kept_(kept),
        all_(kept.heads),
        out_(kept.layer->output()),
        spread_(kept.spread),
        axis_(kept.axis),
        packed_(all_weights(*kept.layer)),
        x_(x),
        visits_(std::min<int64_t>(kept.axis.size, kept.heads.kv_heads)),
        owners_(kept.axis.size / visits_) {
    heads_ = all_.heads / visits_;
    kv_heads_ = all_.kv_heads / visits_;
    buckets_ = std::clamp<int64_t>(axis_.head_buckets, 1, kv_heads_);
    for (int64_t bucket = 0; bucket < buckets_; ++bucket)
      for (int chunk = 0; chunk < spread_.axis.chunks(); ++chunk)
        for (const bool is_second : {false, true}) {
          const int64_t half = spread_.length / 2;
          const Piece piece{bucket, chunk, is_second ? half : 0, is_second ? spread_.length - half : half};
          if (piece.count > 0) pieces_.push_back(piece);
        }
  }

 protected:
  // What a rank has of one visit.
  struct Stay {
    std::vector<at::Tensor> messages;  // weights of each owner
    std::vector<comm::Work> arrivals;
    std::vector<std::vector<Parameter>> parts;
    std::vector<at::Tensor> gradients;  // of each owner's weights; backward only
    at::Tensor leaf;                    // x; requires its gradient in backward
    at::Tensor q, k, v;                 // [batch, chunks, length, heads, head_dim]
    struct Gathering {
      at::Tensor own, by_rank, all;  // all: [2, batch, tokens of a row, heads, head_dim], once it is needed
      comm::Work work;
    };
    std::vector<Gathering> buckets;
  };

  int64_t first_owner(int64_t visit) const { return visit * owners_; }
  int64_t first_head(int64_t visit) const { return visit * heads_; }
  int64_t kv_begin(int64_t bucket) const { return kv_heads_ * bucket / buckets_; }
  int64_t kv_count(int64_t bucket) const { return kv_begin(bucket + 1) - kv_begin(bucket); }
  int64_t group() const { return heads_ / kv_heads_; }

  Stay send_for(int64_t visit) const {
    Stay stay;
    for (int64_t i = 0; i < owners_; ++i) {
      const auto owner = static_cast<int>(first_owner(visit) + i);
      stay.messages.push_back(owner == axis_.rank ? packed_.pack() : packed_.empty_message());
      stay.arrivals.push_back(axis_.group->start_broadcast(stay.messages.back(), owner));
    }
    return stay;
  }

  // Projects with the weights that have arrived, and lets the first bucket of keys and values go round.
  void begin(Stay& stay, int64_t visit, bool trains) const {
    AttentionLayer::Visit seen{static_cast<int>(first_owner(visit)), {}, heads_, kv_heads_};
    for (size_t i = 0; i < stay.messages.size(); ++i) {
      stay.arrivals[i].wait();
      auto shapes = kept_.layer->shapes(static_cast<int>(first_owner(visit)) + static_cast<int>(i), axis_.size);
      if (!shapes.empty()) shapes.push_back(out_.value.sizes().vec());
      if (trains) stay.gradients.push_back(packed_.empty_gradients());
      stay.parts.push_back(packed_.view(stay.messages[i], shapes, trains ? stay.gradients.back() : at::Tensor()));
    }
    for (auto& part : stay.parts) {
      auto& pointers = seen.shards.emplace_back();
      for (size_t i = 0; i + 1 < part.size(); ++i) pointers.push_back(&part[i]);
    }
    stay.leaf = trains ? x_.detach().set_requires_grad(true) : x_;
    {
      const at::AutoGradMode grad_mode(trains);
      const auto projected = kept_.project(stay.leaf, seen);
      stay.q = projected[0];
      stay.k = projected[1];
      stay.v = projected[2];
    }
    stay.buckets.resize(static_cast<size_t>(buckets_));
    gather(stay, 0);
  }

  void gather(Stay& stay, int64_t bucket) const {
    if (bucket >= buckets_) return;
    const at::NoGradGuard no_grad;
    auto& g = stay.buckets[static_cast<size_t>(bucket)];
    const auto part = [&](const at::Tensor& t) { return t.detach().narrow(3, kv_begin(bucket), kv_count(bucket)); };
    g.own = at::stack({part(stay.k), part(stay.v)}).flatten(2, 3);  // [2, batch, own tokens, heads, head_dim]
    auto sizes = g.own.sizes().vec();
    sizes.insert(sizes.begin(), axis_.size);
    g.by_rank = at::empty(sizes, g.own.options());
    g.work = axis_.group->start_all_gather(g.by_rank, g.own);
  }

  // Keys and values of whole rows; the next bucket is under way.
  const at::Tensor& keys_and_values(Stay& stay, int64_t bucket) const {
    auto& g = stay.buckets[static_cast<size_t>(bucket)];
    if (!g.all.defined()) {
      g.work.wait();
      g.all = spread_.axis.in_order(g.by_rank, 2);
      g.by_rank.reset();
      g.own.reset();
      if (bucket > 0) stay.buckets[static_cast<size_t>(bucket - 1)] = {};
      gather(stay, bucket + 1);
    }
    return g.all;
  }

  // begin(visit) of the next, put where the last piece of this one covers its gather; finish(): when the first piece is done.
  template <class Work, class Finish>
  void run(bool trains, const Work& work, const Finish& finish) const {
    std::optional<Stay> before;
    auto here = std::make_optional(send_for(0));
    begin(*here, 0, trains);
    for (int64_t visit = 0; visit < visits_; ++visit) {
      std::optional<Stay> next;
      for (size_t i = 0; i < pieces_.size(); ++i) {
        if (i + 1 == pieces_.size() && next) begin(*next, visit + 1, trains);
        work(*here, visit, pieces_[i], i + 1 == pieces_.size());
        if (i == 0) {
          if (before) finish(*before, visit - 1);
          before.reset();
          if (visit + 1 < visits_) next = send_for(visit + 1);
          if (next && pieces_.size() == 1) begin(*next, visit + 1, trains);
        }
      }
      before = std::move(here);
      here = std::move(next);
    }
    finish(*before, visits_ - 1);
  }

  /// visit(queries of the piece, keys, values, mask, where the piece lies)
  template <class Attend>
  void attend(Stay& stay, const Piece& piece, const Attend& function) const {
    const auto& all = keys_and_values(stay, piece.bucket);
    const int64_t begin = spread_.begin(spread_.axis.chunk(spread_.axis.rank, piece.chunk)) + piece.from, keys = begin + piece.count;
    const auto queries = stay.q.detach()
                             .select(1, piece.chunk)
                             .narrow(1, piece.from, piece.count)
                             .narrow(2, kv_begin(piece.bucket) * group(), kv_count(piece.bucket) * group());
    function(queries, all[0].narrow(1, 0, keys), all[1].narrow(1, 0, keys), spread_.mask(begin, piece.count, 0, keys), keys);
  }

  // The piece's part of a tensor [batch, chunks, length, all heads, head_dim], or of statistics [chunks, batch, all heads, length].
  at::Tensor of_piece(const at::Tensor& x, int64_t visit, const Piece& piece) const {
    return x.select(1, piece.chunk)
        .narrow(1, piece.from, piece.count)
        .narrow(2, first_head(visit) + kv_begin(piece.bucket) * group(), kv_count(piece.bucket) * group());
  }
  at::Tensor statistics_of(const at::Tensor& x, int64_t visit, const Piece& piece) const {
    return x[piece.chunk]
        .narrow(1, first_head(visit) + kv_begin(piece.bucket) * group(), kv_count(piece.bucket) * group())
        .narrow(2, piece.from, piece.count);
  }
  // Columns of attention's output [tokens, all heads * head_dim] that one owner's output projection takes.
  at::Tensor columns_of(const at::Tensor& attended, int64_t visit, int64_t owner) const {
    const int64_t width = heads_ / owners_ * all_.head_dim;
    return attended.narrow(1, first_head(visit) * all_.head_dim + owner * width, width);
  }

  const Kept& kept_;
  const AttentionLayer::Heads& all_;
  const Parameter& out_;
  const AttentionSpread& spread_;
  const TensorSequenceAxis& axis_;
  PackedWeights packed_;
  at::Tensor x_;
  int64_t visits_, owners_, heads_ = 0, kv_heads_ = 0, buckets_ = 1;
  std::vector<Piece> pieces_;
};

class ForwardTour : public Tour {
 public:
  using Tour::Tour;
  // {sum of outputs, attention's output [batch, chunks, length, heads, head_dim], its statistics}
  std::array<at::Tensor, 3> run() {
    const auto dtype = out_.value.scalar_type();
    const int64_t batch = x_.size(0), chunks = spread_.axis.chunks();
    auto out = at::empty({batch * x_.size(1), out_.value.size(0)}, x_.options().dtype(out_.wide_type()));
    auto attended = at::empty({batch, chunks, spread_.length, all_.heads, all_.head_dim}, x_.options().dtype(dtype));
    auto statistics = at::empty({chunks, batch, all_.heads, spread_.length}, wide_options(attended));
    const auto rows = attended.view({batch * x_.size(1), all_.heads * all_.head_dim});
    Tour::run(
        false,
        [&](Stay& stay, int64_t visit, const Piece& piece, bool) {
          attend(stay, piece, [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const auto& mask, int64_t) {
            const auto part = kernels::attention_forward(q, k, v, spread_.rule, mask);
            of_piece(attended, visit, piece).copy_(part.out);
            statistics_of(statistics, visit, piece).copy_(part.log_sum_exp);
          });
        },
        [&](Stay& stay, int64_t visit) {
          for (int64_t owner = 0; owner < owners_; ++owner)
            kernels::matmul_into(out, columns_of(rows, visit, owner), stay.parts[static_cast<size_t>(owner)].back().value.t(),
                                 /*overwrite=*/visit == 0 && owner == 0);
        });
    auto sizes = x_.sizes().vec();
    sizes.back() = out.size(1);
    return {out.view(sizes).to(dtype), attended, statistics};
  }
};

class BackwardTour : public Tour {
 public:
  BackwardTour(const Kept& kept, const at::Tensor& x, const at::Tensor& attended, const at::Tensor& statistics, const at::Tensor& grad_out)
      : Tour(kept, x), attended_(attended), statistics_(statistics) {
    grad_out_ = as_rows(grad_out.contiguous()).to(out_.value.scalar_type());
    grad_x_ = at::empty(x.sizes(), x.options().dtype(out_.wide_type()));
  }

  at::Tensor run() {
    Tour::run(
        true, [&](Stay& stay, int64_t visit, const Piece& piece, bool) { piece_backward(stay, visit, piece); },
        [&](Stay& stay, int64_t visit) { finish(stay, visit); });
    for (auto& [gradients, work] : leaving_) work.wait();
    if (own_.defined()) packed_.accumulate(own_);
    return grad_x_;
  }

 private:
  struct Scattering {
    at::Tensor by_rank, own;  // own: [2, batch, own tokens, heads, head_dim]
    comm::Work work;
  };
  // Gradients of one visit.
  struct Gradients {
    at::Tensor attended, q;  // [batch, chunks, length, visit's heads, head_dim]
    at::Tensor sums;         // of the current bucket: [2, batch, tokens of a row, heads, head_dim]
    std::vector<Scattering> buckets;
  };

  // What the output projections hand back, and their own gradients.
  Gradients begin_visit(Stay& stay, int64_t visit) {
    Gradients made;
    const auto rows = attended_.view({grad_out_.size(0), all_.heads * all_.head_dim});
    auto grad = at::empty({grad_out_.size(0), heads_ * all_.head_dim}, attended_.options());
    for (int64_t owner = 0; owner < owners_; ++owner) {
      auto& last = stay.parts[static_cast<size_t>(owner)].back();
      const int64_t width = heads_ / owners_ * all_.head_dim;
      kernels::matmul_into(grad.narrow(1, owner * width, width), grad_out_, last.value.detach(), /*overwrite=*/true);
      bool overwrite = false;
      auto& buffer = last.gradient_buffer(overwrite);
      kernels::matmul_into(buffer, grad_out_.t(), columns_of(rows, visit, owner), overwrite);
    }
    made.attended = grad.view({x_.size(0), spread_.axis.chunks(), spread_.length, heads_, all_.head_dim});
    made.q = at::empty(stay.q.sizes(), stay.q.options().requires_grad(false));
    return made;
  }

  void piece_backward(Stay& stay, int64_t visit, const Piece& piece) {
    if (gradients_.empty() || gradients_.back().first != visit) gradients_.emplace_back(visit, begin_visit(stay, visit));
    auto& made = gradients_.back().second;
    const int64_t first = kv_begin(piece.bucket) * group(), count = kv_count(piece.bucket) * group();
    const auto local = [&](const at::Tensor& x) {
      return x.select(1, piece.chunk).narrow(1, piece.from, piece.count).narrow(2, first, count);
    };
    attend(stay, piece, [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const auto& mask, int64_t keys) {
      const auto [to_q, to_k, to_v] =
          kernels::attention_backward(local(made.attended), q, k, v, of_piece(attended_, visit, piece),
                                      statistics_of(statistics_, visit, piece).contiguous(), spread_.rule, mask);
      local(made.q).copy_(to_q);
      if (!made.sums.defined()) made.sums = at::zeros(stay.buckets[static_cast<size_t>(piece.bucket)].all.sizes(), wide_options(q));
      made.sums[0].narrow(1, 0, keys).add_(to_k);
      made.sums[1].narrow(1, 0, keys).add_(to_v);
    });
    const bool ends_bucket = &piece == &pieces_.back() || (&piece + 1)->bucket != piece.bucket;
    if (!ends_bucket) return;
    auto& scattering = made.buckets.emplace_back();
    scattering.by_rank = spread_.axis.by_rank(made.sums.to(stay.k.scalar_type()), 2);
    scattering.own = at::empty(scattering.by_rank.sizes().slice(1), scattering.by_rank.options());
    scattering.work = axis_.group->start_reduce_scatter(scattering.own, scattering.by_rank);
    made.sums.reset();
  }

  // Through the projections, and the weights' gradients on their way to their owners.
  void finish(Stay& stay, int64_t visit) {
    auto made = std::move(gradients_.front().second);
    gradients_.erase(gradients_.begin());
    stay.buckets.clear();
    const auto options = stay.k.options().requires_grad(false);
    auto grad_k = at::empty(stay.k.sizes(), options), grad_v = at::empty(stay.v.sizes(), options);
    for (int64_t bucket = 0; bucket < buckets_; ++bucket) {
      auto& scattering = made.buckets[static_cast<size_t>(bucket)];
      scattering.work.wait();
      const auto by_chunk = scattering.own.unflatten(2, {spread_.axis.chunks(), spread_.length});
      grad_k.narrow(3, kv_begin(bucket), kv_count(bucket)).copy_(by_chunk[0]);
      grad_v.narrow(3, kv_begin(bucket), kv_count(bucket)).copy_(by_chunk[1]);
    }
    made.buckets.clear();
    kernels::backward({stay.q, stay.k, stay.v}, {made.q, grad_k, grad_v});
    visit == 0 ? grad_x_.copy_(stay.leaf.grad()) : grad_x_.add_(stay.leaf.grad());
    // Those of the visit before have arrived: the owners received what came first.
    for (auto& [gradients, work] : leaving_) work.wait();
    leaving_.clear();
    for (int64_t i = 0; i < owners_; ++i) {
      PackedWeights::finish(stay.parts[static_cast<size_t>(i)]);
      const auto owner = static_cast<int>(first_owner(visit) + i);
      auto& gradients = stay.gradients[static_cast<size_t>(i)];
      leaving_.emplace_back(gradients, axis_.group->start_reduce(gradients, owner));
      if (owner == axis_.rank) own_ = gradients;
    }
  }

  const at::Tensor &attended_, &statistics_;
  at::Tensor grad_out_, grad_x_, own_;
  std::vector<std::pair<int64_t, Gradients>> gradients_;  // of the visit at hand, and of the one before until it is finished
  std::vector<std::pair<at::Tensor, comm::Work>> leaving_;
};

struct FoldedAttentionFunction : Function<FoldedAttentionFunction, base::shares(WorkKind::attention)> {
  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& /*ties the graph*/, const Kept& kept) {
    context.keep(kept);
    auto [out, attended, statistics] = ForwardTour(kept, x).run();
    context.save({x, attended, statistics});
    return out;
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const DeferredGradients::Scope nothing_is_put_off(nullptr);
    const auto grad_x = BackwardTour(context.kept<Kept>(), saved[0].detach(), saved[1], saved[2], grads[0]).run();
    return {grad_x.to(saved[0].scalar_type())};
  }
};

}  // namespace

void check_folded_heads(int64_t heads, int64_t kv_heads, int64_t head_dim, int ranks) {
  const bool shares_kv = kv_heads % ranks == 0 || (ranks % kv_heads == 0 && kv_heads * head_dim % ranks == 0);
  if (heads % ranks == 0 && shares_kv) return;
  throw base::ConfigError(
      "parallel.tensor_sequence = {}: {} ranks cannot share {} heads with {} kv heads; heads must be a multiple of the ranks, kv heads a "
      "multiple or a divisor of them",
      ranks, ranks, heads, kv_heads);
}

at::Tensor folded_attention(const at::Tensor& x, const AttentionLayer& layer, layers::Sequences& sequences, const TensorSequenceAxis& axis,
                            const ContextAxis& tokens) {
  const auto heads = layer.of_all_ranks();
  check_folded_heads(heads.heads, heads.kv_heads, heads.head_dim, axis.size);
  const AttentionSpread spread(tokens, sequences, x, x.size(1) / tokens.chunks(), heads.rule, heads.window);
  return FoldedAttentionFunction::apply(x, layer.output().value,
                                        Kept{&layer, heads, layer.projection(sequences, x.scalar_type(), axis.size), spread, axis});
}

}  // namespace ingot::parallel
