#include "kernels/gemm_backend.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/cpu_matmul.h"
#include "kernels/gemm_tuning.h"
#include "kernels/matmul.h"

namespace ingot::kernels {
namespace {

std::atomic<GemmBackend> chosen = GemmBackend::standard;

// torch has no function for dense fp32 operands; compiled graphs reach oneDNN through this operator, x [m, k] times weight [n, k]^T.
constexpr const char* kOneDnn = "mkldnn::_linear_pointwise";
using OneDnn = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                          c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

bool has_onednn() {
  static const bool found = at::globalContext().hasMKLDNN() && c10::Dispatcher::singleton().findSchema({kOneDnn, ""}).has_value();
  return found;
}

}  // namespace

const char* name_of(GemmBackend library) {
  switch (library) {
    case GemmBackend::standard: return "default";
    case GemmBackend::ingot: return "ingot";
    case GemmBackend::blas: return "blas";
    case GemmBackend::onednn: return "onednn";
    case GemmBackend::upcast: return "upcast";
    case GemmBackend::cublas: return "cublas";
    case GemmBackend::cublaslt: return "cublaslt";
    case GemmBackend::tuned: return "tuned";
  }
  return "";
}

std::vector<GemmBackend> gemm_backends(at::ScalarType dtype, at::Device device) {
  using enum GemmBackend;
  if (dtype != at::kFloat && dtype != at::kBFloat16) return {standard};
  if (!device::is_cpu(device))
    return gemm_library_of(device) ? std::vector{standard, cublas, cublaslt, tuned} : std::vector{standard, cublas, cublaslt};
  if (dtype == at::kBFloat16 && has_cpu_matmul(dtype)) return {standard, onednn, upcast};
  if (dtype == at::kBFloat16 && cpu_has_bf16_products()) return {standard, upcast};
  std::vector<GemmBackend> all = {standard};
  if (has_cpu_matmul(dtype)) all.push_back(prefers_cpu_matmul(dtype) ? blas : ingot);
  if (has_onednn()) all.push_back(onednn);
  return all;
}

GemmBackend gemm_backend_named(const std::string& name, at::ScalarType dtype, at::Device device) {
  std::vector<std::string> names;
  if (device::is_cpu(device)) {  // runs begin on one CPU and go on on another
    if (name == name_of(GemmBackend::ingot) && has_cpu_matmul(dtype)) return GemmBackend::ingot;
    if (name == name_of(GemmBackend::blas) && dtype == at::kFloat) return GemmBackend::blas;
  }
  for (const auto library : gemm_backends(dtype, device)) {
    if (name == name_of(library)) return library;
    names.emplace_back(name_of(library));
  }
  throw base::ConfigError("train.gemm_backend = \"{}\": with this dtype and device there is {}{}", name, base::join(names, ", "),
                          base::did_you_mean(name, names));
}

void use_gemm_backend(GemmBackend library) {
  if (chosen.exchange(library) == library || !at::globalContext().hasCUDA()) return;
  at::globalContext().setBlasPreferredBackend(library == GemmBackend::cublas     ? at::BlasBackend::Cublas
                                              : library == GemmBackend::cublaslt ? at::BlasBackend::Cublaslt
                                                                                 : at::BlasBackend::Default);
}

GemmBackend gemm_backend() { return chosen; }

at::Tensor multiply_by_onednn(const at::Tensor& a, const at::Tensor& b) {
  if (device::is_counting(a)) {
    const auto out = at::empty({a.size(0), b.size(1)}, a.options());
    device::note("aten::mm", {a, b}, {out}, 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1)));
    return out;
  }
  static const auto multiply = c10::Dispatcher::singleton().findSchemaOrThrow(kOneDnn, "").typed<OneDnn>();
  return multiply.call(a, b.t(), std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace ingot::kernels
