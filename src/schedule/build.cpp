#include "schedule/build.h"

#include "schedule/script.h"

namespace ingot::schedule {
namespace {

// Rows that a rank has between layers.
int64_t rows_between(const Layout& layout) {
  const bool shares = layout.method != Method::tp;
  const int64_t ranks = layout.method == Method::tp_sp ? layout.sequence_size() : shares ? layout.ranks : 1;
  return layout.sizes.tokens() / ranks;
}

// The layer, or several of it one after the other, on one rank.
class RankBuilder {
 public:
  RankBuilder(const Layout& layout, int rank) : script_(layout, rank), bytes_(rows_between(layout) * layout.sizes.hidden * script_.e()) {
    const bool is_folded = layout.method == Method::tsp && layout.ranks > 1;
    for (int block = 0; block < layout.blocks; ++block) {
      if (layout.layer != Layer::mlp) parts_.push_back(is_folded ? folded_attention(script_) : sharded_attention(script_));
      if (layout.layer == Layer::mlp || layout.layer == Layer::block)
        parts_.push_back(is_folded ? folded_mlp(script_) : sharded_mlp(script_));
    }
    inputs_.resize(parts_.size());
    normed_ = layout.layer == Layer::block;
  }

  OperationList run() && {
    const auto& layout = script_.layout();
    const auto x = script_.list().input(bytes_);
    const auto out = run_forward(x);
    script_.list().keep(out);
    const int end_of_forward = script_.list().size();
    if (layout.pass != Pass::forward) script_.list().keep(run_backward(script_.list().input(bytes_)));
    if (layout.pass == Pass::backward) script_.list().drop_before(end_of_forward);
    return std::move(script_.list());
  }

 private:
  Buffer run_forward(Buffer x) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      inputs_[i] = x;
      x = forward_part(i, x, i + 1 < parts_.size() ? parts_[i + 1].get() : nullptr);
    }
    return x;
  }

  Buffer run_backward(Buffer grad) {
    const size_t per_block = normed_ ? 2 : 1;
    for (size_t i = parts_.size(); i-- > 0;) {
      const bool ends_block = (i + 1) % per_block == 0;
      if (script_.layout().recomputes && ends_block) {
        auto x = inputs_[i + 1 - per_block];
        for (size_t again = i + 1 - per_block; again <= i; ++again) {
          inputs_[again] = x;
          x = forward_part(again, x, again < i ? parts_[again + 1].get() : nullptr);
        }
      }
      grad = backward_part(i, grad, i > 0 ? parts_[i - 1].get() : nullptr);
    }
    return grad;
  }

  static Meanwhile prefetch_of(Part* part) {
    return [part] {
      if (part) part->prefetch();
    };
  }

  Buffer forward_part(size_t i, Buffer x, Part* next) {
    if (!normed_) return parts_[i]->forward(x, prefetch_of(next));
    const auto normed = script_.compute("norm", Move{2 * bytes_}, {x}, bytes_);
    const auto out = parts_[i]->forward(normed, prefetch_of(next));
    return script_.compute("add to residual", Move{3 * bytes_}, {x, out}, bytes_);
  }

  Buffer backward_part(size_t i, Buffer grad, Part* next) {
    const auto to_input = parts_[i]->backward(grad, prefetch_of(next));
    if (!normed_) return to_input;
    return script_.compute("norm back, add", Move{4 * bytes_}, {to_input, inputs_[i], grad}, bytes_);
  }

  Script script_;
  int64_t bytes_;
  bool normed_ = false;
  std::vector<std::unique_ptr<Part>> parts_;
  Script::Buffers inputs_;
};

}  // namespace

OperationList build_rank(const Layout& layout, int rank) {
  check(layout);
  return RankBuilder(layout, rank).run();
}

Program build(const Layout& layout) {
  Program program;
  for (int rank = 0; rank < layout.ranks; ++rank) program.ranks.push_back(build_rank(layout, rank));
  return program;
}

int64_t weights_of_rank(const Layout& layout) {
  const auto& s = layout.sizes;
  const int64_t value_dim = layout.is_linear() && s.value_dim > 0 ? s.value_dim : s.head_dim;
  const int64_t kv_heads = layout.is_linear() ? s.heads : s.kv_heads;
  const int64_t attention = s.hidden * (s.heads * (s.head_dim + value_dim) + kv_heads * (s.head_dim + value_dim));
  int64_t elements = 0;
  if (layout.layer != Layer::mlp) elements += attention;
  if (layout.layer == Layer::mlp || layout.layer == Layer::block) elements += s.mlp_weights();
  const bool is_cut_by_all = layout.method == Method::tsp || layout.method == Method::fsdp_cp;
  return layout.blocks * elements / (is_cut_by_all ? layout.ranks : layout.tensor_size());
}

}  // namespace ingot::schedule
