#include "data/sentencepiece_model.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

// Field numbers of sentencepiece_model.proto.
enum ModelField { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kDenormalizerSpec = 5 };
enum PieceField { kText = 1, kScore = 2, kType = 3 };
enum TrainerField {
  kModelType = 3,
  kVocabSize = 4,
  kWhitespaceAsSuffix = 24,
  kByteFallback = 35,
  kUnkId = 40,
  kBosId = 41,
  kEosId = 42,
  kPadId = 43,
  kUnkSurface = 44,
  kUnkPiece = 45,
  kBosPiece = 46,
  kEosPiece = 47,
  kPadPiece = 48
};
enum NormalizerField { kName = 1, kCharacterMap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4, kEscapeWhitespaces = 5 };

struct Malformed {
  std::string reason;
};

struct Field {
  uint64_t number = 0;
  int wire = 0;            // 0 varint, 1 eight bytes, 2 bytes, 5 four bytes
  uint64_t value = 0;      // of wire types 0, 1 and 5
  std::string_view bytes;  // of wire type 2
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = {key >> 3, static_cast<int>(key & 7), 0, {}};
    switch (field.wire) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed<uint64_t>(); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.value = fixed<uint32_t>(); break;
      default: throw Malformed{"it is not a protocol buffer"};
    }
    return true;
  }

 private:
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) throw Malformed{"it is cut short"};
    const auto part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }
  template <class T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw Malformed{"it is not a protocol buffer"};
  }

  std::string_view rest_;
};

class WireWriter {
 public:
  void number(uint64_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void text(uint64_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes.append(value);
  }
  void real(uint64_t field, float value) {
    varint(field << 3 | 5);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::string bytes;

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
};

std::string_view bytes_of(const Field& field) {
  if (field.wire != 2) throw Malformed{fmt::format("field {} has the wrong wire type", field.number)};
  return field.bytes;
}

uint64_t number_of(const Field& field) {
  if (field.wire != 0) throw Malformed{fmt::format("field {} has the wrong wire type", field.number)};
  return field.value;
}

std::string text_of(const Field& field) {
  const auto bytes = bytes_of(field);
  if (!is_valid_utf8(bytes)) throw Malformed{fmt::format("the text of field {} is not UTF-8", field.number)};
  return std::string(bytes);
}

SentencePiece parse_piece(std::string_view bytes) {
  SentencePiece piece;
  WireReader reader(bytes);
  for (Field field; reader.next(field);) {
    if (field.number == kText) piece.text = text_of(field);
    if (field.number == kType) piece.type = static_cast<PieceType>(std::min<uint64_t>(number_of(field), 99));
    if (field.number == kScore) {
      if (field.wire != 5) throw Malformed{"a score has the wrong wire type"};
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&piece.score, &bits, sizeof(bits));
    }
  }
  return piece;
}

void parse_trainer(std::string_view bytes, SentencePieceModel& model) {
  WireReader reader(bytes);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case kModelType: {
        const uint64_t type = number_of(field);
        if (type != 1 && type != 2) throw Malformed{fmt::format("its model type {} is neither unigram (1) nor BPE (2)", type)};
        model.algorithm = static_cast<SentencePieceModel::Algorithm>(type);
        break;
      }
      case kWhitespaceAsSuffix: model.whitespace_as_suffix = number_of(field) != 0; break;
      case kByteFallback: model.byte_fallback = number_of(field) != 0; break;
      case kUnkSurface: model.unk_surface = text_of(field); break;
      case kUnkPiece: model.unk_piece = text_of(field); break;
      case kBosPiece: model.bos_piece = text_of(field); break;
      case kEosPiece: model.eos_piece = text_of(field); break;
      case kPadPiece: model.pad_piece = text_of(field); break;
      default: break;
    }
  }
}

void parse_normalizer(std::string_view bytes, SentencePieceModel& model) {
  WireReader reader(bytes);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case kName: model.normalizer_name = text_of(field); break;
      case kCharacterMap: model.character_map = bytes_of(field); break;
      case kAddDummyPrefix: model.add_dummy_prefix = number_of(field) != 0; break;
      case kRemoveExtraWhitespaces: model.remove_extra_whitespaces = number_of(field) != 0; break;
      case kEscapeWhitespaces: model.escape_whitespaces = number_of(field) != 0; break;
      default: break;
    }
  }
}

void refuse_denormalizer(std::string_view bytes) {
  SentencePieceModel only;
  parse_normalizer(bytes, only);
  if (!only.character_map.empty()) throw Malformed{"it has denormalisation rules, which are not supported"};
}

constexpr size_t kLongestReplacement = 128;  // bytes; Unicode's longest, of U+FDFA, has 33

// The trie's units are followed by xor of offsets and bytes: each must stay inside, and each text it names must end inside.
void check_character_map(std::string_view map) {
  if (map.empty()) return;
  uint32_t trie_bytes = 0;
  if (map.size() < sizeof(trie_bytes)) throw Malformed{"its character map is cut short"};
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  if (trie_bytes % 1024 != 0 || trie_bytes == 0 || trie_bytes > map.size() - sizeof(trie_bytes))
    throw Malformed{"its character map has an impossible size"};
  const char* units = map.data() + sizeof(trie_bytes);
  const size_t count = trie_bytes / 4, texts = map.size() - sizeof(trie_bytes) - trie_bytes;
  if (texts == 0 || map.back() != '\0') throw Malformed{"the texts of its character map do not end"};
  const auto unit_at = [&](size_t i) {
    uint32_t unit = 0;
    std::memcpy(&unit, units + 4 * i, 4);
    return unit;
  };
  for (size_t i = 0; i < count; ++i) {
    const uint32_t unit = unit_at(i);
    if (unit >> 31) continue;  // a value, or never reached: its label matches no byte
    const size_t next = i ^ ((unit >> 10) << ((unit & (1u << 9)) >> 6));
    if ((next | 0xFF) >= count) throw Malformed{fmt::format("unit {} of its character map points outside", i)};
    if ((unit >> 8 & 1) && (unit_at(next) & 0x7FFFFFFF) >= texts)
      throw Malformed{fmt::format("unit {} of its character map names no text", i)};
  }
  if (unit_at(0) >> 31) throw Malformed{"its character map has no root"};
  const std::string_view replacements = map.substr(sizeof(trie_bytes) + trie_bytes);
  for (size_t begin = 0; begin < replacements.size(); begin = replacements.find('\0', begin) + 1) {
    if (replacements.find('\0', begin) - begin > kLongestReplacement) throw Malformed{"its character map turns a character into a page"};
  }
  if (!is_valid_utf8(replacements)) throw Malformed{"the texts of its character map are not UTF-8"};
}

void check_pieces(const SentencePieceModel& model) {
  if (model.pieces.empty()) throw Malformed{"it has no pieces"};
  if (model.pieces.size() > 10'000'000) throw Malformed{fmt::format("it has {} pieces", model.pieces.size())};
  std::unordered_set<std::string_view> seen;
  int unknown = 0, bytes = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    const auto wrong = [&](std::string_view what) { return Malformed{fmt::format("piece {} ('{}') {}", id, piece.text, what)}; };
    if (piece.text.empty() || piece.text.find('\0') != std::string::npos) throw wrong("is empty or holds NUL");
    if (!seen.insert(piece.text).second) throw wrong("appears twice");
    if (!std::isfinite(piece.score) || std::abs(piece.score) > 1e9F) throw wrong("has an impossible score");
    const auto type = static_cast<int32_t>(piece.type);
    if (type < 1 || type > 6) throw wrong("has an unknown type");
    if (piece.type == PieceType::unknown) ++unknown;
    if (piece.type == PieceType::byte) {
      if (byte_of_piece(piece.text) < 0) throw wrong("is a byte piece without the name of one");
      ++bytes;
    }
  }
  if (unknown != 1) throw Malformed{fmt::format("it has {} unknown pieces instead of one", unknown)};
  if (model.byte_fallback ? bytes != 256 : bytes != 0) throw Malformed{fmt::format("it has {} byte pieces", bytes)};
}

}  // namespace

int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int value = 0;
  for (const char c : piece.substr(3, 2)) {
    if (c >= '0' && c <= '9') value = value * 16 + (c - '0');
    else if (c >= 'A' && c <= 'F') value = value * 16 + (c - 'A' + 10);
    else return -1;
  }
  return value;
}

std::string piece_of_byte(int byte) { return fmt::format("<0x{:02X}>", byte); }

std::array<int32_t, 256> SentencePieceModel::byte_ids() const {
  std::array<int32_t, 256> ids{};
  ids.fill(-1);
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].type == PieceType::byte) ids[static_cast<size_t>(byte_of_piece(pieces[id].text))] = static_cast<int32_t>(id);
  }
  return ids;
}

SentencePieceModel SentencePieceModel::parse(std::string_view bytes, const std::string& origin) {
  try {
    SentencePieceModel model;
    WireReader reader(bytes);
    for (Field field; reader.next(field);) {
      if (field.number == kPieces) model.pieces.push_back(parse_piece(bytes_of(field)));
      if (field.number == kTrainerSpec) parse_trainer(bytes_of(field), model);
      if (field.number == kNormalizerSpec) parse_normalizer(bytes_of(field), model);
      if (field.number == kDenormalizerSpec) refuse_denormalizer(bytes_of(field));
    }
    check_pieces(model);
    check_character_map(model.character_map);
    return model;
  } catch (const Malformed& malformed) {
    throw DataError("{} is not a usable SentencePiece model: {}; make one with 'ingot data train-tokenizer'", origin, malformed.reason);
  }
}

std::string SentencePieceModel::serialize() const {
  WireWriter out;
  for (const auto& piece : pieces) {
    WireWriter inner;
    inner.text(kText, piece.text);
    inner.real(kScore, piece.score);
    inner.number(kType, static_cast<uint64_t>(piece.type));
    out.text(kPieces, inner.bytes);
  }
  const auto id_of_type = [&](PieceType type, const std::string& text) -> int64_t {
    for (size_t id = 0; id < pieces.size(); ++id) {
      if (pieces[id].type == type && (type == PieceType::unknown || pieces[id].text == text)) return static_cast<int64_t>(id);
    }
    return -1;
  };
  WireWriter trainer;
  trainer.number(kModelType, static_cast<uint64_t>(algorithm));
  trainer.number(kVocabSize, pieces.size());
  trainer.number(kWhitespaceAsSuffix, whitespace_as_suffix);
  trainer.number(kByteFallback, byte_fallback);
  trainer.number(kUnkId, static_cast<uint64_t>(id_of_type(PieceType::unknown, unk_piece)));
  trainer.number(kBosId, static_cast<uint64_t>(id_of_type(PieceType::control, bos_piece)));
  trainer.number(kEosId, static_cast<uint64_t>(id_of_type(PieceType::control, eos_piece)));
  trainer.number(kPadId, static_cast<uint64_t>(id_of_type(PieceType::control, pad_piece)));
  trainer.text(kUnkSurface, unk_surface);
  trainer.text(kUnkPiece, unk_piece);
  trainer.text(kBosPiece, bos_piece);
  trainer.text(kEosPiece, eos_piece);
  trainer.text(kPadPiece, pad_piece);
  out.text(kTrainerSpec, trainer.bytes);

  WireWriter normalizer;
  normalizer.text(kName, normalizer_name);
  if (!character_map.empty()) normalizer.text(kCharacterMap, character_map);
  normalizer.number(kAddDummyPrefix, add_dummy_prefix);
  normalizer.number(kRemoveExtraWhitespaces, remove_extra_whitespaces);
  normalizer.number(kEscapeWhitespaces, escape_whitespaces);
  out.text(kNormalizerSpec, normalizer.bytes);
  return out.bytes;
}

}  // namespace ingot::data
