#include "eval/task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/settings.h"
#include "base/text.h"

namespace ingot::eval {
namespace {

using base::ConfigError;

const std::vector<std::string> kKinds = {"multiple_choice", "loglikelihood", "perplexity", "generate", "code", "retrieval"};
const std::vector<std::string> kRetrievals = {"needle", "multi_needle", "variable_tracking", "common_words"};

struct Numbers {
  std::vector<double> lengths, pass_at;
};

base::SettingsTable table_of(Task& t, Numbers& numbers) {
  base::SettingsTable table;
  table.add("name", t.name, "in tables and results; default: the file's");
  table.add("kind", t.kind, kKinds, "what is asked");
  table.add("data", t.data, "JSON lines or Parquet, one question each; a path from the task's file");
  table.add("description", t.description, "a text before all else");
  table.add("prompt", t.prompt, "field or Jinja template: the question");
  table.add("choices", t.choices, "multiple_choice: a template for each answer, or one field that is a list of them");
  table.add("answer", t.answer, "multiple_choice: the right one, by index or as a text");
  table.add("target", t.target, "field or template: what should follow; perplexity: the text");
  table.add("source", t.source, "field or template: rows are also reported by it");
  table.add("delimiter", t.delimiter, "between prompt and what follows");
  table.add("shots", t.shots, {0, 1000}, "examples before the question");
  table.add("shots_from", t.shots_from, "JSON lines or Parquet with examples; default: the data, without the question itself");
  table.add("shot_separator", t.shot_separator, "behind each example");
  table.add("shot_choice", t.shot_choice, {"random", "first"}, "which examples");
  table.add("metrics", t.metrics, "default: all that the kind has");
  table.add("lengths", numbers.lengths, base::NumberRange{1, 1e9},
            "perplexity: contexts besides the model's; retrieval: tokens of a prompt");
  table.add("until", t.until, "generate, code: texts that end what the model writes");
  table.add("most_tokens", t.most_tokens, {0, 1 << 20}, "of what the model writes; 0 = 256, retrieval: what the answer may need");
  table.add("filter", t.filter, "generate: a regular expression; its first match is the answer");
  table.add("strip", t.strip, "generate: no white space around the answer");
  table.add("ignore_case", t.ignore_case, "generate: of the answer");
  table.add("ignore_punctuation", t.ignore_punctuation, "generate: of the answer");
  table.add("temperature", t.temperature, {0, 100}, "code: 0 = always the likeliest token");
  table.add("samples", t.samples, {1, 1000}, "code: programs written for each problem");
  table.add("pass_at", numbers.pass_at, base::NumberRange{1, 1000}, "code: k of pass@k; default: 1");
  table.add("program", t.program, "code: a template of the program that is run; `completion` is what the model wrote");
  table.add("interpreter", t.interpreter, "code: the command that takes the program's file");
  table.add("seconds", t.seconds, {0.1, 3600}, "code: for one program");
  table.add("memory_mib", t.memory_mib, {16, 1 << 20}, "code: for one program");
  table.add("retrieval", t.retrieval, kRetrievals, "retrieval: what is hidden");
  table.add("questions", t.questions, {1, 100000}, "retrieval: of each length and depth");
  table.add("needles", t.needles, {1, 100}, "retrieval: of multi_needle");
  table.add("depths", t.depths, base::NumberRange{0, 1}, "retrieval: where in the prompt a needle lies; 0 = its beginning");
  return table;
}

// Of a JSON object's members: texts, numbers, truth values and lists of them are written as in TOML.
void load_json(base::SettingsTable& table, const std::string& text, const std::string& file) {
  const auto document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object()) throw ConfigError("{}: a task is a JSON object, such as {{\"kind\": \"generate\", …}}; this is none", file);
  const auto is_plain = [](const auto& value) { return value.is_primitive() && !value.is_null(); };
  for (const auto& [name, value] : document.items()) {
    if (value.is_array() ? !std::all_of(value.begin(), value.end(), is_plain) : !is_plain(value))
      throw ConfigError("{}: {} must be a text, a number, true, false or a list of them", file, name);
    table.set(name, value.dump(), file);
  }
}

std::vector<int64_t> whole_numbers(const std::string& file, const char* name, const std::vector<double>& values) {
  std::vector<int64_t> numbers;
  for (const double value : values) {
    if (value != static_cast<double>(static_cast<int64_t>(value)))
      throw ConfigError("{}: {} has {:g}; give whole numbers", file, name, value);
    numbers.push_back(static_cast<int64_t>(value));
  }
  return numbers;
}

void require(const Task& t, const char* name, bool is_given, const char* example) {
  if (!is_given) throw ConfigError("{}: a task of kind '{}' needs {}, such as {}", t.file.string(), t.kind, name, example);
}

void check(Task& t) {
  const auto file = t.file.string();
  if (t.kind == "retrieval") {
    require(t, "lengths", !t.lengths.empty(), "lengths = [512, 1024]");
  } else {
    require(t, "data", !t.data.empty(), "data = \"questions.jsonl\"");
  }
  if (t.kind == "multiple_choice") {
    require(t, "prompt", !t.prompt.empty(), "prompt = \"question\"");
    require(t, "choices", !t.choices.empty(), "choices = [\"answers\"]");
    require(t, "answer", !t.answer.empty(), "answer = \"gold\"");
  }
  if (t.kind == "loglikelihood" || t.kind == "generate") {
    require(t, "prompt", !t.prompt.empty(), "prompt = \"question\"");
    require(t, "target", !t.target.empty(), "target = \"answer\"");
  }
  if (t.kind == "perplexity") require(t, "target", !t.target.empty(), "target = \"text\"");
  if (t.kind == "code") {
    require(t, "prompt", !t.prompt.empty(), "prompt = \"signature\"");
    require(t, "program", !t.program.empty(), "program = \"{{prompt}}{{completion}}\\n{{tests}}\"");
    require(t, "interpreter", !t.interpreter.empty(), "interpreter = \"python3\"");
    if (t.pass_at.empty()) t.pass_at = {1};
    for (const int64_t k : t.pass_at)
      if (k > t.samples) throw ConfigError("{}: pass_at has {} of samples = {}; write more samples, or ask for less", file, k, t.samples);
    if (t.samples > 1 && t.temperature == 0)
      throw ConfigError("{}: samples = {} would all be the same with temperature = 0; set one, such as 0.8", file, t.samples);
  }
  if (t.kind == "generate" || t.kind == "code") {
    if (t.until.empty()) t.until = {t.shot_separator};
    if (t.most_tokens == 0) t.most_tokens = 256;
    for (const auto& text : t.until)
      if (text.empty()) throw ConfigError("{}: until has an empty text, which would end everything at once", file);
  }
  if (t.shots > 0 && (t.kind == "perplexity" || t.kind == "retrieval"))
    throw ConfigError("{}: shots = {}, but a task of kind '{}' has no examples; leave shots out", file, t.shots, t.kind);
  const auto known = metrics_of(t.kind);
  for (const auto& metric : t.metrics)
    if (std::find(known.begin(), known.end(), metric) == known.end())
      throw ConfigError("{}: '{}' is no metric of kind '{}', which has {}{}", file, metric, t.kind, base::join(known, ", "),
                        base::did_you_mean(metric, known));
  if (t.metrics.empty()) t.metrics = known;
}

}  // namespace

std::vector<std::string> metrics_of(const std::string& kind) {
  if (kind == "multiple_choice") return {"acc", "acc_norm", "acc_bytes", "acc_tokens"};
  if (kind == "loglikelihood") return {"perplexity", "acc"};
  if (kind == "perplexity") return {"bits_per_byte", "byte_perplexity", "word_perplexity", "loss"};
  if (kind == "generate") return {"exact_match"};
  if (kind == "retrieval") return {"recall", "all_found"};
  return {"pass"};
}

Task read_task(const std::filesystem::path& file) {
  Task t;
  Numbers numbers;
  t.file = file;
  auto table = table_of(t, numbers);
  const auto text = base::read_file(file, int64_t{4} << 20);
  if (file.extension() == ".json") load_json(table, text, file.string());
  else table.load_toml(text, file.string());
  if (t.kind.empty()) throw ConfigError("{}: kind is missing; it is one of {}", file.string(), base::join(kKinds, ", "));
  if (t.name.empty()) t.name = file.stem().string();
  t.lengths = whole_numbers(file.string(), "lengths", numbers.lengths);
  t.pass_at = whole_numbers(file.string(), "pass_at", numbers.pass_at);
  check(t);
  return t;
}

std::string task_help() {
  Task task;
  Numbers numbers;
  return table_of(task, numbers).help();
}

}  // namespace ingot::eval
