// What all verbs have in common: how they are found on the command line, --json, and what is said of words that nobody knows.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "base/closest_name.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace ingot::cli {

#define INGOT_ADD(name) void add_##name(Flags&);
INGOT_TORCH_VERBS(INGOT_ADD)
INGOT_FRONT_VERBS(INGOT_ADD)
#undef INGOT_ADD

namespace {

std::vector<const CLI::App*> below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// "ingot", "ingot plan", "ingot plan memory"
std::string full_name(const CLI::App& app) {
  return app.get_parent() ? full_name(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // for processes that a verb starts
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// The verb, at `app` or below it, that has an option like `word`, and the option.
std::pair<const CLI::App*, std::string> owner_of(const CLI::App& app, const std::string& word) {
  if (const auto near = base::nearest_name(word, options_of(app)); !near.empty()) return {&app, near};
  for (const auto* verb : below(app))
    if (const auto found = owner_of(*verb, word); found.first) return found;
  return {nullptr, ""};
}

std::string unknown_option(const CLI::App& app, const CLI::App& at, const std::string& word) {
  const auto name = word.substr(0, word.find('='));
  auto text = fmt::format("unknown option '{}'", name);
  const auto known = options_of(at);
  const auto near = base::nearest_name(name, known);
  if (!near.empty()) return text + fmt::format("; did you mean '{}'?", near);
  if (at.get_name() == "launch") return text + "; what the ranks run stands behind --: ingot launch -n 2 -- ingot train CONFIG.toml …";
  if (std::find(known.begin(), known.end(), "--set") != known.end()) {
    const bool is_setting = name.find('.') != std::string::npos;
    return text + fmt::format("; settings are given as --set {}=VALUE, and 'ingot train --settings' names them.",
                              is_setting ? name.substr(name.find_first_not_of('-')) : "NAME");
  }
  if (const auto [owner, option] = owner_of(app, name); owner)
    return text + fmt::format("; did you mean '{}' of {}?", option, full_name(*owner));
  return text + fmt::format("; the nearest that {} has is '{}'.", full_name(at), base::closest_name(name, known));
}

std::string unknown_verb(const CLI::App& at, const std::string& word) {
  std::vector<std::string> names;
  for (const auto* verb : below(at)) names.push_back(verb->get_name());
  if (names.empty()) return fmt::format("unknown argument '{}': {} takes no more.", word, full_name(at));
  return fmt::format("unknown verb '{}'; {} '{}'?", word, base::nearest_name(word, names).empty() ? "the nearest known is" : "did you mean",
                     base::closest_name(word, names));
}

const CLI::App& innermost(const CLI::App& app) {
  const auto called = app.get_subcommands();
  return called.empty() ? app : innermost(*called.front());
}

int wrong_usage(const CLI::App& at, const std::string& what) {
  std::cerr << "ingot: " << what << (what.back() == '?' || what.back() == '.' ? " '" : "; '") << full_name(at)
            << " --help' says what there is.\n";
  return 2;
}

void add_json(CLI::App& app, Call& call) {
  for (auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    verb->add_flag("--json", call.json, "one JSON document on standard output");
    add_json(*verb, call);
  }
}

}  // namespace

std::optional<int> parse(int argc, const char* const* argv, Call& call) {
  CLI::App app{"ingot pretrains language models: it measures a machine, plans, trains, survives, and hands the model on.", "ingot"};
  app.set_version_flag("--version", base::program_version());
  app.require_subcommand(1);
  Flags flags(app, call);
#define INGOT_ADD(name) flags.begin(#name), add_##name(flags);
  INGOT_TORCH_VERBS(INGOT_ADD)
  INGOT_FRONT_VERBS(INGOT_ADD)
#undef INGOT_ADD
  add_json(app, call);  // understood by every verb, wherever it stands
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // A word that nobody knows explains what is missing besides.
    const auto& at = innermost(app);
    auto unknown = at.remaining();
    std::erase(unknown, "--");
    const bool is_of_words = dynamic_cast<const CLI::ExtrasError*>(&error) || dynamic_cast<const CLI::RequiredError*>(&error);
    if (unknown.empty() || !is_of_words) return wrong_usage(at, error.what());
    const auto option = std::find_if(unknown.begin(), unknown.end(), [](const auto& word) { return word.starts_with("-"); });
    if (option != unknown.end() && (option == unknown.begin() || below(at).empty()))
      return wrong_usage(at, unknown_option(app, at, *option));
    return wrong_usage(at, unknown_verb(at, unknown.front()));
  }
  return std::nullopt;
}

}  // namespace ingot::cli
