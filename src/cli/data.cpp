// `ingot data`: tokenizers and token files. In both of the program's files: texts that have a URL need a client whose libraries take 9 ms
// to load.
#include <iostream>

#include "base/error.h"
#include "base/files.h"
#include "cli/data_inspect.h"
#include "cli/verb.h"
#include "data/commands.h"
#include "data/export_tokenizer.h"
#include "data/remote/files.h"
#ifdef INGOT_COMPUTES
#include "cli/remote_files.h"
#endif

namespace ingot::cli {
namespace {

#ifndef INGOT_COMPUTES
void add_text_flags(CLI::App& verb, data::TextFlags& o) {
  o.split = "paragraph";
  verb.add_option("inputs", o.inputs, "text, .jsonl or Parquet files; text may be compressed with gzip, zstd or bzip2")->required();
  verb.add_option("--format", o.format, "auto (by the file's ending), text or jsonl; Parquet is known by its beginning")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}));
  verb.add_option("--split", o.split,
                  "what a document of plain text is: document-per-file, line, or paragraph (ends at a blank line; default)")
      ->check(CLI::IsMember({"document-per-file", "line", "paragraph"}));
  verb.add_option("--field", o.field, "member of a JSON line, or column of Parquet, that holds the text");
  verb.add_flag("--skip-bad", o.skip_bad, "pass over malformed JSON lines, and rows without a text, and count them");
  verb.add_flag("--strict-utf8", o.strict_utf8, "stop at bytes that are not UTF-8 instead of replacing them");
}

void add_train_tokenizer(Flags& flags) {
  const auto values = std::make_shared<data::TrainTokenizerCommand>();
  auto& o = *values;
  auto& verb =
      flags.verb("data", "train-tokenizer", "train a tokenizer on texts: SentencePiece with byte fallback, or byte-level BPE", values);
  add_text_flags(verb, o.text);
  verb.add_option("-o,--output", o.output, "folder for tokenizer.json, and of SentencePiece tokenizer.model")->required();
  verb.add_option("--vocab-size", o.vocab_size, "number of tokens")->check(CLI::Range(int64_t{300}, int64_t{1} << 22));
  verb.add_option("--type", o.algorithm, "unigram or bpe of SentencePiece, or byte-bpe as GPT-4 and Llama 3 have it")
      ->check(CLI::IsMember({"unigram", "bpe", "byte-bpe"}));
  verb.add_option("--coverage", o.character_coverage, "share of characters that get tokens of their own; the rest falls back to bytes")
      ->check(CLI::Range(0.9, 1.0));
  verb.add_option("--max-sentences", o.max_sentences, "sentences to sample")->check(kPositive);
  verb.add_option("--max-bytes", o.max_bytes, "bytes to sample")->check(kPositive);
  verb.add_option("--symbol", o.user_symbols, "a text that is always one token; may be given several times")->allow_extra_args(false);
  verb.add_option("--seed", o.seed, "of the sampling")->check(kNotNegative);
  verb.add_flag("--join-digits", o.join_digits, "numbers may be one token (default: every digit its own)");
  verb.add_flag("--whitespace-pieces", o.whitespace_pieces, "runs of spaces may be one token, as code needs");
}

void add_tokenize(Flags& flags) {
  const auto values = std::make_shared<data::TokenizeCommand>();
  auto& o = *values;
  auto& verb =
      flags.verb("data", "tokenize", "texts to .bin/.idx (Megatron's format); a killed call goes on, several share the work", values);
  add_text_flags(verb, o.text);
  verb.add_option("-o,--output", o.output, "prefix of the .bin and .idx files")->required();
  verb.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder")->required();
  verb.add_option("--threads", o.threads, "0 = all cores")->check(CLI::Range(int64_t{0}, int64_t{4096}));
  verb.add_flag("--chat", o.chat,
                "JSON lines are conversations (\"messages\"), written by the tokenizer's chat template; only answers are learned");
  verb.add_flag("--preferences", o.preferences,
                "with --chat: lines are pairs of answers (\"prompt\", \"chosen\", \"rejected\"), for train.dpo_beta");
  verb.add_option("--template", o.chat_template, "with --chat: a chat template (Jinja) in place of the tokenizer's");
  verb.add_option(
          "--trim-to", o.trim_to,
          "with --chat: conversations of more tokens lose thoughts until they fit, not prompts or answers; what does not fit without "
          "is left out")
      ->check(kPositive);
  verb.add_option("--think-tags", o.think_tags, "with --trim-to: what opens and closes thoughts (<think> </think>)")->expected(2);
  verb.add_flag("--overwrite", o.overwrite, "replace a dataset, or unfinished pieces, of other inputs or settings");
  verb.add_option("--lease", o.lease_s, "seconds without a sign of life of another process until its piece is done anew")
      ->check(CLI::Range(1.0, 3600.0));
  verb.add_option("--piece-bytes", o.piece_bytes)->check(kPositive)->group("");  // tests make it small
  verb.add_flag("--no-eos", o.no_eos, "do not end every document with the tokenizer's eos");
  verb.add_flag("--bos", o.bos, "begin every document with the tokenizer's bos");
}

void add_process(Flags& flags) {
  const auto values = std::make_shared<data::ProcessCommand>();
  auto& o = *values;
  auto& verb =
      flags.verb("data", "process", "cleans texts by a recipe: duplicates, rules of quality, evaluation texts, personal data", values);
  verb.add_option("recipe", o.recipe, "RECIPE.toml: sources, steps, where to write (docs/data.md)");
  verb.add_option("-o,--output", o.output, "folder to write into, in place of the recipe's");
  verb.add_option("--threads", o.threads, "0 = all cores")->check(CLI::Range(int64_t{0}, int64_t{4096}));
  verb.add_flag("--rules", o.rules, "print the measures and sets of rules that recipes name");
}

void add_train_classifier(Flags& flags) {
  const auto values = std::make_shared<data::TrainClassifierCommand>();
  auto& o = *values;
  auto& verb = flags.verb("data", "train-classifier", "train a linear classifier of texts on two heaps of them, for recipes", values);
  verb.add_option("--positive", o.positive, "texts that are wanted: .jsonl, Parquet, or one document to a file")->required();
  verb.add_option("--negative", o.negative, "texts that are not")->required();
  verb.add_option("-o,--output", o.output, "file to write")->required();
  verb.add_option("--field", o.field, "member of a JSON line, or column of Parquet, that holds the text");
  verb.add_option("--epochs", o.epochs, "times that it sees every document")->check(CLI::Range(int64_t{1}, int64_t{1000}));
  verb.add_option("--seed", o.seed, "of the order, and of which documents are held out")->check(kNotNegative);
  verb.add_option("--max-bytes", o.max_bytes, "of text, which is held in memory")->check(kPositive);
}

void add_diff(Flags& flags) {
  const auto values = std::make_shared<data::DiffCommand>();
  auto& o = *values;
  auto& verb = flags.verb("data", "diff", "which documents two .bin/.idx pairs have in common", values);
  verb.add_option("a", o.a, "prefix of the one")->required();
  verb.add_option("b", o.b, "prefix of the other")->required();
  verb.add_option("--tokenizer", o.tokenizer, "show documents as text");
  verb.add_option("--samples", o.samples, "documents of each side's own to show")->check(kNotNegative);
}

void add_inspect(Flags& flags) {
  const auto values = std::make_shared<data::InspectCommand>();
  auto& o = *values;
  auto& verb = flags.verb("data", "inspect", "what a .bin/.idx pair holds, or what a run is fed with", values);
  verb.add_option("inputs", o.path, "prefix of the .bin and .idx files; or --config");
  verb.add_option("--tokenizer", o.tokenizer, "show documents as text, and check that the ids fit");
  verb.add_option("--samples", o.samples, "how many documents to show (default 3; 8 on a page, or so many samples of each phase of a run)")
      ->check(kNotNegative);
  verb.add_option("-o,--output", o.output,
                  "write a page (.html) with texts token by token, lengths, the vocabulary and copies; --json then has its numbers");
  verb.add_option("--config", o.config, "configuration (TOML) of a run: its sources and first samples, in place of a prefix");
  add_set(verb, o.set, "key=value over the configuration of --config");
}

void add_import_blend(Flags& flags) {
  const auto values = std::make_shared<data::ImportBlendCommand>();
  auto& o = *values;
  auto& verb = flags.verb("data", "import-blend", "a blend of Megatron-LM or NeMo as settings of a run (TOML)", values);
  verb.add_option("--data-path", o.data_path,
                  "WEIGHT PREFIX pairs, or prefixes alone: by size; this and the next five as Megatron has them");
  verb.add_option("--data-args-path", o.data_args_path, "file with what --data-path takes");
  verb.add_option("--train-data-path", o.train_data_path, "as --data-path, of training");
  verb.add_option("--valid-data-path", o.valid_data_path, "the same of validation");
  verb.add_option("--test-data-path", o.test_data_path, "the same of a test, which becomes a comment");
  verb.add_option("--per-split-data-args-path", o.per_split_data_args_path, "JSON with the lists train, valid and test");
  verb.add_option("--nemo", o.nemo, "NeMo's YAML, of which data_prefix is read: a list, or train, validation and test of lists");
  verb.add_option("-o,--output", o.output, "TOML file to write; without, it is printed");
}

void add_export_tokenizer(Flags& flags) {
  const auto values = std::make_shared<data::ExportTokenizerCommand>();
  auto& verb = flags.verb("data", "export-tokenizer", "a tokenizer as Hugging Face's tokenizer.json", values);
  verb.add_option("tokenizer", values->tokenizer, "tokenizer file or folder")->required();
  verb.add_option("-o,--output", values->output, "folder to write")->required();
}

// A URL was named, which the library opens.
struct IsOfTheLibrary {};
class UrlsOfTheLibrary : public data::RemoteFiles {
 public:
  std::unique_ptr<data::RemoteFile> open(const std::string&) const override { throw IsOfTheLibrary(); }
  bool is_there(const std::string&) const override { throw IsOfTheLibrary(); }
  std::vector<std::string> names_in(const std::string&) const override { throw IsOfTheLibrary(); }
};
#endif

// The values of the verb that was called.
template <class Command>
Command command_of(const Call& call) {
  auto command = call.options<Command>();
  command.json = call.json;
  return command;
}

int train_tokenizer(data::TrainTokenizerCommand command) {
  const auto folder = command.output;
  std::error_code ignored;
  const bool was_there = base::fs::exists(folder, ignored);
  base::make_directories(folder);  // before the work: what cannot be written is known at once
  const bool is_byte_bpe = command.algorithm == "byte-bpe";
  command.output = (base::fs::path(folder) / (is_byte_bpe ? "tokenizer.json" : "tokenizer.model")).string();
  try {
    const int status = data::run_data_train_tokenizer(command, std::cout);
    if (status == 0 && !is_byte_bpe) data::export_tokenizer(*data::load_tokenizer(command.output), folder);
    return status;
  } catch (...) {
    if (!was_there) base::fs::remove(folder, ignored);  // if it is empty
    throw;
  }
}

int inspect(const data::InspectCommand& command) {
  if (command.path.empty() == command.config.empty())
    throw base::UsageError("name the prefix of a .bin/.idx pair, or a configuration with --config, and not both");
  if (command.config.empty() && !command.set.empty()) throw base::UsageError("--set goes with --config");
  if (!command.output.empty() && !command.output.ends_with(".html"))
    throw base::UsageError("-o {}: a page has a name that ends in .html", command.output);
  if (command.config.empty() && command.output.empty()) return data::run_data_inspect(command, std::cout);
  if (command.output.empty() && !command.json) throw base::UsageError("--config goes with -o PAGE.html or --json");
  return inspect_as_page(command);
}

int run_here(const Call& call) {
  if (call.action == "train-tokenizer") return train_tokenizer(command_of<data::TrainTokenizerCommand>(call));
  if (call.action == "tokenize") return data::run_data_tokenize(command_of<data::TokenizeCommand>(call), std::cout);
  if (call.action == "process") return data::run_data_process(command_of<data::ProcessCommand>(call), std::cout);
  if (call.action == "train-classifier") return data::run_data_train_classifier(command_of<data::TrainClassifierCommand>(call), std::cout);
  if (call.action == "diff") return data::run_data_diff(command_of<data::DiffCommand>(call), std::cout);
  if (call.action == "inspect") return inspect(command_of<data::InspectCommand>(call));
  if (call.action == "import-blend") return data::run_data_import_blend(command_of<data::ImportBlendCommand>(call), std::cout);
  return data::run_data_export_tokenizer(command_of<data::ExportTokenizerCommand>(call), std::cout);
}

}  // namespace

#ifndef INGOT_COMPUTES
void add_data(Flags& flags) {
  flags.group("data", "tokenizers and token files");
  add_train_tokenizer(flags);
  add_tokenize(flags);
  add_process(flags);
  add_train_classifier(flags);
  add_diff(flags);
  add_inspect(flags);
  add_import_blend(flags);
  add_export_tokenizer(flags);
}
#endif

int run_data(const Call& call) {
#ifdef INGOT_COMPUTES
  return run_here(call);
#else
  // The library reads the configuration of a run.
  if (call.action == "inspect" && !call.options<data::InspectCommand>().config.empty()) return run_in_library(call);
  static const UrlsOfTheLibrary urls;
  data::set_remote_files(urls);
  try {
    return run_here(call);
  } catch (const IsOfTheLibrary&) {  // before anything was written: files are looked at first
    return run_in_library(call);
  }
#endif
}

}  // namespace ingot::cli
