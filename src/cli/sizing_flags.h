// What a model is sized for, as flags of two verbs.
#pragma once

#include "cli/verb.h"

namespace ingot::cli {

struct SizingFlags {
  struct {
    std::string cluster, profile, dtype;
    int64_t devices = 0;
    double memory_gb = 0;
  } device;
  std::string batch_tokens, output;
  std::vector<int64_t> experts;
  int64_t seq = 0, vocab = 0, multiple = 0;
};

#ifndef INGOT_COMPUTES
inline void add_sizing(CLI::App& verb, SizingFlags& o) {
  auto* cluster = verb.add_option("--cluster", o.device.cluster,
                                  "size for the devices of this profile, such as configs/clusters/mi300x-8.json (default: this machine, as "
                                  "ingot bench all measured it)");
  verb.add_option("--profile", o.device.profile, "size for the machine that this profile was measured on (ingot bench all -o FILE)")
      ->excludes(cluster);
  verb.add_option("--devices", o.device.devices, "how many of the cluster's devices, whole nodes (default: all)")->check(kDevices);
  verb.add_option("--memory-gb", o.device.memory_gb, "10^9 bytes of a device, instead of the profile's")->check(kPositive);
  verb.add_option("--dtype", o.device.dtype, "fp32 or bf16 (default: bf16 with --cluster, else the faster one)")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  verb.add_option("--seq", o.seq, "tokens of a sequence")->check(CLI::Range(int64_t{16}, int64_t{1} << 24));
  verb.add_option("--vocab", o.vocab, "tokens of the vocabulary")->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  verb.add_option("--multiple", o.multiple, "widths are multiples of this (default: as measured or assumed)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb.add_option("--batch-tokens", o.batch_tokens, "tokens of a step on all devices, such as 4M");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "plan/run/sizing_device.h"

namespace ingot::cli {

inline plan::SizingDevice device_of(const SizingFlags& o) {
  const auto& d = o.device;
  return plan::sizing_device({d.cluster, d.profile, d.dtype, d.devices, d.memory_gb});
}

}  // namespace ingot::cli
#endif
