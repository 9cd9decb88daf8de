// LASP-2 (arXiv 2502.07563), with decays as its paper does not have them: one all-gather of what each rank's tokens add to the state, and
// of their map where tokens decide about it, while each rank works on its own; then every rank folds the maps before it. Backward the same
// with the gradients of states. The transitions of all ranks are kept for backward.
#include <limits>

#include "parallel/context/state_gather.h"

namespace ingot::parallel {
namespace {

using kernels::LinearAttentionMap;

// The part of a map that its owner alone knows, side by side, and back.
at::Tensor packed(const LinearAttentionMap& map, bool decay_is_known) {
  std::vector<at::Tensor> parts = {map.added.flatten(2)};
  if (map.matrix.defined()) parts.push_back(map.matrix.flatten(2));
  else if (!decay_is_known) parts.push_back(map.log_decay);
  return device::cat(parts, 2).contiguous();
}

LinearAttentionMap unpacked(const at::Tensor& message, const LinearAttentionMap& like) {
  const int64_t state = like.added.size(2) * like.added.size(3);
  LinearAttentionMap map{message.narrow(2, 0, state).view(like.added.sizes()), like.log_decay, like.matrix};
  const auto rest = message.narrow(2, state, message.size(2) - state);
  if (like.matrix.defined()) map.matrix = rest.view(like.matrix.sizes());
  else if (rest.size(2) > 0) map.log_decay = rest;
  return map;
}

// The decay of rank `of`'s run where all know it: without documents that of every run, which are equally long.
LinearAttentionMap with_known_decay(LinearAttentionMap map, const at::Tensor& without_documents, const at::Tensor& begins) {
  map.log_decay = without_documents;
  if (begins.defined()) map.log_decay = without_documents.masked_fill(begins.view({-1, 1, 1}), -std::numeric_limits<double>::infinity());
  return map;
}

// Rank `of`'s map, with its decay where that was not sent.
LinearAttentionMap map_of(const StateRun& run, const LinearAttentionMap& map, int rank) {
  if (!run.decay_is_known) return map;
  const auto options = map.added.options();
  auto decay = at::zeros({map.added.size(0), map.added.size(1), 1}, options);
  if (run.constant_gate.defined()) decay = decay + (run.constant_gate.to(options.dtype()) * run.tokens).view({1, -1, 1});
  return with_known_decay(map, decay, run.begins[static_cast<size_t>(rank)]);
}

class Lasp2 final : public StateMethod {
 public:
  const char* name() const override { return "lasp2"; }

  Before forward(const ContextAxis& axis, const StateRun& run, const LinearAttentionMap& own,
                 const std::function<void()>& meanwhile) const override {
    StateGather gather(axis, packed(own, run.decay_is_known));
    meanwhile();
    const auto all = gather.wait();
    const int64_t state_elements = own.added.size(2) * own.added.size(3);
    Before before{{}, all.narrow(3, state_elements, all.size(3) - state_elements).clone()};
    for (int rank = 0; rank < axis.rank; ++rank) {
      const auto map = map_of(run, unpacked(all[rank], own), rank);
      before.state = before.state.defined() ? kernels::apply(map, before.state) : map.added.clone();
    }
    return before;
  }

  // Through the maps of the ranks behind this one.
  at::Tensor backward(const ContextAxis& axis, const StateRun& run, const at::Tensor& own, const at::Tensor& /*log_decay*/,
                      const at::Tensor& transitions, const std::function<void()>& meanwhile) const override {
    StateGather gather(axis, own);
    meanwhile();
    const auto all = gather.wait();
    at::Tensor behind;
    for (int rank = axis.size - 1; rank > axis.rank; --rank) {
      if (!behind.defined()) {
        behind = all[rank].clone();
        continue;
      }
      LinearAttentionMap map{all[rank], {}, {}};
      if (run.is_delta) map.matrix = transitions[rank].view({all.size(1), all.size(2), all.size(3), all.size(3)});
      else map.log_decay = transitions[rank];
      behind = kernels::apply_transposed(map_of(run, map, rank), behind) + all[rank];
    }
    return behind;
  }
};

const Lasp2 object;

}  // namespace

constinit const StateMethod& kLasp2 = object;

}  // namespace ingot::parallel
