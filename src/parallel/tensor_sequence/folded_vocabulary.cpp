#include "parallel/tensor_sequence/folded_vocabulary.h"

#include <ATen/core/grad_mode.h>

#include <optional>

#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cross_entropy.h"
#include "kernels/matmul.h"
#include "layers/autograd.h"
#include "layers/head.h"
#include "parallel/rotation.h"

namespace ingot::parallel {
namespace {

using layers::as_rows, layers::Context, layers::Function, layers::head_chunk_rows, layers::Parameter, layers::TensorList, layers::WorkKind;

// visit(owner, its rows of the table [rows, width]) for every owner, the own rows first, while the next ones arrive.
template <class Visit>
void for_each_part(const at::Tensor& own, const TensorSequenceAxis& axis, const Visit& visit) {
  auto here = own.detach();
  for (int step = 0; step < axis.size; ++step) {
    std::optional<Rotation> rotation;
    if (step + 1 < axis.size) rotation.emplace(*axis.group, here, at::empty_like(here));
    visit((axis.rank + axis.size - step) % axis.size, here);
    if (rotation) here = rotation->wait();
  }
}

// Gradients that follow the parts round. `add(owner)` in the order of for_each_part; the own part's waits for what the others have.
class GradientsBehind {
 public:
  GradientsBehind(const Parameter& table, const TensorSequenceAxis& axis) : table_(table), axis_(axis) {}
  at::Tensor empty() const {
    return at::empty(table_.value.sizes(), table_.value.options().dtype(table_.wide_type()).requires_grad(false));
  }
  void add(const at::Tensor& gradient) {
    if (step_ == 0) own_ = gradient;
    if (step_ > 1) gradient.add_(arriving_->wait());
    if (step_ > 0) arriving_.emplace(*axis_.group, gradient, empty());
    ++step_;
  }
  /// Of the own part, from all ranks' tokens.
  at::Tensor sum() { return own_.add_(arriving_->wait()); }

 private:
  const Parameter& table_;
  const TensorSequenceAxis& axis_;
  int step_ = 0;
  at::Tensor own_;
  std::optional<Rotation> arriving_;
};

// The indices within a part of `rows` rows, -1 for those elsewhere.
at::Tensor within(const at::Tensor& ids, int owner, int64_t rows) {
  const int64_t begin = owner * rows;
  return at::where(ids.ge(begin).logical_and(ids.lt(begin + rows)), ids - begin, -1);
}

// The positions of the tokens whose rows a part holds: on a counting device as many as an even share.
at::Tensor positions_within(const at::Tensor& ids, int owner, int64_t rows, const TensorSequenceAxis& axis) {
  if (device::is_counting(ids)) return at::empty({ids.numel() / axis.size}, ids.options());
  return within(ids, owner, rows).ge(0).nonzero().squeeze(1);
}

// On a GPU every token is looked up in every part, since the number of those that it holds would make the host wait.
struct FoldedEmbeddingFunction : Function<FoldedEmbeddingFunction, WorkKind::embedding> {
  struct Kept {
    Parameter* table;
    TensorSequenceAxis axis;
  };
  static at::Tensor forward(Context& context, const at::Tensor& table_value, const at::Tensor& ids, const Kept& kept,
                            at::ScalarType dtype) {
    context.keep(kept);
    const auto flat = ids.reshape(-1);
    context.save({flat});
    auto out = at::zeros({flat.size(0), table_value.size(1)}, table_value.options().dtype(dtype).requires_grad(false));
    for_each_part(table_value, kept.axis, [&](int owner, const at::Tensor& part) {
      if (device::is_gpu(flat)) {
        const auto own = within(flat, owner, part.size(0));
        out.add_(part.index_select(0, own.clamp_min(0)).to(dtype).masked_fill_(own.lt(0).unsqueeze(1), 0));
        return;
      }
      const auto here = positions_within(flat, owner, part.size(0), kept.axis);
      out.index_copy_(0, here, part.index_select(0, flat.index_select(0, here) - owner * part.size(0)).to(dtype));
    });
    return out.view({ids.size(0), ids.size(1), -1});
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& [table, axis] = context.kept<Kept>();
    const auto flat = context.saved()[0];
    GradientsBehind gradients(*table, axis);
    const auto rows = as_rows(grads[0]).to(table->wide_type());
    for (int step = 0; step < axis.size; ++step) {
      const int owner = (axis.rank + axis.size - step) % axis.size;
      const int64_t begin = owner * table->value.size(0);
      auto part = gradients.empty().zero_();
      if (device::is_gpu(flat)) {
        const auto own = within(flat, owner, table->value.size(0));
        part.index_add_(0, own.clamp_min(0), rows.masked_fill(own.lt(0).unsqueeze(1), 0));
      } else {
        const auto here = positions_within(flat, owner, table->value.size(0), axis);
        part.index_add_(0, flat.index_select(0, here) - begin, rows.index_select(0, here));
      }
      gradients.add(part);
    }
    table->accumulate(gradients.sum());
    return {};
  }
};

struct FoldedHeadLossFunction : Function<FoldedHeadLossFunction, WorkKind::head> {
  static at::Tensor forward(Context& context, const at::Tensor& hidden, const at::Tensor& table_value, Parameter* table,
                            const at::Tensor& targets, double scale, bool want_gradient, const TensorSequenceAxis& axis,
                            const layers::HeadRule& rule) {
    const auto rows = as_rows(hidden), labels = targets.reshape(-1), ignored = labels.lt(0);
    const auto wide = table->wide_type();
    const int64_t count = rows.size(0), part_rows = table_value.size(0), chunk = head_chunk_rows(count, part_rows, device::is_gpu(hidden));
    const auto for_chunks = [&](const auto& visit) {
      for (int64_t from = 0; from < count; from += chunk) visit(from, std::min(chunk, count - from));
    };
    auto statistics = at::empty({axis.size, count, 3}, rows.options().dtype(wide));
    for_each_part(table_value, axis, [&](int owner, const at::Tensor& part) {
      const auto own = within(labels, owner, part_rows);
      for_chunks([&](int64_t from, int64_t size) {
        const auto logits = kernels::matmul(rows.narrow(0, from, size), part.t(), wide);
        layers::cap_logits(logits, rule.logit_cap, false);
        statistics[owner].narrow(0, from, size).copy_(kernels::cross_entropy_statistics(logits, own.narrow(0, from, size), false));
      });
    });
    const auto losses = kernels::combine_statistics(statistics, 0).first.masked_fill(ignored, 0);
    if (rule.losses.defined()) rule.losses.view({-1}).copy_(losses);
    if (!want_gradient) return losses.sum() * scale;

    auto grad_hidden = at::empty({count, rows.size(1)}, rows.options().dtype(wide));
    GradientsBehind gradients(*table, axis);
    for_each_part(table_value, axis, [&](int owner, const at::Tensor& part) {
      const auto own = within(labels, owner, part_rows), factors = kernels::combine_statistics(statistics, owner, rule.z_loss).second;
      auto gradient = gradients.empty();
      for_chunks([&](int64_t from, int64_t size) {
        const auto some = rows.narrow(0, from, size);
        const auto some_labels = own.narrow(0, from, size);
        auto logits = kernels::matmul(some, part.t(), wide);
        const auto slope = layers::cap_logits(logits, rule.logit_cap, true);
        kernels::cross_entropy_statistics(logits, some_labels, true);
        auto of_logits = slope.defined() || wide == rows.scalar_type() ? logits : at::empty_like(logits, rows.options());
        kernels::cross_entropy_gradient(logits, some_labels, factors.narrow(0, from, size), ignored.narrow(0, from, size), scale,
                                        of_logits);
        if (slope.defined()) of_logits = logits.mul_(slope).to(rows.scalar_type());
        kernels::matmul_into(grad_hidden.narrow(0, from, size), of_logits, part, /*overwrite=*/owner == axis.rank);
        kernels::matmul_into(gradient, of_logits.t(), some, /*overwrite=*/from == 0);
      });
      gradients.add(gradient);
    });
    table->accumulate(gradients.sum());
    context.save({grad_hidden.to(hidden.scalar_type()).view(hidden.sizes())});
    return losses.sum() * scale;
  }
  static TensorList backward(Context& context, const TensorList&) { return {context.saved()[0]}; }
};

}  // namespace

at::Tensor folded_embedding(const at::Tensor& ids, Parameter& table, at::ScalarType dtype, const TensorSequenceAxis& axis) {
  return FoldedEmbeddingFunction::apply(table.value, ids, FoldedEmbeddingFunction::Kept{&table, axis}, dtype);
}

at::Tensor folded_head_loss(const at::Tensor& hidden, Parameter& table, const at::Tensor& targets, double scale,
                            const TensorSequenceAxis& axis, const layers::HeadRule& rule) {
  return FoldedHeadLossFunction::apply(hidden, table.value, &table, targets, scale, at::GradMode::is_enabled(), axis, rule);
}

}  // namespace ingot::parallel
