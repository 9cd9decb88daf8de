// rows: tokens; width: of the residual stream.
#include "layers/embedding.h"

#include "kernels/operators/helpers.h"
#include "layers/operators/helpers.h"

namespace ingot::layers {
namespace {

OperatorCall make(const OperatorSizes& s) {
  constexpr int64_t kVocabulary = 4096;
  const auto list = random_parameters({{.name = "table", .shape = {kVocabulary, s.width}, .kind = Parameter::Kind::embedding}}, s);
  OperatorCall call;
  call.inputs = {s.indices(kVocabulary, {1, s.rows}), list->get("table").value};
  call.forward = [list, wide = s.wide()](const TensorList& in) -> TensorList { return {embedding(in[0], list->get("table"), wide)}; };
  return call;
}

}  // namespace

std::vector<Operator> embedding_operators() {
  return {{.name = "embedding", .kind = WorkKind::embedding, .make = make, .measured = [](bool quick) {
             return kernels::grid(kernels::token_rows(quick), kernels::doubling(256, quick ? 1024 : 2048, quick));
           }}};
}

}  // namespace ingot::layers
