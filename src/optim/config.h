// The group `optimizer` of the settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"

namespace ingot::optim {

struct OptimizerConfig {
  std::string name = "muon";  // one of the table in update_rule.cpp
  double lr = 3e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip = 1.0;                   // global gradient norm; 0 = off
  double qk_clip = 0;                  // of scores of attention (layers/score_clip.h); 0 = off
  std::string moments_dtype = "fp32";  // fp32, bf16: of AdamW's moments and Muon's momentum (fp64 in fp64 runs)
  bool offload = false;                // masters and moments are in the host's memory between updates

  double momentum = 0.95;
  bool nesterov = true;
  int64_t newton_schulz_steps = 5;
  std::string newton_schulz_polynomial = "quintic";  // quintic, polar_express
  std::vector<double> newton_schulz_coefficients{};  // in its place: a, b, c of every step, or of each
  std::string newton_schulz_precision = "auto";      // auto, own, bf16
  bool spread_orthogonalisation = true;              // over the ranks that own matrices' parts, evenly, instead of repeating it on each
  double rms_match = 0.2;  // update scaled by this * sqrt(max(rows, cols)), as AdamW's (Moonlight, arXiv 2502.16982)

  double rank_fraction = 0.25;  // Dion: rank of updates, as a share of a matrix' smaller side

  std::string schedule = "cosine";  // constant, linear, cosine, wsd
  int64_t warmup_steps = 100;
  double final_lr_fraction = 0.1;
  double decay_fraction = 0.2;  // wsd: share of the steps in the final decay

  // Of the routers' balancing biases (optim/balancing.h).
  std::string balancing = "adamw";  // adamw, sign, pid
  double balancing_lr = 1e-3, balancing_beta1 = 0.9, balancing_beta2 = 0.999;
  double balancing_proportional = 1, balancing_integral = 1, balancing_derivative = 0;  // pid
  bool balance_skip = false;                                                            // the skip class aims at an equal share too
};

void declare_settings(base::SettingsTable& table, OptimizerConfig& config);

}  // namespace ingot::optim
