#include "layers/attention.h"

#include "kernels/attention.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

struct AttentionFunction : Function<AttentionFunction> {
  static Variable forward(AutogradContext* context, const Variable& q, const Variable& k, const Variable& v, double scale,
                          const std::optional<at::Tensor>& visible_from, int64_t query_offset) {
    const kernels::AttentionMask mask{visible_from.value_or(at::Tensor()), query_offset};
    auto [out, log_sum_exp] = kernels::attention_forward(q, k, v, scale, mask);
    context->save_for_backward({q, k, v, out, log_sum_exp, mask.visible_from});
    context->saved_data["scale"] = scale;
    context->saved_data["query_offset"] = query_offset;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const kernels::AttentionMask mask{saved[5], context->saved_data["query_offset"].toInt()};
    auto [grad_q, grad_k, grad_v] = kernels::attention_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                                                                context->saved_data["scale"].toDouble(), mask);
    return {grad_q, grad_k, grad_v, Variable(), Variable(), Variable()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t needed = length + k.size(1);
  if (!keys.defined() || keys.size(1) < needed) {
    auto sizes = k.sizes().vec();
    sizes[1] = std::max<int64_t>(2 * length, needed + 63);
    auto larger_keys = at::empty(sizes, k.options()), larger_values = at::empty(sizes, v.options());
    if (length > 0) {
      larger_keys.narrow(1, 0, length).copy_(keys.narrow(1, 0, length));
      larger_values.narrow(1, 0, length).copy_(values.narrow(1, 0, length));
    }
    keys = larger_keys;
    values = larger_values;
  }
  keys.narrow(1, length, k.size(1)).copy_(k);
  values.narrow(1, length, v.size(1)).copy_(v);
  length = needed;
  return {keys.narrow(1, 0, length), values.narrow(1, 0, length)};
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, int64_t window, Sequences& sequences,
                     KeyValueCache* cache) {
  auto keys = k, values = v;
  if (cache) std::tie(keys, values) = cache->append(k, v);
  const auto from = sequences.visible_from(window);
  const auto visible_from = from.defined() ? std::optional(from) : std::nullopt;
  auto out = AttentionFunction::apply(q, keys, values, scale, visible_from, sequences.offset());
  return out.flatten(2);
}

}  // namespace ingot::layers
