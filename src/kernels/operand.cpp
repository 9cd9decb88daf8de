#include "kernels/operand.h"

#include "base/work_scope.h"
#include "device/device.h"
#include "device/gpu_library.h"
#include "device/stream.h"
#include "device/virtual_device.h"
#include "kernels/cpu/rows_fp8.h"
#include "kernels/cpu_matmul.h"
#include "kernels/matmul.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char* kSymbol = "ingot_fp8_codes";
constexpr int64_t kStep = 16;  // elements: rows begin at multiples of 16 bytes

// NVIDIA's from Ada on; AMD's MI300X has formats of its own.
bool has_fp8_gemms(at::Device device) {
  if (device::is_virtual(device)) return true;
  auto* const has = device::gpu_function<int(int)>("ingot_has_fp8_gemms");
  return has && has(device.index()) == 1;
}

bool takes_codes(const at::Tensor& x, Quantization quantization, OperandKind kind, int64_t summed) {
  const bool may_have_any_rows = summed == 1 && kind != OperandKind::weight;
  return quantization == Quantization::fp8 && device::is_gpu(x) && x.numel() > 0 && x.size(1) % kStep == 0 &&
         (x.size(0) % kStep == 0 || may_have_any_rows) && takes_rows(x, kSymbol) && has_fp8_gemms(x.device());
}

Operand in_codes(const at::Tensor& x_in, OperandKind kind, int64_t summed) {
  const auto x = x_in.contiguous();
  const bool is_e5m2 = kind == OperandKind::gradient, is_transposed = summed == 0;
  const auto largest = largest_magnitude(x);
  auto codes = at::empty(is_transposed ? at::IntArrayRef{x.size(1), x.size(0)} : x.sizes(),
                         x.options().dtype(is_e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn));
  auto scale = at::empty({}, x.options().dtype(at::kFloat));
  cpu::Fp8CodesProblem p{};
  p.rows = x.size(0), p.width = x.size(1);
  p.is_bf16 = x.scalar_type() == at::kBFloat16, p.is_e5m2 = is_e5m2, p.is_transposed = is_transposed;
  const auto bind = [](cpu::Fp8CodesProblem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.codes = static_cast<uint8_t*>(address(t.out[0]));
    p.largest = numbers(t.more[0]);
    p.scale = numbers(t.more[1]);
  };
  run_rows(RowCall<cpu::Fp8CodesProblem>{"fp8_codes", kSymbol, {{x}, {codes}, {largest, scale}}, p, bind}, cpu::fp8_codes);
  return {codes, scale};
}

at::Tensor numbers_of(const Operand& x) { return x.has_codes() ? x.values.to(at::kFloat).mul_(x.scale).to(at::kBFloat16) : x.values; }

at::Tensor multiply_codes(const Operand& a, const Operand& b, at::ScalarType dtype) {
  const auto multiply = [dtype](const at::Tensor& left, const at::Tensor& right, const at::Tensor& of_left, const at::Tensor& of_right) {
    return at::_scaled_mm(left, right.t(), of_left, of_right, {}, {}, dtype);
  };
  if (!device::is_virtual(a.values.device())) return multiply(a.values, b.values, a.scale, b.scale);
  auto out = at::empty({a.values.size(0), b.values.size(0)}, a.scale.options().dtype(dtype));
  device::note("scaled_gemm", {a.values, b.values.t()}, {out},
               2.0 * static_cast<double>(a.values.numel()) * static_cast<double>(out.size(1)));
  if (!device::is_counting(out))
    device::launch({a.values, b.values, a.scale, b.scale, out},
                   [multiply](const auto& host) { host[4].copy_(multiply(host[0], host[1], host[2], host[3])); });
  return out;
}

}  // namespace

Operand operand_of(const at::Tensor& x, std::optional<Quantization> quantization, OperandKind kind, int64_t summed) {
  if (quantization && takes_codes(x, *quantization, kind, summed)) return in_codes(x, kind, summed);
  const auto values = quantization ? quantize(x, *quantization, kind, summed) : x;
  return {summed == 0 ? values.t() : values, {}};
}

at::Tensor matmul(const Operand& a, const Operand& b, at::ScalarType dtype) {
  if (a.has_codes() && b.has_codes()) return multiply_codes(a, b, dtype);
  return matmul(numbers_of(a), numbers_of(b).t(), dtype);
}

void matmul_into(at::Tensor out, const Operand& a, const Operand& b, bool overwrite) {
  if (!a.has_codes() || !b.has_codes()) return matmul_into(std::move(out), numbers_of(a), numbers_of(b).t(), overwrite);
  const auto product = multiply_codes(a, b, out.scalar_type());
  overwrite ? out.copy_(product) : out.add_(product);
}

void matmul_with_bias_into(at::Tensor out, const Operand& a, const Operand& b, const at::Tensor& bias) {
  if (!a.has_codes() || !b.has_codes()) return matmul_with_bias_into(std::move(out), numbers_of(a), numbers_of(b).t(), bias);
  out.copy_(multiply_codes(a, b, out.scalar_type()));
  out.add_(bias);
}

void matmuls_of_any_rows_into(const std::vector<MatmulOfAnyRows>& all) {
  const base::WorkScope scope("grouped_gemm", base::WorkKind::matmul);
  std::vector<CpuMatmul> together;
  for (const auto& [out, a, b, overwrite] : all) {
    if (a.has_codes() && b.has_codes()) {
      matmul_into(out, a, b, overwrite);
      continue;
    }
    const auto left = numbers_of(a), right = numbers_of(b).t();
    if (takes_cpu_matmul(left, right, out.scalar_type())) together.push_back({out, left, right, overwrite, {}});
    else if (overwrite) matmul_of_any_rows_into(out, left, right);
    else matmul_into(out, left, right, overwrite);
  }
  cpu_matmuls_into(together);
}

}  // namespace ingot::kernels
