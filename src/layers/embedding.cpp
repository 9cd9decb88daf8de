#include "layers/embedding.h"

#include "layers/autograd.h"

namespace ingot::layers {
namespace {

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static Variable forward(AutogradContext* context, const Variable& table_value, const at::Tensor& ids, Parameter* table,
                          at::ScalarType dtype) {
    remember(context, "table", table);
    context->save_for_backward({ids});
    return table_value.index_select(0, ids.reshape(-1)).to(dtype).view({ids.size(0), ids.size(1), -1});
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto* table = remembered<Parameter>(context, "table");
    const auto ids = context->get_saved_variables()[0].reshape(-1);
    bool overwrite = false;
    auto& buffer = table->gradient_buffer(overwrite);
    if (overwrite) buffer.zero_();
    buffer.index_add_(0, ids, as_rows(grads[0]).to(buffer.scalar_type()));
    return {Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, Parameter& table, at::ScalarType dtype) {
  return EmbeddingFunction::apply(table.value, ids, &table, dtype);
}

}  // namespace ingot::layers
