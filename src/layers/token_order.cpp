#include "layers/token_order.h"

namespace ingot::layers {
namespace {

// Rank `of`'s chunks of whole sequences, and where they lie in its own tensors, as pairs of views of equal shape.
template <class Visit>
void for_each_chunk(const TokenOrder& order, int of, const at::Tensor& whole, const at::Tensor& own, int64_t dim, const Visit& visit) {
  const int64_t length = whole.size(dim) / order.all_chunks();
  for (int i = 0; i < order.chunks(); ++i)
    visit(whole.narrow(dim, order.chunk(of, i) * length, length), own.narrow(dim, i * length, length));
}

}  // namespace

at::Tensor TokenOrder::own_tokens(const at::Tensor& all) const {
  if (!is_on()) return all;
  auto sizes = all.sizes().vec();
  sizes[1] /= size;
  auto own = at::empty(sizes, all.options());
  for_each_chunk(*this, rank, all, own, 1, [](const at::Tensor& whole, at::Tensor part) { part.copy_(whole); });
  return own;
}

at::Tensor TokenOrder::in_order(const at::Tensor& by_rank, int64_t dim) const {
  auto sizes = by_rank.sizes().slice(1).vec();
  sizes[static_cast<size_t>(dim)] *= size;
  auto whole = at::empty(sizes, by_rank.options());
  for (int r = 0; r < size; ++r)
    for_each_chunk(*this, r, whole, by_rank[r], dim, [](at::Tensor to, const at::Tensor& from) { to.copy_(from); });
  return whole;
}

at::Tensor TokenOrder::by_rank(const at::Tensor& in_order, int64_t dim) const {
  auto sizes = in_order.sizes().vec();
  sizes[static_cast<size_t>(dim)] /= size;
  sizes.insert(sizes.begin(), size);
  auto parts = at::empty(sizes, in_order.options());
  for (int r = 0; r < size; ++r)
    for_each_chunk(*this, r, in_order, parts[r], dim, [](const at::Tensor& from, at::Tensor to) { to.copy_(from); });
  return parts;
}

}  // namespace ingot::layers
