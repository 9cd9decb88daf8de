#include "optim/config.h"

#include "optim/balancing.h"
#include "optim/quintic.h"
#include "optim/update_rule.h"

namespace ingot::optim {

using base::at_least;
using base::NumberRange;

void declare_settings(base::SettingsTable& table, OptimizerConfig& c) {
  table.add("optimizer.name", c.name, optimizer_names(), optimizer_help());
  table.add("optimizer.lr", c.lr, NumberRange{0, 10}, "peak learning rate");
  table.add("optimizer.beta1", c.beta1, NumberRange{0, 1}, "AdamW: decay of the first moment");
  table.add("optimizer.beta2", c.beta2, NumberRange{0, 1}, "AdamW, NorMuon: decay of the second moment");
  table.add("optimizer.eps", c.eps, NumberRange{0, 1}, "AdamW, NorMuon: added to the root of the second moment");
  table.add("optimizer.weight_decay", c.weight_decay, NumberRange{0, 10}, "decoupled; matrices and convolutions, not embeddings");
  table.add(
      "optimizer.qk_clip", c.qk_clip, NumberRange{0, 1e6},
      "largest log-sum-exp of a head's attention scores, beyond which its q and k are scaled back after the step; 0 = off, Kimi K2: 100");
  table.add("optimizer.clip", c.clip, NumberRange{0, 1e30}, "largest global gradient norm; 0 = no clipping");
  table.add("optimizer.moments_dtype", c.moments_dtype, {"fp32", "bf16"},
            "AdamW's moments, momentum of Muon and Dion; bf16: half the memory, rounded stochastically");
  table.add("optimizer.offload", c.offload, "masters and moments are in the host's memory between updates; a GPU's");
  table.add("optimizer.momentum", c.momentum, NumberRange{0, 1}, "Muon, Dion");
  table.add("optimizer.nesterov", c.nesterov, "Muon: Nesterov momentum");
  table.add("optimizer.newton_schulz_steps", c.newton_schulz_steps, base::IntegerRange{1, 20}, "Muon");
  table.add("optimizer.newton_schulz_polynomial", c.newton_schulz_polynomial, polynomial_names(),
            "Muon: quintic = the same in each step; polar_express = the best for what the steps before leave");
  table.add("optimizer.newton_schulz_coefficients", c.newton_schulz_coefficients, NumberRange{-1e3, 1e3},
            "Muon: in place of the polynomial's; a, b, c of every step, or of each: a x + (b A + c A^2) x, A = x x^T");
  table.add("optimizer.newton_schulz_precision", c.newton_schulz_precision, {"auto", "own", "bf16"},
            "Muon: own = fp32, as its state (fp64 in fp64 runs); auto = bf16 on GPUs and CPUs that multiply it faster, but in fp64 runs");
  table.add(
      "optimizer.spread_orthogonalisation", c.spread_orthogonalisation,
      "Muon with ZeRO or split matrices: deal the orthogonalisations out evenly over the ranks; false: every owner of a part does it");
  table.add("optimizer.rms_match", c.rms_match, NumberRange{0, 100},
            "Muon, Dion: update scaled by this * sqrt(max(rows, cols)), Dion's by this * sqrt(rows cols / rank), to match AdamW's size");
  table.add("optimizer.rank_fraction", c.rank_fraction, NumberRange{1e-4, 1},
            "Dion: rank of an update, as a share of the smaller side of its matrix");
  table.add("optimizer.schedule", c.schedule, {"constant", "linear", "cosine", "wsd"}, "after the warm-up; wsd = warm-up, stable, decay");
  table.add("optimizer.warmup_steps", c.warmup_steps, at_least(0), "steps of linear warm-up");
  table.add("optimizer.final_lr_fraction", c.final_lr_fraction, NumberRange{0, 1},
            "learning rate of the last step, as a share of the peak");
  table.add("optimizer.decay_fraction", c.decay_fraction, NumberRange{0, 1}, "wsd: share of the steps in the final decay");
  table.add("optimizer.balancing_lr", c.balancing_lr, NumberRange{0, 10}, "step of the routers' balancing biases; 0 = fixed");
  table.add("optimizer.balancing", c.balancing, balancing_rule_names(),
            "what moves them against the load: AdamW, steps of one size, or a PID controller");
  table.add("optimizer.balancing_beta1", c.balancing_beta1, NumberRange{0, 1}, "balancing biases, adamw");
  table.add("optimizer.balancing_beta2", c.balancing_beta2, NumberRange{0, 1}, "balancing biases, adamw");
  table.add("optimizer.balancing_proportional", c.balancing_proportional, NumberRange{0, 1e3},
            "balancing biases, pid: gain of the load's change");
  table.add("optimizer.balancing_integral", c.balancing_integral, NumberRange{0, 1e3},
            "balancing biases, pid: gain of the load's excess, which adds up");
  table.add("optimizer.balancing_derivative", c.balancing_derivative, NumberRange{0, 1e3},
            "balancing biases, pid: gain of the change's change");
  table.add("optimizer.balance_skip", c.balance_skip, "the skip class aims at an equal share of the tokens too");
}

}  // namespace ingot::optim
