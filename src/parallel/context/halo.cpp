#include "parallel/context/halo.h"

#include "layers/autograd.h"

namespace ingot::parallel {
namespace {

using layers::Context, layers::Function, layers::TensorList, layers::Work;

// The last tokens of each chunk travel to the rank that holds the next one: give(i) is what leaves this rank's chunk i, take(i)
// where what comes in front of it goes. `backwards`: from each chunk to the one before it.
template <class Give, class Take>
void shift(const ContextAxis& axis, bool backwards, const Give& give, const Take& take) {
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
    ContextAxis axis;
    int64_t halo;
  };
  static at::Tensor forward(Context& context, const at::Tensor& x, const ContextAxis* axis, int64_t halo) {
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

at::Tensor with_halo(const at::Tensor& x, const ContextAxis& axis, int64_t halo) { return HaloFunction::apply(x, &axis, halo); }

}  // namespace ingot::parallel
