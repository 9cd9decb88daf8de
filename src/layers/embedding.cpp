#include "layers/embedding.h"

#include "layers/autograd.h"

namespace ingot::layers {
namespace {

// Rows of what is here of the table, and which tokens are elsewhere (undefined: none).
std::pair<at::Tensor, at::Tensor> rows_of(const at::Tensor& ids, const Parameter& table) {
  if (table.part.empty()) return {ids, {}};
  const auto range = table.part[0][0];
  const auto elsewhere = ids.lt(range.begin).logical_or_(ids.ge(range.end));
  return {(ids - range.begin).masked_fill_(elsewhere, 0), elsewhere};
}

struct EmbeddingFunction : Function<EmbeddingFunction, WorkKind::embedding> {
  static at::Tensor forward(Context& context, const at::Tensor& table_value, const at::Tensor& ids, Parameter* table,
                            at::ScalarType dtype) {
    context.keep(table);
    const auto [rows, elsewhere] = rows_of(ids.reshape(-1), *table);
    context.save({rows, elsewhere});
    auto out = table_value.index_select(0, rows).to(dtype);
    if (elsewhere.defined()) out.masked_fill_(elsewhere.unsqueeze(1), 0);
    return out.view({ids.size(0), ids.size(1), -1});
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    auto* table = context.kept<Parameter*>();
    const auto saved = context.saved();
    bool overwrite = false;
    auto& buffer = table->gradient_buffer(overwrite);
    if (overwrite) buffer.zero_();
    auto rows = as_rows(grads[0]).to(buffer.scalar_type());
    if (saved[1].defined()) rows = rows.masked_fill(saved[1].unsqueeze(1), 0);
    buffer.index_add_(0, saved[0], rows);
    return {};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, Parameter& table, at::ScalarType dtype) {
  return EmbeddingFunction::apply(table.value, ids, &table, dtype);
}

}  // namespace ingot::layers
