// `ingot eval`: how well a model does at tasks.
#include "cli/verb.h"

namespace ingot::cli {

struct EvalOptions {
  std::string model, tokenizer, dtype = "fp32", weights = "same", device = "auto", results, items, page, chat_template, system;
  std::vector<std::string> tasks, ladder;
  std::vector<uint64_t> seeds;
  int64_t limit = 0, shots = -1, context = 0, pass_tokens = 2048;
  bool run_code = false, chat = false, multiturn = false;
};

#ifndef INGOT_COMPUTES
void add_eval(Flags& flags) {
  const auto values = std::make_shared<EvalOptions>();
  auto& o = *values;
  auto& verb = flags.verb("eval", "say how well a model does at tasks (docs/evaluation.md)", values);
  verb.add_option("model", o.model, "an ingot checkpoint or run directory, or a Hugging Face folder");
  verb.add_option("--tasks", o.tasks, "task files (TOML)");
  verb.add_option("--limit", o.limit, "no more than so many questions of each")->check(kPositive);
  verb.add_option("--shots", o.shots, "examples before each question (default: as the task says)")->check(CLI::Range(0, 1000));
  verb.add_option("--seeds", o.seeds, "of the choice of examples; several: the mean over them, and each (default: 1234)")->delimiter(',');
  verb.add_option("--context", o.context, "most tokens that the model sees (default: the model's)")->check(kPositive);
  verb.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the model's own)");
  verb.add_flag("--chat", o.chat, "questions as chats, by the model's chat template");
  verb.add_option("--template", o.chat_template, "with --chat: a chat template (Jinja) in place of the model's");
  verb.add_flag("--multiturn", o.multiturn, "with --chat: examples as messages of their own, instead of in one with the question");
  verb.add_option("--system", o.system, "with --chat: a message of the system's before all else");
  verb.add_option("--dtype", o.dtype, "fp32 or bf16")->check(CLI::IsMember({"fp64", "fp32", "bf16"}))->capture_default_str();
  verb.add_option("--weights", o.weights, "same: as --dtype; int8 or int4: as they are with ingot serve --weights")
      ->check(CLI::IsMember({"same", "int8", "int4"}))
      ->capture_default_str();
  verb.add_option("--device", o.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}))->capture_default_str();
  verb.add_option("--pass-tokens", o.pass_tokens, "tokens through the model at once")->check(kPositive)->capture_default_str();
  verb.add_flag("--run-code", o.run_code, "run programs that the model writes, where a task asks for it; they may do what you may");
  verb.add_option("--results", o.results, "write what --json prints here, too");
  verb.add_option("--ladder", o.ladder, "instead of a model: files that --results has written, beside one another on a page");
  verb.add_option("--page", o.page, "write that page here (HTML)");
  verb.add_option("--items", o.items, "write of each question what the model did: JSON lines");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/input_file.h"
#include "device/device.h"
#include "eval/evaluate.h"
#include "eval/ladder.h"
#include "layers/dtype.h"
#include "report/page/document.h"
#include "serve/engine/runner.h"
#include "serve/load_model.h"

namespace ingot::cli {
namespace {

// One bar for each pass over a task.
class Bars {
 public:
  void begin(const std::string& task, int64_t total) {
    finish();
    bar_ = std::make_unique<base::ProgressBar>(task, total, base::ProgressUnit::count);
  }
  void update(int64_t done) {
    if (bar_) bar_->update(done);
  }
  void finish() {
    if (bar_) bar_->finish();
    bar_.reset();
  }

 private:
  std::unique_ptr<base::ProgressBar> bar_;
};

nlohmann::ordered_json json_of(const EvalOptions& o, const std::vector<eval::TaskResult>& results) {
  nlohmann::ordered_json json = {{"format", "ingot-eval-1"}, {"ingot", base::program_version()},
                                 {"time", base::now_utc()},  {"model", o.model},
                                 {"dtype", o.dtype},         {"weights", o.weights},
                                 {"limit", o.limit},         {"context", o.context}};
  if (o.chat) json["chat"] = {{"template", o.chat_template}, {"multiturn", o.multiturn}, {"system", o.system}};
  json["tasks"] = nlohmann::ordered_json::array();
  for (const auto& result : results) json["tasks"].push_back(eval::json_of(result));
  return json;
}

// Before hours of work, not behind them.
void require_folder_of(const std::string& file) {
  if (file.empty()) return;
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw base::UsageError("{} cannot be written: there is no folder {}; make it first", file, folder.string());
}

int write_ladder(const EvalOptions& o) {
  if (!o.model.empty() || !o.tasks.empty())
    throw base::UsageError("--ladder compares results that are there; leave the model and --tasks out");
  if (o.page.empty()) throw base::UsageError("--ladder needs --page, the file to write (HTML)");
  require_folder_of(o.page);
  base::write_file_atomically(o.page, eval::ladder_page({o.ladder.begin(), o.ladder.end()}, report::local_time()));
  base::log_info("wrote {}", o.page);
  return 0;
}

}  // namespace

int run_eval(const Call& call) {
  const auto& o = call.options<EvalOptions>();
  if (!o.ladder.empty()) return write_ladder(o);
  if (o.model.empty()) throw base::UsageError("name a model: ingot eval MODEL --tasks FILE…");
  if (o.tasks.empty()) throw base::UsageError("name tasks: ingot eval MODEL --tasks FILE…, such as configs/tasks/agreement.toml");
  for (const auto& file : o.tasks) require_file(file, "; a task is a file, as configs/tasks/agreement.toml (docs/evaluation.md)");
  if (!o.page.empty()) throw base::UsageError("--page is of --ladder: ingot eval --ladder RESULTS… --page FILE");
  if (!o.chat && (!o.chat_template.empty() || o.multiturn || !o.system.empty()))
    throw base::UsageError("--template, --multiturn and --system are of --chat");
  Bars bars;
  eval::Options options{.limit = o.limit, .shots = o.shots, .context = o.context, .pass_tokens = o.pass_tokens};
  if (!o.seeds.empty()) options.seeds = o.seeds;
  options.runs_code = o.run_code;
  options.begin = [&](const std::string& task, int64_t total) { bars.begin(task, total); };
  options.progress = [&](int64_t done) { bars.update(done); };
  require_folder_of(o.results);
  require_folder_of(o.items);
  std::vector<std::unique_ptr<eval::Prepared>> tasks;
  for (const auto& file : o.tasks) tasks.push_back(eval::prepare(eval::read_task(file), options));
  auto loaded = serve::load_model(o.model, layers::precision_named(o.dtype).dtype, device::device_named(o.device));
  const auto& tokenizer = serve::tokenizer_for(loaded, o.tokenizer);
  std::optional<data::chat::ChatTemplate> chat_template;
  std::optional<eval::Chat> chat;
  if (o.chat) {
    chat_template = serve::chat_template_of(loaded, o.chat_template);
    if (!chat_template)
      throw base::DataError(
          "{} has no chat template (chat_template.jinja, or in tokenizer_config.json): name one with --template FILE, or leave --chat out",
          loaded.files.empty() ? tokenizer.path().parent_path().string() : o.model);
    options.chat = &chat.emplace(*chat_template, o.multiturn, o.system);
  }
  serve::make_decoder(*loaded.model, serve::weight_format_named(o.weights));  // rounds the weights, with which all passes compute
  const auto results = eval::evaluate(tasks, *loaded.model, tokenizer, options);
  bars.finish();
  const auto json = json_of(o, results).dump(2);
  if (!o.results.empty()) base::write_file_atomically(o.results, json + "\n");
  if (!o.items.empty()) base::write_file_atomically(o.items, eval::lines_of(results));
  std::fputs((call.json ? json + "\n" : eval::table_of(results)).c_str(), stdout);
  return 0;
}

}  // namespace ingot::cli
#endif
