#include "layers/sequence_axis.h"

#include "base/error.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

// Rank `of`'s chunks of whole sequences, and where they lie in its own tensors, as pairs of views of equal shape.
template <class Visit>
void for_each_chunk(const SequenceAxis& axis, int of, const at::Tensor& whole, const at::Tensor& own, int64_t dim, const Visit& visit) {
  const int64_t length = whole.size(dim) / axis.all_chunks();
  for (int i = 0; i < axis.chunks(); ++i) visit(whole.narrow(dim, axis.chunk(of, i) * length, length), own.narrow(dim, i * length, length));
}

// The last tokens of each chunk travel to the rank that holds the next one: give(i) is what leaves this rank's chunk i, take(i)
// where what comes in front of it goes. `backwards`: from each chunk to the one before it.
template <class Give, class Take>
void shift(const SequenceAxis& axis, bool backwards, const Give& give, const Take& take) {
  std::vector<comm::Work> works;
  std::vector<at::Tensor> sent;                             // alive until they are gone
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // message, where it goes
  const auto index = [&](int chunk) { return chunk == axis.chunk(axis.rank, 0) ? 0 : 1; };
  // Two ranks may share two borders: both go through them in the same order.
  for (int border = 1; border < axis.all_chunks(); ++border) {
    const int from = backwards ? border : border - 1, to = backwards ? border - 1 : border;
    const bool gives = axis.owner(from) == axis.rank, takes = axis.owner(to) == axis.rank;
    if (gives && takes) {
      take(index(to)).copy_(give(index(from)));
    } else if (gives) {
      sent.push_back(give(index(from)).contiguous());
      works.push_back(axis.group->start_send(sent.back(), axis.owner(to)));
    } else if (takes) {
      const auto target = take(index(to));
      received.emplace_back(at::empty(target.sizes(), target.options()), target);
      works.push_back(axis.group->start_receive(received.back().first, axis.owner(from)));
    }
  }
  for (auto& work : works) work.wait();
  for (auto& [message, target] : received) target.copy_(message);
}

struct HaloFunction : Function<HaloFunction, Work::Rule::passes> {
  struct Kept {
    SequenceAxis axis;
    int64_t halo;
  };
  static at::Tensor forward(Context& context, const at::Tensor& x, const SequenceAxis* axis, int64_t halo) {
    context.keep(Kept{*axis, halo});
    const int64_t batch = x.size(0), chunks = axis->chunks(), length = x.size(1) / chunks;
    auto out = at::empty({batch, chunks, halo + length, x.size(2)}, x.options());
    const auto own = x.unflatten(1, {chunks, length});
    out.narrow(2, halo, length).copy_(own);
    for (int i = 0; i < chunks; ++i)
      if (axis->chunk(axis->rank, i) == 0) out.select(1, i).narrow(1, 0, halo).zero_();
    shift(
        *axis, false, [&](int i) { return own.select(1, i).narrow(1, length - halo, halo); },
        [&](int i) { return out.select(1, i).narrow(1, 0, halo); });
    return out.flatten(0, 1);
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& [axis, kept_halo] = context.kept<Kept>();
    const int64_t halo = kept_halo;
    const auto grad = grads[0].unflatten(0, {-1, axis.chunks()});  // [batch, chunks, halo + length, width]
    const int64_t length = grad.size(2) - halo;
    auto own = grad.narrow(2, halo, length).contiguous();
    auto borders = at::zeros({grad.size(0), axis.chunks(), halo, grad.size(3)}, grad.options());
    shift(
        axis, true, [&](int i) { return grad.select(1, i).narrow(1, 0, halo); }, [&](int i) { return borders.select(1, i); });
    own.narrow(2, length - halo, halo).add_(borders);
    return {own.flatten(1, 2)};
  }
};

}  // namespace

SequenceAxis::Method context_method_from_name(const std::string& name) {
  if (name == "ring") return SequenceAxis::Method::ring;
  if (name == "allgather") return SequenceAxis::Method::allgather;
  if (name == "ulysses") return SequenceAxis::Method::ulysses;
  throw base::ConfigError("unknown sequence method '{}'; it is ring, allgather or ulysses", name);
}

SequenceAxis::States state_method_from_name(const std::string& name) {
  if (name == "lasp2") return SequenceAxis::States::lasp2;
  if (name == "lasp1") return SequenceAxis::States::lasp1;
  if (name == "zeco") return SequenceAxis::States::zeco;
  throw base::ConfigError("unknown method '{}' for the states of linear attention; it is lasp2, lasp1 or zeco", name);
}

at::Tensor SequenceAxis::own_tokens(const at::Tensor& all) const {
  if (!is_on()) return all;
  auto sizes = all.sizes().vec();
  sizes[1] /= size;
  auto own = at::empty(sizes, all.options());
  for_each_chunk(*this, rank, all, own, 1, [](const at::Tensor& whole, at::Tensor part) { part.copy_(whole); });
  return own;
}

at::Tensor SequenceAxis::in_order(const at::Tensor& by_rank, int64_t dim) const {
  auto sizes = by_rank.sizes().slice(1).vec();
  sizes[static_cast<size_t>(dim)] *= size;
  auto whole = at::empty(sizes, by_rank.options());
  for (int r = 0; r < size; ++r)
    for_each_chunk(*this, r, whole, by_rank[r], dim, [](at::Tensor to, const at::Tensor& from) { to.copy_(from); });
  return whole;
}

at::Tensor SequenceAxis::by_rank(const at::Tensor& in_order, int64_t dim) const {
  auto sizes = in_order.sizes().vec();
  sizes[static_cast<size_t>(dim)] /= size;
  sizes.insert(sizes.begin(), size);
  auto parts = at::empty(sizes, in_order.options());
  for (int r = 0; r < size; ++r)
    for_each_chunk(*this, r, in_order, parts[r], dim, [](const at::Tensor& from, at::Tensor to) { to.copy_(from); });
  return parts;
}

at::Tensor with_halo(const at::Tensor& x, const SequenceAxis& axis, int64_t halo) { return HaloFunction::apply(x, &axis, halo); }

}  // namespace ingot::layers
