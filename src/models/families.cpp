// The list of model families; a new one adds its line here.
#include "base/error.h"
#include "base/text.h"
#include "models/family.h"

namespace ingot::models {

Family deepseek_v3_family();
Family fla_family();
Family gemma3_family();
Family gpt_oss_family();
Family granite_family();
Family kimi_linear_family();
Family linear_llama_family();
Family llama_family();
Family mixtral_family();
Family olmo2_family();
Family olmoe_family();
Family phi3_family();
Family qwen3_family();
Family qwen3_moe_family();
Family qwen3_next_family();
Family smollm3_family();
Family zaya1_family();

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      zaya1_family(),   llama_family(),      linear_llama_family(), qwen3_family(),   qwen3_moe_family(),   olmoe_family(),
      olmo2_family(),   gemma3_family(),     mixtral_family(),      smollm3_family(), deepseek_v3_family(), phi3_family(),
      gpt_oss_family(), qwen3_next_family(), kimi_linear_family(),  granite_family(), fla_family()};
  return all;
}

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

}  // namespace ingot::models
