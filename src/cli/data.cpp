// `ingot data`: tokenizers and token files.
#include <iostream>

#include "base/files.h"
#include "cli/verb.h"
#include "data/commands.h"
#include "data/export_tokenizer.h"

namespace ingot::cli {
namespace {

struct DataOptions {
  data::TextFlags text{.format = "auto", .split = "paragraph", .field = "text"};
  std::vector<std::string> symbols;
  std::string output, tokenizer, type = "unigram";
  int64_t vocab_size = 8192, threads = 0, samples = 3, seed = 0, max_sentences = 1'000'000, max_bytes = int64_t{64} << 20;
  double coverage = 0.9995;
  bool join_digits = false, whitespace_pieces = false, no_eos = false, bos = false;
};

void add_text_flags(CLI::App& verb, data::TextFlags& o) {
  verb.add_option("inputs", o.inputs, "text or .jsonl files")->required();
  verb.add_option("--format", o.format, "auto (by the file's ending), text or jsonl")->check(CLI::IsMember({"auto", "text", "jsonl"}));
  verb.add_option("--split", o.split,
                  "what a document of plain text is: document-per-file, line, or paragraph (ends at a blank line; default)")
      ->check(CLI::IsMember({"document-per-file", "line", "paragraph"}));
  verb.add_option("--field", o.field, "member of a JSON line that holds the text");
  verb.add_flag("--skip-bad", o.skip_bad, "pass over malformed JSON lines and count them");
  verb.add_flag("--strict-utf8", o.strict_utf8, "stop at bytes that are not UTF-8 instead of replacing them");
}

int train_tokenizer(const DataOptions& o, bool json) {
  base::make_directories(o.output);
  const auto model = (base::fs::path(o.output) / "tokenizer.model").string();
  const int status = data::run_data_train_tokenizer({.text = o.text,
                                                     .output = model,
                                                     .algorithm = o.type,
                                                     .vocab_size = o.vocab_size,
                                                     .character_coverage = o.coverage,
                                                     .max_sentences = o.max_sentences,
                                                     .max_bytes = o.max_bytes,
                                                     .join_digits = o.join_digits,
                                                     .whitespace_pieces = o.whitespace_pieces,
                                                     .user_symbols = o.symbols,
                                                     .seed = o.seed,
                                                     .json = json},
                                                    std::cout);
  if (status == 0) data::export_tokenizer(*data::load_tokenizer(model), o.output);
  return status;
}

}  // namespace

void add_data(Flags& flags) {
  const auto values = std::make_shared<DataOptions>();
  auto& o = *values;
  flags.group("data", "tokenizers and token files");
  auto& train = flags.verb("data", "train-tokenizer", "train a SentencePiece tokenizer with byte fallback on texts", values);
  add_text_flags(train, o.text);
  train.add_option("-o,--output", o.output, "folder for tokenizer.model and tokenizer.json")->required();
  train.add_option("--vocab-size", o.vocab_size, "number of tokens")->check(CLI::Range(int64_t{300}, int64_t{1} << 22));
  train.add_option("--type", o.type, "unigram or bpe")->check(CLI::IsMember({"unigram", "bpe"}));
  train.add_option("--coverage", o.coverage, "share of characters that get tokens of their own; the rest falls back to bytes")
      ->check(CLI::Range(0.9, 1.0));
  train.add_option("--max-sentences", o.max_sentences, "sentences to sample")->check(CLI::PositiveNumber);
  train.add_option("--max-bytes", o.max_bytes, "bytes to sample")->check(CLI::PositiveNumber);
  train.add_option("--symbol", o.symbols, "a text that is always one token; may be given several times")->allow_extra_args(false);
  train.add_option("--seed", o.seed, "of the sampling")->check(CLI::NonNegativeNumber);
  train.add_flag("--join-digits", o.join_digits, "numbers may be one token (default: every digit its own)");
  train.add_flag("--whitespace-pieces", o.whitespace_pieces, "runs of spaces may be one token, as code needs");

  auto& tokenize = flags.verb("data", "tokenize", "texts to .bin/.idx (Megatron's format)", values);
  add_text_flags(tokenize, o.text);
  tokenize.add_option("-o,--output", o.output, "prefix of the .bin and .idx files")->required();
  tokenize.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder")->required();
  tokenize.add_option("--threads", o.threads, "0 = all cores")->check(CLI::Range(int64_t{0}, int64_t{4096}));
  tokenize.add_flag("--no-eos", o.no_eos, "do not end every document with the tokenizer's eos");
  tokenize.add_flag("--bos", o.bos, "begin every document with the tokenizer's bos");

  auto& inspect = flags.verb("data", "inspect", "what a .bin/.idx pair holds", values);
  inspect.add_option("inputs", o.text.inputs, "prefix of the .bin and .idx files")->required()->expected(1);
  inspect.add_option("--tokenizer", o.tokenizer, "show documents as text, and check that the ids fit");
  inspect.add_option("--samples", o.samples, "how many documents to show")->check(CLI::NonNegativeNumber);

  auto& give = flags.verb("data", "export-tokenizer", "a tokenizer as Hugging Face's tokenizer.json", values);
  give.add_option("tokenizer", o.tokenizer, "tokenizer file or folder")->required();
  give.add_option("-o,--output", o.output, "folder to write")->required();
}

int run_data(const Call& call) {
  const auto& o = call.options<DataOptions>();
  if (call.action == "train-tokenizer") return train_tokenizer(o, call.json);
  if (call.action == "tokenize")
    return data::run_data_tokenize({.text = o.text,
                                    .tokenizer = o.tokenizer,
                                    .output = o.output,
                                    .threads = static_cast<int>(o.threads),
                                    .no_eos = o.no_eos,
                                    .bos = o.bos,
                                    .json = call.json},
                                   std::cout);
  if (call.action == "export-tokenizer")
    return data::run_data_export_tokenizer({.tokenizer = o.tokenizer, .output = o.output, .json = call.json}, std::cout);
  return data::run_data_inspect({.path = o.text.inputs.front(), .tokenizer = o.tokenizer, .samples = o.samples, .json = call.json},
                                std::cout);
}

}  // namespace ingot::cli
