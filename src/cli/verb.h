// A verb of the command line, or a few that share their flags. It is one file of this folder with two functions, and one line in verbs.h:
//
//   void add_NAME(Flags&)       its words: name, help, flags. In the front program, which parses in milliseconds.
//   int run_NAME(const Call&)   reads the values, calls the library that does the work, and prints. Returns the exit status: 0 done, 1
//   failed,
//                               2 wrong usage, 3 a verification or threshold was missed.
//
// A verb that computes with tensors has run_NAME between #ifdef INGOT_COMPUTES and #endif: its file is compiled into libingot.so a second
// time. This header is free of torch, and of CLI11 where nothing is parsed.
#pragma once

#ifndef INGOT_COMPUTES
#include <CLI/CLI.hpp>
#endif

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ingot::cli {

/// What was called, with which values. The program's two files are of one build, so that plain values pass between them.
struct Call {
  std::string verb;    // NAME
  std::string action;  // the last word: "train", or "inspect" of ingot checkpoint inspect
  bool json = false;
  std::shared_ptr<void> values;

  template <class Options>
  const Options& options() const {
    return *static_cast<const Options*>(values.get());
  }
};

#ifndef INGOT_COMPUTES
/// Where a verb writes down what it takes.
class Flags {
 public:
  Flags(CLI::App& app, Call& call) : app_(app), call_(call) {}
  /// What add_NAME says from here on is of this verb.
  void begin(const char* verb) { verb_ = verb; }

  /// `ingot NAME`. Called, it fills `call` with the values.
  template <class Options>
  CLI::App& verb(const std::string& name, const std::string& help, const std::shared_ptr<Options>& values) {
    return called(*app_.add_subcommand(name, help), values);
  }
  /// `ingot GROUP NAME`.
  template <class Options>
  CLI::App& verb(const std::string& group, const std::string& name, const std::string& help, const std::shared_ptr<Options>& values) {
    return called(*group_named(group).add_subcommand(name, help), values);
  }
  /// What the verbs of a group have in common.
  void group(const std::string& name, const std::string& help) { group_named(name).description(help); }

 private:
  CLI::App& group_named(const std::string& name) {
    const auto known = app_.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == name; });
    auto* group = known.empty() ? app_.add_subcommand(name) : known.front();
    group->require_subcommand(1);
    return *group;
  }
  CLI::App& called(CLI::App& verb, std::shared_ptr<void> values) {
    verb.callback([this, &verb, name = verb_, values = std::move(values)] { call_ = {name, verb.get_name(), call_.json, values}; });
    return verb;
  }
  CLI::App& app_;
  Call& call_;
  std::string verb_;
};

/// Flags that many verbs have.
inline void add_set(CLI::App& verb, std::vector<std::string>& set, const char* help = "key=value over the configuration") {
  verb.add_option("--set", set, help)->allow_extra_args(false);
}
inline void add_config(CLI::App& verb, std::string& config, std::vector<std::string>& set) {
  verb.add_option("config", config, "configuration (TOML)")->required();
  add_set(verb, set);
}
inline void add_output(CLI::App& verb, std::string& output, const char* help = "write the JSON here, too") {
  verb.add_option("-o,--output", output, help);
}
/// Without CLI11's bounds, which it prints to the last of 309 digits.
inline CLI::Validator bounded_below(const char* name, const char* what, bool takes_zero) {
  const auto check = [what, takes_zero](const std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && (value > 0 || (takes_zero && value == 0))) return std::string();
    return "'" + text + "' is not " + what;
  };
  return {check, name, name};
}
inline const auto kPositive = bounded_below("POSITIVE", "a number above 0", false);
inline const auto kNotNegative = bounded_below("NONNEGATIVE", "a number of 0 or more", true);
inline const auto kDevices = CLI::Range(int64_t{1}, int64_t{1} << 20);

/// Fills `call` from the command line. A value is the exit status of a call that is already answered (--help, --version, a usage error,
/// which has then been printed).
std::optional<int> parse(int argc, const char* const* argv, Call& call);
/// The verb's run_NAME, here or in libingot.so.
int run(const Call& call);
int run_in_library(const Call& call);
#endif

/// Runs `verb` and turns what it throws into a message and an exit status.
int guarded(const std::function<int()>& verb);

}  // namespace ingot::cli
