#include "gguf/tensors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "gguf/encode.h"
#include "models/adapters.h"
#include "models/latent_folder.h"

namespace ingot::gguf {
namespace {

using base::ModelError;
using layers::Parameter;
using Make = std::function<at::Tensor()>;

at::Tensor value_of(const Parameter& p) { return p.value; }
at::Tensor whole(const Parameter& p) { return models::merged(p, value_of).detach(); }

// Channel i of a head and its partner i + head_dim / 2 come to lie side by side.
at::Tensor with_neighbours(const at::Tensor& rows, int64_t heads) {
  return rows.unflatten(0, {heads, 2, rows.size(0) / heads / 2}).transpose(1, 2).reshape(rows.sizes());
}

// Rotating channels last in a head, and in neighbouring pairs.
at::Tensor turned(const models::ModelConfig& config, const Parameter& p) {
  const auto value = whole(p);
  auto stored = at::empty(value.sizes(), value.options());
  for (const auto& piece : models::stored_turned(config, p)) models::place_in(stored, piece).copy_(models::part_of(value, piece));
  return stored;
}

class Tensors {
 public:
  Tensors(const models::Model& model, const Architecture& architecture, Type matrices)
      : model_(model), c_(model.config()), a_(architecture), matrices_(matrices) {}

  std::vector<Tensor> take() {
    for (const auto& p : model_.parameters().all()) {
      if (!models::is_adapter(p->name)) add(*p);
    }
    add_rope_factors();
    return std::move(tensors_);
  }

 private:
  void push(const std::string& name, std::vector<int64_t> shape, const Make& make) {
    const bool is_exact = shape.size() == 1 || name.ends_with(".bias") || name.ends_with("ffn_gate_inp.weight");
    auto type = is_exact ? Type::fp32 : matrices_;
    if (shape.back() % block_size(type) != 0) type = Type::bf16;
    tensors_.push_back({name, std::move(shape), type, [=](const Sink& sink) { encode(make(), type, name, sink); }});
  }
  void push(const std::string& name, const Parameter& p) {
    const bool adds_one = a_.adds_one_to_norms && p.name.ends_with("norm.weight");
    push(name, p.shape, [&p, adds_one] { return adds_one ? whole(p) + 1 : whole(p); });
  }

  void add(const Parameter& p) {
    if (p.name == "model.embed_tokens.weight") {
      push("token_embd.weight", p);
      if (c_.tie_embeddings && a_.needs_head) push("output.weight", p);
    } else if (p.name == "model.norm.weight") {
      push("output_norm.weight", p);
    } else if (p.name == "lm_head.weight") {
      push("output.weight", p);
    } else {
      add_of_layer(p);
    }
  }

  void add_of_layer(const Parameter& p) {
    const std::string prefix = "model.layers.";
    const auto dot = p.name.find('.', prefix.size());
    if (!p.name.starts_with(prefix) || dot == std::string::npos) refuse(p);
    const int64_t layer = std::stoll(p.name.substr(prefix.size(), dot - prefix.size()));
    if (layer >= c_.layers) return;  // predictors of further tokens, which plain generation does without
    const std::string own = p.name.substr(dot + 1), block = "blk." + std::to_string(layer) + ".";
    const auto found = a_.tensors.find(own);
    if (found == a_.tensors.end()) return leave_out(p);
    const auto name = block + found->second;
    if (own.starts_with("mlp.experts.gate_up_proj")) add_halves(block, own.ends_with("_bias") ? ".bias" : ".weight", p);
    else if (own == "self_attn.kv_b_proj.weight") add_latent_halves(block, p);
    else if (c_.family == "deepseek_v3" && models::is_turned(p)) push(name, p.shape, [&c = c_, &p] { return turned(c, p); });
    else if (a_.fuses && is_fused(own)) add_fused(block, own, p);
    else if (a_.rotates_neighbours && own.starts_with("self_attn.q_proj.")) push_rotated(name, p, c_.heads);
    else if (a_.rotates_neighbours && own.starts_with("self_attn.k_proj.")) push_rotated(name, p, c_.kv_heads);
    else push(name, p);
  }

  [[noreturn]] void refuse(const Parameter& p) const {
    throw ModelError("this {} model has no GGUF form: llama.cpp's {} has no place for {}", c_.family, a_.name, p.name);
  }
  // A router's balancing biases that never moved choose nothing.
  void leave_out(const Parameter& p) const {
    if (p.kind != Parameter::Kind::buffer || p.value.any().item<bool>()) refuse(p);
  }

  void push_rotated(const std::string& name, const Parameter& p, int64_t heads) {
    push(name, p.shape, [&p, heads] { return with_neighbours(whole(p), heads); });
  }
  // [experts, gate then up, …]
  void add_halves(const std::string& block, const char* suffix, const Parameter& p) {
    auto shape = p.shape;
    shape[1] /= 2;
    for (const auto& [name, from] : {std::pair{"ffn_gate_exps", int64_t{0}}, {"ffn_up_exps", shape[1]}})
      push(block + name + suffix, shape, [&p, from = from, rows = shape[1]] { return whole(p).narrow(1, from, rows); });
  }
  // Of each head, keys from the latent, transposed, and values from it.
  void add_latent_halves(const std::string& block, const Parameter& p) {
    const int64_t values = c_.resolved_value_head_dim(), keys = c_.resolved_head_dim() - c_.rope_head_dim;
    const auto by_heads = [&p, heads = c_.heads] { return whole(p).unflatten(0, {heads, p.shape[0] / heads}); };
    push(block + "attn_k_b.weight", {c_.heads, c_.kv_rank, keys}, [=] { return by_heads().narrow(1, 0, keys).transpose(1, 2); });
    push(block + "attn_v_b.weight", {c_.heads, values, c_.kv_rank}, [=] { return by_heads().narrow(1, keys, values); });
  }
  static bool is_fused(const std::string& own) {
    return own == "self_attn.q_proj.weight" || own == "self_attn.k_proj.weight" || own == "self_attn.v_proj.weight" ||
           own == "mlp.gate_proj.weight" || own == "mlp.up_proj.weight";
  }
  // The first of a matrix's parts brings the others.
  void add_fused(const std::string& block, const std::string& own, const Parameter& first) {
    const bool is_query = own == "self_attn.q_proj.weight";
    if (!is_query && own != "mlp.gate_proj.weight") return;
    std::vector<const Parameter*> parts;
    const auto module = first.name.substr(0, first.name.size() - own.size());
    for (const char* part : is_query ? std::vector{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}
                                     : std::vector{"mlp.gate_proj.weight", "mlp.up_proj.weight"}) {
      for (const auto& p : model_.parameters().all())
        if (p->name == module + part) parts.push_back(p.get());
    }
    int64_t rows = 0;
    for (const auto* part : parts) rows += part->shape[0];
    push(block + (is_query ? "attn_qkv.weight" : "ffn_up.weight"), {rows, c_.hidden}, [parts] {
      std::vector<at::Tensor> values;
      for (const auto* part : parts) values.push_back(whole(*part));
      return device::cat(values);
    });
  }

  void push_factors(const char* name, const std::vector<double>& factors) {
    push(name, {static_cast<int64_t>(factors.size())}, [factors] {
      auto values = at::empty({static_cast<int64_t>(factors.size())}, at::kDouble);
      std::copy(factors.begin(), factors.end(), values.mutable_data_ptr<double>());
      return values;
    });
  }
  void add_rope_factors() {
    if (c_.rope_scaling == "longrope") {
      push_factors("rope_factors_long.weight", c_.rope_long_factors);
      push_factors("rope_factors_short.weight", c_.rope_short_factors);
    }
    if (c_.rope_scaling == "llama3") push_factors("rope_freqs.weight", llama3_factors());
  }
  // By what each frequency is divided (Llama 3.1's stretched context): those with waves longer than a bound by the factor, those shorter
  // than another by 1, between them by what a straight line between the frequencies gives.
  std::vector<double> llama3_factors() const {
    std::vector<double> factors;
    const int64_t dim = c_.resolved_head_dim();
    const auto original = static_cast<double>(c_.rope_original_positions);
    for (int64_t i = 0; i < dim; i += 2) {
      const double turns = original * std::pow(c_.rope_base, -static_cast<double>(i) / static_cast<double>(dim)) / (2 * std::numbers::pi);
      const double low = c_.rope_low_frequency_factor, high = c_.rope_high_frequency_factor;
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      factors.push_back(1 / (kept + (1 - kept) / c_.rope_factor));
    }
    return factors;
  }

  const models::Model& model_;
  const models::ModelConfig& c_;
  const Architecture& a_;
  Type matrices_;
  std::vector<Tensor> tensors_;
};

}  // namespace

std::vector<Tensor> tensors_of(const models::Model& model, const Architecture& architecture, Type matrices) {
  return Tensors(model, architecture, matrices).take();
}

}  // namespace ingot::gguf
