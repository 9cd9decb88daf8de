#include "parallel/tensor/vocabulary.h"

#include "kernels/cross_entropy.h"

namespace ingot::parallel {

at::Tensor cross_entropy_over_ranks(at::Tensor logits, const at::Tensor& labels, const layers::Parameter& weight, double scale,
                                    const at::Tensor& gradient, double z_loss, comm::Group& group) {
  const auto range = weight.part[0][0];
  const auto ignored = labels.lt(0);
  const auto own = at::where(labels.ge(range.begin).logical_and(labels.lt(range.end)), labels - range.begin, -1);
  const auto statistics = kernels::cross_entropy_statistics(logits, own, gradient.defined());
  auto all = at::empty({group.size(), labels.size(0), 3}, statistics.options());
  group.all_gather(all, statistics);
  const auto [losses, factors] = kernels::combine_statistics(all, group.rank(), z_loss);
  if (gradient.defined()) kernels::cross_entropy_gradient(logits, own, factors, ignored, scale, gradient);
  return losses.masked_fill(ignored, 0);
}

at::Tensor gather_vocabulary(const at::Tensor& own, comm::Group& group) {
  auto shape = own.sizes().vec();
  shape.insert(shape.begin(), group.size());
  const auto by_rank = at::empty(shape, own.options());
  group.all_gather(by_rank, own.contiguous());
  return by_rank.movedim(0, -2).flatten(-2);
}

}  // namespace ingot::parallel
