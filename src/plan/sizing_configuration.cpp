#include <algorithm>

#include "plan/sizing.h"

namespace ingot::plan {
namespace {

// A name from a file must not end the comment that it stands in.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 32 || c == 127; }, ' ');
  return text;
}

std::string model_group(const models::ModelConfig& c, int64_t seq) {
  auto text = fmt::format("[model]\nfamily = \"{}\"\nlayers = {}\nhidden = {}\nvocab_size = {}\nheads = {}\nkv_heads = {}\nhead_dim = {}\n",
                          c.family, c.layers, c.hidden, c.vocab_size, c.heads, c.kv_heads, c.head_dim);
  if (models::create_model(c)->has_experts())
    text += fmt::format("experts = {}\ntop_k = {}\nexpert_ffn = {}\nrouter_hidden = {}\nrope_fraction = {}\n", c.experts, c.top_k,
                        c.expert_ffn, c.router_hidden, c.rope_fraction);
  else text += fmt::format("ffn = {}\n", c.ffn);
  return text + fmt::format("tie_embeddings = {}\nmax_positions = {}\n", c.tie_embeddings, seq);
}

const char* name_of(models::Recompute recompute) {
  return recompute == models::Recompute::none ? "none" : recompute == models::Recompute::selective ? "selective" : "full";
}

}  // namespace

std::string configuration_of(const Sizing& sizing, int64_t seq, const Device& device) {
  const auto& chosen = sizing.chosen;
  auto text =
      fmt::format("# Sized by ingot plan size for {} x {}.\n", device.count, one_line(device.name)) + model_group(chosen.model, seq);
  text += fmt::format(
      "\n[data]\ntokenizer = \"data/tokenizer\"  # yours: ingot data train-tokenizer makes one of vocab_size tokens\nseq_len = {}\n"
      "[[data.sources]]\npath = \"data/tokens\"  # what ingot data tokenize wrote\n",
      seq);
  // Learning rates come from experience, not from a machine: GPT-3's at 125 M, and the demo's.
  text += fmt::format("\n[optimizer]\nname = \"muon\"\nlr = {}  # not sized: tune it\nwarmup_steps = {}\n",
                      chosen.parameters < 100'000'000 ? "4e-3" : "6e-4", std::clamp<int64_t>(sizing.steps / 50, 1, 2000));
  // What does not fit is written as it would need least.
  const auto shape = chosen.run ? chosen.run->shape : RunShape{.microbatch = 1, .recompute = models::Recompute::full, .zero = 3};
  text += fmt::format("\n[train]\nsteps = {}\nbatch_size = {}\nmicrobatch_size = {}\nprecision = \"{}\"\nrecompute = \"{}\"\n",
                      sizing.steps, sizing.batch, shape.microbatch, device.dtype, name_of(shape.recompute));
  if (device.count > 1) text += fmt::format("\n[parallel]\nzero = {}\n", shape.zero);
  return text + fmt::format("\n[checkpoint]\nevery = {}\nkeep = 3\n", std::clamp<int64_t>(sizing.steps / 20, 1, 1000));
}

}  // namespace ingot::plan
