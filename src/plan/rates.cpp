#include "plan/rates.h"

#include <algorithm>

#include "base/error.h"
#include "layers/cost.h"

namespace ingot::plan {
namespace {

double d(int64_t x) { return static_cast<double>(x); }

}  // namespace

const char* name_of(Pass pass) { return pass == Pass::forward ? "forward" : pass == Pass::grad_input ? "grad_input" : "grad_weight"; }

double kernel_work(const std::string& name, optim::Iterates iterates, int64_t rows, int64_t width) {
  if (name != "muon") return d(rows) * d(width);
  return optim::newton_schulz_flops(rows, width, 5, iterates);
}

Rates::Rates(const MachineProfile& profile, const std::string& dtype)
    : iterates_(dtype == "fp64" ? optim::Iterates::own : optim::fastest_iterates(profile.device == "cpu")),
      operation_s_(profile.operation_s),
      within_steps_(profile, dtype) {
  add_gemms(profile, dtype, gemms_);
  add_gemms(profile, "fp32", wide_gemms_);
  if (wide_gemms_.empty()) wide_gemms_ = gemms_;
  for (const auto& e : profile.attention) {
    if (e.dtype != dtype || e.window > 0) continue;
    const double flops = layers::attention_flops(e.batch, e.seq, 0, e.heads, e.head_dim);
    attention_[false].add({d(e.seq), d(e.head_dim), 1}, flops / e.forward_s);
    attention_[true].add({d(e.seq), d(e.head_dim), 1}, flops / e.backward_s);
  }
  for (const auto& e : profile.kernels) {
    if (e.dtype != dtype) continue;
    const double work = kernel_work(e.name, iterates_, e.rows, e.width) * d(e.count);
    const Surface::Sizes sizes = {d(std::min(e.rows, e.name == "muon" ? e.width : e.rows)),
                                  d(std::max(e.width, e.name == "muon" ? e.rows : e.width)), 1};
    kernels_[{e.name, false}].add(sizes, work / e.forward_s);
    if (e.backward_s > 0) kernels_[{e.name, true}].add(sizes, work / e.backward_s);
    const double elements = d(e.rows) * d(e.width) * d(e.count);
    if (e.forward_bytes > 0) moved_[{e.name, false}].add(sizes, e.forward_bytes / elements);
    if (e.backward_s > 0 && e.backward_bytes > 0) moved_[{e.name, true}].add(sizes, e.backward_bytes / elements);
  }
  // Kernels stream like a triad: they read two arrays or more for one they write.
  for (const auto& e : profile.memory)
    if (e.operation == "triad") move_.add({3 * d(e.bytes), 1, 1}, e.bytes_per_s);
  if (gemms_.empty() || move_.empty() || attention_.empty())
    throw base::ProfileError("the profile of {} has no {} measurements; run ingot bench all", profile.host, dtype);
}

void Rates::add_gemms(const MachineProfile& profile, const std::string& dtype, ByPass& surfaces) {
  for (const auto& e : profile.gemm) {
    if (e.dtype != dtype || e.kind != "plain") continue;
    const auto pass = e.pass == "forward" ? Pass::forward : e.pass == "grad_input" ? Pass::grad_input : Pass::grad_weight;
    surfaces[pass].add({d(e.m), d(e.n), d(e.k)}, e.flops_per_s);
  }
}

double Rates::gemm_rate(Pass pass, int64_t m, int64_t n, int64_t k, bool wide) const {
  const auto& surfaces = wide ? wide_gemms_ : gemms_;
  const auto found = surfaces.find(pass);
  return (found == surfaces.end() ? surfaces.begin() : found)->second.at({d(m), d(n), d(k)});
}

double Rates::gemm_s(Pass pass, int64_t rows, int64_t in, int64_t out, bool wide) const {
  const double flops = 2 * d(rows) * d(in) * d(out);
  const double rate = pass == Pass::forward      ? gemm_rate(pass, rows, out, in, wide)
                      : pass == Pass::grad_input ? gemm_rate(pass, rows, in, out, wide)
                                                 : gemm_rate(pass, out, in, rows, wide);
  return flops / rate;
}

double Rates::attention_s(double flops, double keys_per_query, int64_t head_dim, bool backward) const {
  // Measured over whole rows, whose queries see half of the row in the mean: a window works like a shorter row.
  return flops / attention_.find(backward)->second.at({2 * keys_per_query, d(head_dim), 1});
}

std::optional<double> Rates::kernel_s(const std::string& name, int64_t rows, int64_t width, bool backward, double moved_bytes) const {
  const auto found = kernels_.find({name, backward});
  if (found == kernels_.end()) return kernels_.contains({name, false}) ? std::optional(0.0) : std::nullopt;
  const bool matrix = name == "muon";
  const Surface::Sizes sizes = {d(matrix ? std::min(rows, width) : rows), d(matrix ? std::max(rows, width) : width), 1};
  const double seconds = kernel_work(name, iterates_, rows, width) / found->second.at(sizes);
  const auto moved = moved_bytes > 0 ? moved_.find({name, backward}) : moved_.end();
  if (moved == moved_.end()) return seconds;
  return seconds * std::min(1.0, moved_bytes / (moved->second.at(sizes) * d(rows) * d(width)));
}

double Rates::move_s(double bytes) const { return bytes / move_.at({std::max(bytes, 1.0), 1, 1}); }

}  // namespace ingot::plan
