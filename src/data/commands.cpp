#include "data/commands.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/export_tokenizer.h"
#include "data/imported_blend.h"
#include "data/process/classifier.h"
#include "data/process/measures.h"
#include "data/process/process.h"
#include "data/tokenize/tokenize.h"
#include "data/train_tokenizer.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;

std::vector<fs::path> paths_of(const std::vector<std::string>& names) {
  std::vector<fs::path> paths;
  for (const auto& name : names) {
    const auto files = files_like(name);
    paths.insert(paths.end(), files.begin(), files.end());
  }
  return paths;
}

TextOptions text_options(const TextFlags& flags) {
  TextOptions options;
  options.format = parse_text_format(flags.format);
  options.split = parse_document_split(flags.split);
  options.field = flags.field;
  options.skip_bad = flags.skip_bad;
  options.strict_utf8 = flags.strict_utf8;
  return options;
}

void require(const std::string& value, std::string_view flag, std::string_view what) {
  if (value.empty()) throw base::UsageError("{} is missing: {}", flag, what);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(std::ostream& out, const Json& json) { out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n"; }

}  // namespace

int run_data_train_tokenizer(const TrainTokenizerCommand& command, std::ostream& out) {
  require(command.output, "--output", "name the .model file to write");
  TrainTokenizerOptions options;
  options.inputs = paths_of(command.text.inputs);
  options.output = command.output;
  const char* const ending = command.algorithm == "byte-bpe" ? ".json" : ".model";
  if (options.output.extension() != ending) options.output += ending;
  options.text = text_options(command.text);
  options.algorithm = command.algorithm;
  options.vocab_size = command.vocab_size;
  options.character_coverage = command.character_coverage;
  options.max_sentences = command.max_sentences;
  options.max_bytes = command.max_bytes;
  options.split_digits = !command.join_digits;
  options.whitespace_pieces = command.whitespace_pieces;
  options.user_symbols = command.user_symbols;
  options.seed = command.seed;

  const auto start = std::chrono::steady_clock::now();
  base::ProgressBar bar("reading text", 0, base::ProgressUnit::bytes);
  options.progress = [&](int64_t done_bytes, int64_t total_bytes) {
    bar.set_total(total_bytes);
    bar.update(done_bytes);
    if (done_bytes == total_bytes) {
      bar.finish();
      base::log_info("learning {} pieces; this takes a few seconds per 10 MB of text", command.vocab_size);
    }
  };
  const auto result = train_tokenizer(options);
  if (command.json) {
    print(out, {{"model", options.output.string()},
                {"algorithm", command.algorithm},
                {"vocab_size", result.vocab_size},
                {"sentences_read", result.sentences_read},
                {"sentences_used", result.sentences_used},
                {"bytes_used", result.bytes_used},
                {"seconds", seconds_since(start)}});
  } else {
    out << fmt::format("{}: {} pieces learnt from {} of {} lines ({}) in {}\n", options.output.string(), result.vocab_size,
                       result.sentences_used, result.sentences_read, base::format_bytes(result.bytes_used),
                       base::format_duration(seconds_since(start)));
  }
  return 0;
}

static std::optional<chat::ChatTemplate> chat_template_of(const TokenizeCommand& command, const Tokenizer& tokenizer) {
  if (!command.chat && !command.chat_template.empty()) throw base::UsageError("--template is of --chat");
  if (!command.chat) return std::nullopt;
  std::error_code none;
  const auto folder = fs::is_directory(command.tokenizer, none) ? fs::path(command.tokenizer) : tokenizer.path().parent_path();
  if (!command.chat_template.empty()) return chat::ChatTemplate::of_file(command.chat_template, folder);
  auto found = chat::ChatTemplate::of_folder(folder);
  if (!found)
    throw base::DataError("{} has no chat template (chat_template.jinja, or in tokenizer_config.json): name one with --template FILE",
                          folder.string());
  return found;
}

int run_data_tokenize(const TokenizeCommand& command, std::ostream& out) {
  require(command.tokenizer, "--tokenizer", "name a .model, a tokenizer.json, a .tiktoken file or a folder with one of them");
  require(command.output, "--output", "name the prefix of the .bin and .idx to write");
  if (command.threads < 0) throw base::UsageError("--threads {} must be 0 or more", command.threads);
  TokenizeOptions options;
  options.inputs = paths_of(command.text.inputs);
  options.output = dataset_prefix(command.output);
  options.text = text_options(command.text);
  options.append_eos = !command.no_eos;
  options.prepend_bos = command.bos;
  options.threads = command.threads;
  options.overwrite = command.overwrite;
  options.lease_s = command.lease_s;
  options.piece_bytes = command.piece_bytes;

  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = load_tokenizer(command.tokenizer);
  const auto chat_template = chat_template_of(command, *tokenizer);
  if (chat_template) options.chat_template = &*chat_template;
  if (command.preferences && !command.chat) throw base::UsageError("--preferences goes with --chat");
  options.preferences = command.preferences;
  if (command.think_tags.size() != 2) throw base::UsageError("--think-tags takes two texts, {} were given", command.think_tags.size());
  options.trim = {command.trim_to, command.think_tags[0], command.think_tags[1]};
  base::ProgressBar bar("tokenising", 0, base::ProgressUnit::bytes);
  options.progress = [&](int64_t done_bytes, int64_t total_bytes) {
    bar.set_total(total_bytes);
    bar.update(done_bytes);
  };
  const auto result = tokenize(*tokenizer, options);
  if (result.was_there) base::log_info("{} is there already, of the same inputs and settings", options.output.string());
  else bar.finish(fmt::format("{} tokens", base::format_count(static_cast<double>(result.tokens))));
  if (result.bad_lines > 0) base::log_warning("{} malformed lines were left out, the first at {}", result.bad_lines, result.first_problem);
  if (result.invalid_utf8 > 0)
    base::log_warning("{} sequences that are not UTF-8 became U+FFFD, the first at {}", result.invalid_utf8, result.first_problem);
  const auto& trim = result.trim;
  if (trim.trimmed > 0)
    base::log_info("{} conversations of more than {} tokens lost thoughts, {} tokens of them ({} of {} thoughts whole)", trim.trimmed,
                   command.trim_to, trim.cut_tokens, trim.removed_thoughts, trim.thoughts);
  if (trim.left_out > 0)
    base::log_warning("{} conversations are left out ({} tokens): their prompts and answers alone have more than {} tokens", trim.left_out,
                      trim.left_out_tokens, command.trim_to);
  for (const auto& example : trim.examples) base::log_info("  {}", example);
  if (command.json) {
    print(out, {{"output", options.output.string()},
                {"documents", result.documents},
                {"tokens", result.tokens},
                {"dtype", name_of(result.token_type)},
                {"input_bytes", result.input_bytes},
                {"learned_tokens", result.learned},
                {"empty_documents", result.empty_documents},
                {"trimmed", trim.trimmed},
                {"trimmed_tokens", trim.cut_tokens},
                {"left_out", trim.left_out},
                {"bad_lines", result.bad_lines},
                {"invalid_utf8", result.invalid_utf8},
                {"pieces", result.pieces},
                {"own_pieces", result.own_pieces},
                {"was_there", result.was_there},
                {"seconds", seconds_since(start)}});
  } else {
    out << fmt::format("{0}.bin, {0}.idx: {1} documents, {2} tokens as {3}, {4:.2f} bytes of text a token, in {5}\n",
                       options.output.string(), result.documents, result.tokens, name_of(result.token_type),
                       static_cast<double>(result.input_bytes) / static_cast<double>(result.tokens),
                       base::format_duration(seconds_since(start)));
    if (command.chat)
      out << fmt::format("{}.mask: {:.1f} % of the tokens are answers, which alone are learned\n", options.output.string(),
                         100 * static_cast<double>(result.learned) / static_cast<double>(std::max<int64_t>(1, result.tokens)));
  }
  return 0;
}

static void print_rules(std::ostream& out) {
  out << "measures of a text, for rules as \"words >= 50\":\n";
  for (const auto& measure : process::all_measures()) out << fmt::format("  {:30} {}\n", measure.name, measure.help);
  out << "\nsets of rules, which keep = [\"gopher\"] names:\n";
  for (const auto& set : process::rule_sets()) {
    out << fmt::format("  {}, {} ({})\n", set.name, set.is_of_lines ? "of lines" : "of documents", set.source);
    for (const auto* rule : set.rules) out << "    " << rule << "\n";
  }
}

int run_data_process(const ProcessCommand& command, std::ostream& out) {
  if (command.rules) return print_rules(out), 0;
  require(command.recipe, "RECIPE.toml", "name the recipe, or pass --rules");
  const auto recipe = process::load_recipe(command.recipe, command.output);
  const auto start = std::chrono::steady_clock::now();
  std::optional<base::ProgressBar> bar;
  std::string pass;
  process::ProcessOptions options;
  options.threads = command.threads;
  options.progress = [&](const std::string& now, int64_t done_bytes, int64_t total_bytes) {
    if (now != pass) {
      if (bar) bar->finish();
      bar.emplace(now, total_bytes, base::ProgressUnit::bytes);
      pass = now;
    }
    bar->update(done_bytes);
  };
  const auto result = process::process(recipe, options);
  if (bar) bar->finish();
  if (result.bad_lines > 0) base::log_warning("{} malformed lines were left out, the first at {}", result.bad_lines, result.first_bad_line);
  if (result.invalid_utf8 > 0)
    base::log_warning("{} sequences that are not UTF-8 became U+FFFD, the first at {}", result.invalid_utf8, result.first_invalid_utf8);
  auto json = process::to_json(result);
  json["seconds"] = seconds_since(start);
  if (command.json) return print(out, json), 0;
  int64_t documents = 0, kept = 0;
  for (const auto& source : result.sources) documents += source.documents, kept += source.kept_documents;
  for (const auto& step : result.steps)
    out << fmt::format("{:24} {:>12} documents, {} removed ({})\n", step.name, step.tally.documents,
                       step.tally.documents - step.tally.kept_documents, base::format_bytes(step.tally.bytes - step.tally.kept_bytes));
  out << fmt::format("{}: {} of {} documents in {} file{}, in {}; what was removed, with examples: report.md\n", recipe.folder, kept,
                     documents, result.files.size(), result.files.size() > 1 ? "s" : "", base::format_duration(seconds_since(start)));
  return 0;
}

static std::vector<std::string> documents_of(const std::vector<std::string>& names, const std::string& field, int64_t& left_bytes) {
  TextOptions options;
  options.field = field;
  TextReader reader(paths_of(names), options);
  std::vector<std::string> documents;
  std::string open;
  for (TextBlock block; reader.next(block);)
    for (auto& part : parse_block(block, options).parts) {
      left_bytes -= static_cast<int64_t>(part.text.size());
      if (left_bytes < 0) throw base::DataError("there is more text than --max-bytes allows: all of it is held in memory");
      open += part.text;
      if (part.ends_document) documents.push_back(std::exchange(open, ""));
    }
  return documents;
}

int run_data_train_classifier(const TrainClassifierCommand& command, std::ostream& out) {
  if (command.positive.empty() || command.negative.empty()) throw base::UsageError("name files with --positive and with --negative");
  require(command.output, "--output", "name the file to write");
  const auto start = std::chrono::steady_clock::now();
  int64_t left_bytes = command.max_bytes;
  const auto positive = documents_of(command.positive, command.field, left_bytes);
  const auto negative = documents_of(command.negative, command.field, left_bytes);
  process::ClassifierResult result;
  const auto classifier =
      process::train_classifier(positive, negative, {.epochs = command.epochs, .seed = static_cast<uint64_t>(command.seed)}, result);
  classifier.save(command.output);
  if (command.json) {
    print(out, {{"classifier", command.output},
                {"positive", result.positive},
                {"negative", result.negative},
                {"held_out", result.held_out},
                {"accuracy", result.accuracy},
                {"auc", result.auc},
                {"seconds", seconds_since(start)}});
  } else {
    out << fmt::format("{}: of {} documents that were held out {:.1f} % are told apart at 0.5, AUC {:.4f}; trained on {} and {} in {}\n",
                       command.output, result.held_out, 100 * result.accuracy, result.auc, result.positive, result.negative,
                       base::format_duration(seconds_since(start)));
  }
  return 0;
}

namespace {

constexpr int64_t kLargestBlend = int64_t{4} << 20;

ImportedBlend blend_of(const ImportBlendCommand& command) {
  const bool is_split = !command.train_data_path.empty() || !command.valid_data_path.empty() || !command.test_data_path.empty();
  const int forms = !command.data_path.empty() + !command.data_args_path.empty() + !command.per_split_data_args_path.empty() +
                    !command.nemo.empty() + is_split;
  if (forms != 1)
    throw base::UsageError(
        "name one of --data-path, --data-args-path, --per-split-data-args-path, --nemo, or --train-data-path with --valid-data-path and "
        "--test-data-path");
  const auto text_of = [](const std::string& path) { return base::read_file(path, kLargestBlend); };
  if (!command.per_split_data_args_path.empty())
    return parse_per_split_data_args(text_of(command.per_split_data_args_path), command.per_split_data_args_path);
  if (!command.nemo.empty()) return parse_nemo_data_prefix(text_of(command.nemo), command.nemo);
  ImportedBlend blend;
  if (!command.data_args_path.empty()) blend.train = parse_data_args(text_of(command.data_args_path), command.data_args_path);
  else
    blend.train =
        is_split ? parse_data_path(command.train_data_path, "--train-data-path") : parse_data_path(command.data_path, "--data-path");
  if (!command.valid_data_path.empty()) blend.validation = parse_data_path(command.valid_data_path, "--valid-data-path");
  if (!command.test_data_path.empty()) blend.test = parse_data_path(command.test_data_path, "--test-data-path");
  return blend;
}

Json entries_json(const std::vector<ImportedBlend::Entry>& entries) {
  Json all = Json::array();
  for (const auto& entry : entries) all.push_back({{"path", entry.path}, {"weight", entry.weight ? Json(*entry.weight) : Json()}});
  return all;
}

}  // namespace

int run_data_import_blend(const ImportBlendCommand& command, std::ostream& out) {
  const auto blend = blend_of(command);
  require_files(blend);
  const auto is_weighted = [](const auto& entry) { return entry.weight.has_value(); };
  if (std::any_of(blend.validation.begin(), blend.validation.end(), is_weighted))
    base::log_warning("the weights of the validation data are left out: ingot's validation goes through all of data.validation in order");
  const auto settings = settings_of(blend);
  if (!command.output.empty()) base::write_file_atomically(command.output, settings);
  if (command.json)
    print(out, {{"train", entries_json(blend.train)}, {"validation", entries_json(blend.validation)}, {"test", entries_json(blend.test)}});
  else if (command.output.empty()) out << settings;
  return 0;
}

int run_data_export_tokenizer(const ExportTokenizerCommand& command, std::ostream& out) {
  require(command.output, "--output", "name the folder to write into");
  const auto tokenizer = load_tokenizer(command.tokenizer);
  base::make_directories(command.output);
  const auto result = export_tokenizer(*tokenizer, command.output);
  if (command.json) print(out, {{"output", command.output}, {"tokenizer_json", result.tokenizer_json}, {"why_not", result.why_not}});
  else
    out << fmt::format("{}: {}\n", command.output,
                       result.tokenizer_json ? "tokenizer.json with the same ids, and what belongs to it"
                                             : "no tokenizer.json, because " + result.why_not);
  return result.tokenizer_json ? 0 : 3;
}

}  // namespace ingot::data
