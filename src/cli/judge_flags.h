// What a node is judged by, as flags of two verbs.
#pragma once

#include "cli/verb.h"
#include "health/judge.h"

namespace ingot::cli {

struct JudgeFlags {
  std::string floors, baseline, device_name, folder;
  double tolerance = 10;  // percent

  bool is_asked() const { return !baseline.empty() || !floors.empty() || !folder.empty(); }
  health::JudgeRequest request() const { return {baseline, floors, device_name, tolerance / 100}; }
};

#ifndef INGOT_COMPUTES
inline void add_judgement(CLI::App& verb, JudgeFlags& o) {
  verb.add_option("--floors", o.floors, "floors to judge by (JSON as in configs/floors; default: those of the device's name)");
  verb.add_option("--baseline", o.baseline, "judge by this earlier machine profile instead");
  verb.add_option("--tolerance", o.tolerance, "percent below an earlier profile that still pass")
      ->check(CLI::Range(0.0, 99.0))
      ->capture_default_str();
  verb.add_option("--device-name", o.device_name, "choose floors by this name (default: what the driver calls the device)");
  verb.add_option("--verdicts", o.folder, "write the verdict as FOLDER/HOST.json, for ingot bench verdict FOLDER");
}
#endif

}  // namespace ingot::cli
