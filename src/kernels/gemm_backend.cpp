#include "kernels/gemm_backend.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/gemm_tuning.h"
#include "kernels/matmul.h"

// MKL's, which builds of torch for x86 hold and export. What they take: row-major 101, as it is 111, transposed 112.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                                                             const uint16_t* a, int lda, const uint16_t* b, int ldb, float beta, float* c,
                                                             int ldc);

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

constexpr int kRowMajor = 101, kAsItIs = 111, kTransposed = 112;

// A matrix as BLAS takes it: rows or columns side by side, copied when they are neither.
struct BlasOperand {
  at::Tensor matrix;
  int transpose, stride;

  explicit BlasOperand(const at::Tensor& m) : matrix(m) {
    const auto lies = [](const at::Tensor& t, int64_t line, int64_t unit) { return t.stride(unit) == 1 && t.stride(line) >= t.size(unit); };
    bool is_transposed = !lies(m, 0, 1) && lies(m, 1, 0);
    const bool is_far = std::max(m.stride(0), m.stride(1)) > std::numeric_limits<int>::max();
    if ((!is_transposed && !lies(m, 0, 1)) || is_far) {
      matrix = m.contiguous();
      is_transposed = false;
    }
    transpose = is_transposed ? kTransposed : kAsItIs;
    stride = static_cast<int>(std::max<int64_t>(1, is_transposed ? matrix.stride(1) : std::max(matrix.stride(0), matrix.size(1))));
  }
  const uint16_t* data() const { return static_cast<const uint16_t*>(matrix.const_data_ptr()); }
};

}  // namespace

const char* name_of(GemmBackend library) {
  switch (library) {
    case GemmBackend::standard: return "default";
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
  if (dtype == at::kBFloat16 && cpu_has_bf16_products()) return {standard, upcast};
  return has_onednn() ? std::vector{standard, onednn} : std::vector{standard};
}

GemmBackend gemm_backend_named(const std::string& name, at::ScalarType dtype, at::Device device) {
  std::vector<std::string> names;
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

bool sums_bf16_in_fp32() {
#if defined(__x86_64__)
  // Without AMX MKL may emulate what is slower than fp32.
  static const bool does = cblas_gemm_bf16bf16f32 != nullptr && __builtin_cpu_supports("amx-bf16") != 0;
  return does;
#else
  return false;
#endif
}

void sum_bf16_in_fp32(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool overwrite) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  TORCH_INTERNAL_ASSERT(out.size(0) == m && out.size(1) == n && b.size(0) == k && out.scalar_type() == at::kFloat &&
                        (n <= 1 || out.stride(1) == 1));
  if (m == 0 || n == 0 || k == 0) {
    if (overwrite) out.zero_();
    return;
  }
  const BlasOperand left(a), right(b);
  if (device::counted("aten::mm", {left.matrix, right.matrix}, {out}, 2.0 * static_cast<double>(m * k) * static_cast<double>(n))) return;
  cblas_gemm_bf16bf16f32(kRowMajor, left.transpose, right.transpose, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1,
                         left.data(), left.stride, right.data(), right.stride, overwrite ? 0 : 1, out.data_ptr<float>(),
                         static_cast<int>(std::max(out.stride(0), n)));
}

}  // namespace ingot::kernels
