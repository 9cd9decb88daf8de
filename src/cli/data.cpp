#include <iostream>

#include "base/files.h"
#include "cli/verbs.h"
#include "data/commands.h"
#include "data/export_tokenizer.h"

namespace ingot::cli {
namespace {

data::TextFlags text_of(const DataOptions& o) {
  return {.inputs = o.inputs, .format = o.format, .split = o.split, .field = o.field, .skip_bad = o.skip_bad, .strict_utf8 = o.strict_utf8};
}

}  // namespace

int run_data(const Options& all) {
  const auto& o = all.data;
  if (o.action == "train-tokenizer") {
    base::make_directories(o.output);
    const auto model = (base::fs::path(o.output) / "tokenizer.model").string();
    const int status = data::run_data_train_tokenizer({.text = text_of(o),
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
                                                       .json = all.json},
                                                      std::cout);
    if (status == 0) data::export_tokenizer(*data::load_tokenizer(model), o.output);
    return status;
  }
  if (o.action == "tokenize")
    return data::run_data_tokenize({.text = text_of(o),
                                    .tokenizer = o.tokenizer,
                                    .output = o.output,
                                    .threads = static_cast<int>(o.threads),
                                    .no_eos = o.no_eos,
                                    .bos = o.bos,
                                    .json = all.json},
                                   std::cout);
  if (o.action == "export-tokenizer")
    return data::run_data_export_tokenizer({.tokenizer = o.tokenizer, .output = o.output, .json = all.json}, std::cout);
  return data::run_data_inspect({.path = o.inputs.front(), .tokenizer = o.tokenizer, .samples = o.samples, .json = all.json}, std::cout);
}

}  // namespace ingot::cli
