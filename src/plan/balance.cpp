#include "plan/balance.h"

#include <algorithm>
#include <tuple>

namespace ingot::plan {
namespace {

double d(int64_t x) { return static_cast<double>(x); }
double element_bytes(const std::string& dtype) { return dtype == "fp64" ? 8 : dtype == "bf16" ? 2 : 4; }

// Pairs (query, key) of a row, over its tokens.
double keys_of_query(double seq, double window) {
  if (window <= 0 || window >= seq) return (seq + 1) / 2;
  return window - window * (window - 1) / (2 * seq);
}

// Place of an operation among those that a bandwidth may be taken from; 0: a copy to elsewhere, or less than BabelStream does.
int stream_place(const std::string& operation) {
  if (operation == "triad") return 2;
  return operation == "copy" || operation == "scale" || operation == "add" || operation == "dot" ? 1 : 0;
}

}  // namespace

double flops_of(const GemmRate& p) { return 2 * d(p.m) * d(p.n) * d(p.k) * d(p.groups); }

double intensity_of(const GemmRate& p) {
  const double operands = (d(p.m) * d(p.k) + d(p.k) * d(p.n)) * element_bytes(p.dtype);
  const bool is_sum = p.pass == "grad_weight" && p.kind != "batched";
  const double result = d(p.m) * d(p.n) * (is_sum ? 2 * std::max(element_bytes(p.dtype), 4.0) : element_bytes(p.dtype));
  return flops_of(p) / ((operands + result) * d(p.groups));
}

double flops_of(const AttentionTime& a, bool backward) {
  const double pairs = d(a.seq) * keys_of_query(d(a.seq), d(a.window));
  return (backward ? 2 : 1) * 4 * d(a.batch) * pairs * d(a.heads) * d(a.head_dim);
}

double intensity_of(const AttentionTime& a) {
  const double bytes = d(a.batch) * d(a.seq) * 2 * (d(a.heads) + d(a.kv_heads)) * d(a.head_dim) * element_bytes(a.dtype);
  return flops_of(a, false) / bytes;
}

double memory_bytes_per_s(const MachineProfile& profile) {
  const MemoryRate* best = nullptr;
  const auto rank = [](const MemoryRate& r) { return std::pair(stream_place(r.operation), r.bytes); };
  for (const auto& e : profile.memory)
    if (stream_place(e.operation) > 0 && (!best || rank(e) > rank(*best))) best = &e;
  return best ? best->bytes_per_s : 0;
}

std::optional<Balance> balance_of(const MachineProfile& profile, const std::string& dtype) {
  const Balance balance{dtype, profile.peak_gemm(dtype), memory_bytes_per_s(profile)};
  if (balance.flops_per_s > 0 && balance.bytes_per_s > 0) return balance;
  return std::nullopt;
}

std::optional<double> turning_seq(const AttentionTime& shape, double flops_per_byte) {
  // intensity = 2 keys_of_query heads / ((heads + kv_heads) element_bytes)
  const double keys = flops_per_byte * d(shape.heads + shape.kv_heads) * element_bytes(shape.dtype) / (2 * d(shape.heads));
  const double seq = std::max(2 * keys - 1, 1.0), window = d(shape.window);
  if (window <= 0 || seq <= window) return seq;
  if (keys >= window) return std::nullopt;
  return window * (window - 1) / (2 * (window - keys));
}

}  // namespace ingot::plan
