#include "models/family.h"

#include "base/error.h"
#include "base/text.h"

namespace ingot::models {

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& family : families()) names.push_back(family.name);
  return names;
}

const Family& family_named(const std::string& name) {
  for (const auto& family : families())
    if (family.name == name) return family;
  const auto names = family_names();
  throw base::ConfigError("unknown model.family '{}'; known are {}{}", name, base::join(names, ", "), base::did_you_mean(name, names));
}

ModelConfig small_sizes() {
  ModelConfig c;
  c.layers = 4, c.hidden = 32, c.vocab_size = 50, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.ffn = 40;
  c.experts = 4, c.top_k = 2, c.expert_ffn = 20, c.router_hidden = 12;
  c.layer_pattern = "LLN", c.gate_rank = 4, c.init_std = 0.3;
  return c;
}

ModelConfig small_model(const std::string& family, ModelConfig sizes) {
  sizes.family = family;
  if (const auto set = family_named(family).small) set(sizes);
  return sizes;
}

}  // namespace ingot::models
