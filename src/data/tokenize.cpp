#include "data/tokenize.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "data/encoded_block.h"
#include "data/ordered_pipeline.h"

namespace ingot::data {
namespace {

using base::DataError;

// Puts encoded blocks behind one another and ends documents where the text ended them.
class Assembler {
 public:
  Assembler(const Tokenizer& tokenizer, const TokenizeOptions& options, TokenType type)
      : options_(options), special_(tokenizer.special()), writer_(options.output, type) {}

  void add(const EncodedBlock& block, TokenizeResult& result) {
    auto rest = std::span<const int32_t>(block.tokens);
    for (const auto& part : block.parts) {
      if (part.tokens > 0 && !inside_) {
        inside_ = true;
        if (options_.prepend_bos) writer_.append({&special_.bos, 1});
      }
      writer_.append(rest.first(part.tokens), part.is_learned);
      if (part.is_learned) result.learned += static_cast<int64_t>(part.tokens);
      rest = rest.subspan(part.tokens);
      if (part.ends_document) end(result);
    }
  }

  void finish(TokenizeResult& result) {
    if (inside_) end(result);
    if (writer_.documents() == 0) throw DataError("{} holds no text: nothing was written", options_.inputs.front().string());
    writer_.finish();
    result.documents = writer_.documents();
    result.tokens = writer_.tokens();
  }

 private:
  void end(TokenizeResult& result) {
    if (!inside_) {
      ++result.empty_documents;
      return;
    }
    if (options_.append_eos) writer_.append({&special_.eos, 1});
    writer_.end_document();
    inside_ = false;
  }

  const TokenizeOptions& options_;
  SpecialTokens special_;
  IndexedDatasetWriter writer_;
  bool inside_ = false;  // the present document has tokens
};

}  // namespace

TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& given) {
  auto options = given;
  if (options.chat_template) {
    options.append_eos = options.prepend_bos = false;  // the template writes them
    options.text.format = TextFormat::jsonl;
    options.text.whole_lines = true;
  }
  if (options.append_eos && tokenizer.special().eos < 0)
    throw DataError(
        "{} has no end-of-sequence token to put after each document: name one in tokenizer_config.json or leave it out with --no-eos",
        tokenizer.path().string());
  if (options.prepend_bos && tokenizer.special().bos < 0) throw DataError("{} has no begin-of-sequence token", tokenizer.path().string());
  constexpr int kMostThreads = 256;
  const int wished = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  const int threads = std::clamp(wished, 1, kMostThreads);

  TextReader reader(options.inputs, options.text);
  TokenizeResult result;
  result.token_type = token_type_for(tokenizer.vocab_size());
  Assembler assembler(tokenizer, options, result.token_type);
  int64_t read_bytes = 0;
  run_ordered<TextBlock, EncodedBlock>(
      threads, static_cast<size_t>(2 * threads + 2), [&](TextBlock& block) { return reader.next(block); },
      [&](TextBlock block) { return encode(tokenizer, block, options); },
      [&](EncodedBlock block) {
        assembler.add(block, result);
        result.input_bytes += block.counts.bytes;
        result.bad_lines += block.counts.bad_lines;
        result.invalid_utf8 += block.counts.invalid_utf8;
        if (result.first_problem.empty()) result.first_problem = block.counts.first_problem;
        read_bytes += block.counts.read_bytes;
        if (options.progress) options.progress(read_bytes, reader.total_bytes());
      });
  assembler.finish(result);
  return result;
}

}  // namespace ingot::data
