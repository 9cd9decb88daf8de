// A SentencePiece `.model` file as data: the few fields of its protocol buffer that decide how text becomes ids. The file is
// read here, with every bound checked, before the library sees any of it: the library aborts the program, or reads past a
// table, where a file contradicts itself.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::data {

enum class PieceType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

struct SentencePieceModel {
  enum class Algorithm : int32_t { unigram = 1, bpe = 2 };

  std::vector<SentencePiece> pieces;
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string normalizer_name;
  std::string character_map;  // compiled normalisation rules: u32 size, double-array trie, texts separated by NUL
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>", unk_surface = " \xE2\x81\x87 ";

  /// Throws DataError naming `origin` when the bytes are not a model, or one that cannot be trusted.
  static SentencePieceModel parse(std::string_view bytes, const std::string& origin);
  /// A protocol buffer with these fields and no others.
  std::string serialize() const;

  bool is_lossless() const { return character_map.empty() && !remove_extra_whitespaces && escape_whitespaces && !whitespace_as_suffix; }
  /// Id of "<0x00>".."<0xFF>" by byte, -1 where missing.
  std::array<int32_t, 256> byte_ids() const;
};

/// The value of a byte piece, "<0x4F>", or -1.
int byte_of_piece(std::string_view piece);
std::string piece_of_byte(int byte);

}  // namespace ingot::data
