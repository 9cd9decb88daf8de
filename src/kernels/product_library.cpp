#include "kernels/product_library.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/text.h"
#include "kernels/matmul.h"

namespace ingot::kernels {
namespace {

std::atomic<ProductLibrary> chosen = ProductLibrary::usual;

// torch has no function for dense fp32 operands; compiled graphs reach oneDNN through this operator, x [m, k] times weight [n, k]^T.
constexpr const char* kOneDnn = "mkldnn::_linear_pointwise";
using OneDnn = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                          c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

bool has_onednn() {
  static const bool found = at::globalContext().hasMKLDNN() && c10::Dispatcher::singleton().findSchema({kOneDnn, ""}).has_value();
  return found;
}

}  // namespace

const char* name_of(ProductLibrary library) {
  switch (library) {
    case ProductLibrary::usual: return "usual";
    case ProductLibrary::onednn: return "onednn";
    case ProductLibrary::widened: return "widened";
    case ProductLibrary::cublas: return "cublas";
    case ProductLibrary::cublaslt: return "cublaslt";
  }
  return "";
}

std::vector<ProductLibrary> product_libraries(at::ScalarType dtype, at::Device device) {
  using enum ProductLibrary;
  if (dtype != at::kFloat && dtype != at::kBFloat16) return {usual};
  if (!device.is_cpu()) return {usual, cublas, cublaslt};
  if (dtype == at::kBFloat16 && cpu_has_bf16_products()) return {usual, widened};
  return has_onednn() ? std::vector{usual, onednn} : std::vector{usual};
}

ProductLibrary product_library_named(const std::string& name, at::ScalarType dtype, at::Device device) {
  std::vector<std::string> names;
  for (const auto library : product_libraries(dtype, device)) {
    if (name == name_of(library)) return library;
    names.emplace_back(name_of(library));
  }
  throw base::ConfigError("train.products = \"{}\": with this dtype and device there is {}{}", name, base::join(names, ", "),
                          base::did_you_mean(name, names));
}

void use_product_library(ProductLibrary library) {
  if (chosen.exchange(library) == library || !at::globalContext().hasCUDA()) return;
  at::globalContext().setBlasPreferredBackend(library == ProductLibrary::cublas     ? at::BlasBackend::Cublas
                                              : library == ProductLibrary::cublaslt ? at::BlasBackend::Cublaslt
                                                                                    : at::BlasBackend::Default);
}

ProductLibrary product_library() { return chosen; }

at::Tensor multiply_by_onednn(const at::Tensor& a, const at::Tensor& b) {
  static const auto multiply = c10::Dispatcher::singleton().findSchemaOrThrow(kOneDnn, "").typed<OneDnn>();
  return multiply.call(a, b.t(), std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace ingot::kernels
