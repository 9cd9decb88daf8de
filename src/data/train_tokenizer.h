// Trains a SentencePiece vocabulary, or byte-level BPE (train_byte_bpe.h), on text files. Deterministic: the same files and options give
// the same model, byte for byte, on any machine with the same SentencePiece.
//
// The text is taken as it is (no Unicode normalisation, no dummy prefix, no squeezing of spaces) and unknown characters
// fall back to bytes, so that every text survives encoding and decoding exactly, and the model can be exported to a
// tokenizer.json that gives the same ids (export_tokenizer.h).
#pragma once

#include <functional>

#include "data/text_reader.h"

namespace ingot::data {

struct TrainTokenizerOptions {
  std::vector<fs::path> inputs;
  /// The .model file; PREFIX.vocab, one piece and score a line, is written beside it. Of byte-bpe a tokenizer.json, and a
  /// tokenizer_config.json.
  fs::path output;
  TextOptions text;
  std::string algorithm = "unigram";  // or "bpe", "byte-bpe"
  int64_t vocab_size = 8192;
  double character_coverage = 0.9995;     // of the characters that become pieces; the rest fall back to bytes
  int64_t max_sentences = 1'000'000;      // sampled uniformly from all lines
  int64_t max_bytes = int64_t{64} << 20;  // of the sampled sentences
  bool split_digits = true;               // every digit its own piece
  bool whitespace_pieces = false;         // runs of spaces may become pieces, as code needs
  std::vector<std::string> user_symbols;  // always one piece, never split
  int64_t seed = 0;                       // of the sampling
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // of reading
};

struct TrainTokenizerResult {
  int64_t sentences_read = 0, sentences_used = 0, bytes_used = 0, vocab_size = 0;
};

/// Ids: pad 0, eos 1, bos 2, unk 3 (ZAYA's and Gemma's), then 256 bytes, then pieces. Throws DataError when the text is too
/// small for the vocabulary or SentencePiece refuses, UsageError for impossible options; the model appears whole or not at all.
TrainTokenizerResult train_tokenizer(const TrainTokenizerOptions& options);

}  // namespace ingot::data
