#include "checkpoint/format/metadata.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <map>
#include <random>

#include "base/error.h"
#include "checkpoint/format/coding.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

static_assert(std::endian::native == std::endian::little, "files are read and written without swapping bytes");

constexpr char kMagic[9] = "INGOTMET", kDataMagic[9] = "INGOTDAT";
constexpr size_t kHeaderBytes = 64, kDigestAt = 48;

// Sections, in this order. A reader skips unknown kinds unless they carry kMustUnderstand.
enum Section : uint32_t { kFiles = 1, kTensors = 2, kPieces = 3, kExtras = 4 };
constexpr uint32_t kMustUnderstand = 1;

Digest metadata_digest(std::string_view bytes) {
  Hasher hasher;
  hasher.add(bytes.data(), kDigestAt);
  hasher.add(bytes.data() + kHeaderBytes, static_cast<int64_t>(bytes.size() - kHeaderBytes));
  return hasher.digest();
}

void append_section(Encoder& out, Section kind, const std::string& content) {
  out.fixed(static_cast<uint32_t>(kind));
  out.fixed(kMustUnderstand);
  out.fixed(static_cast<uint64_t>(content.size()));
  out.bytes += content;
}

void encode_pieces(Encoder& out, const TensorRecord& record) {
  for (const PieceRecord& piece : record.pieces) {
    put(out, piece.box);
    out.number(piece.file);
    out.number(piece.offset);
    out.digest(piece.digest);
  }
}

uint32_t file_index(Decoder& in, size_t files) {
  const int64_t index = in.number();
  if (static_cast<uint64_t>(index) >= files) in.fail("names a file that does not exist");
  return static_cast<uint32_t>(index);
}

void decode_pieces(Decoder in, TensorRecord& record, size_t files) {
  const size_t dims = record.tensor.shape.size();
  for (PieceRecord& piece : record.pieces) {
    take(in, dims, piece.box);
    piece.file = file_index(in, files);
    piece.offset = in.number();
    piece.digest = in.digest();
  }
  in.finish();
}

// The bytes of each known section; the order of sections is fixed.
std::map<uint32_t, std::string_view> decode_sections(std::string_view bytes, uint32_t count, const std::string& origin) {
  Decoder in(bytes, origin, "table of sections");
  std::map<uint32_t, std::string_view> sections;
  for (uint32_t i = 0, previous = 0; i < count; ++i) {
    const auto kind = in.fixed<uint32_t>(), flags = in.fixed<uint32_t>();
    const auto size = in.fixed<uint64_t>();
    if (kind <= previous) in.fail("is not in order");
    previous = kind;
    const std::string_view content = in.take(size);
    if (flags > kMustUnderstand || (kind <= kExtras && flags != kMustUnderstand)) in.fail("has a section with impossible flags");
    if (kind <= kExtras) {
      sections[kind] = content;
    } else if (flags & kMustUnderstand) {
      throw CheckpointError("{}: holds a section of kind {} that this version of ingot does not know; use a newer one", origin, kind);
    }
  }
  in.finish();
  if (sections.size() != 4) in.fail("lacks a section");
  return sections;
}

std::string_view checked_body(std::string_view bytes, Metadata& metadata, uint32_t& sections, const std::string& origin) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, 8) != std::string_view(kMagic, 8))
    throw CheckpointError("{}: is not the metadata of an ingot checkpoint", origin);
  Decoder in(bytes.substr(8), origin, "header");
  const auto version = in.fixed<uint32_t>();
  sections = in.fixed<uint32_t>();
  metadata.id.low = in.fixed<uint64_t>();
  metadata.id.high = in.fixed<uint64_t>();
  const auto step = in.fixed<uint64_t>(), size = in.fixed<uint64_t>();
  const Digest expected = in.digest();
  if (size != bytes.size()) throw CheckpointError("{}: has {} bytes instead of {}; it is truncated or damaged", origin, bytes.size(), size);
  if (metadata_digest(bytes) != expected) throw CheckpointError("{}: its checksum does not match; the file is damaged", origin);
  // After the checksum, so that damage is not taken for a newer version.
  if (version != kFormatVersion)
    throw CheckpointError("{}: has version {} of the format, this ingot reads version {}; use a newer one", origin, version,
                          kFormatVersion);
  if (step > static_cast<uint64_t>(INT64_MAX)) in.fail("holds an impossible step");
  metadata.step = static_cast<int64_t>(step);
  return bytes.substr(kHeaderBytes);
}

}  // namespace

CheckpointId random_id() {
  std::random_device device;
  const auto word = [&] { return static_cast<uint64_t>(device()) << 32 | device(); };
  return {word(), word()};
}

std::string to_string(const CheckpointId& id) { return fmt::format("{:016x}{:016x}", id.high, id.low); }

CheckpointId id_from(const std::string& text) {
  CheckpointId id;
  const auto* begin = text.data();
  const auto high = std::from_chars(begin, begin + std::min<size_t>(16, text.size()), id.high, 16);
  const auto low = std::from_chars(begin + std::min<size_t>(16, text.size()), begin + text.size(), id.low, 16);
  if (text.size() != 32 || high.ptr != begin + 16 || low.ptr != begin + 32)
    throw CheckpointError("'{}' is not the id of a checkpoint", text);
  return id;
}

std::string encode(const Metadata& metadata) {
  Encoder files, tensors, pieces, extras;
  files.number(static_cast<int64_t>(metadata.files.size()));
  for (const FileRecord& file : metadata.files) {
    files.text(file.name);
    files.number(file.size_bytes);
  }
  tensors.number(static_cast<int64_t>(metadata.tensors.size()));
  for (const TensorRecord& record : metadata.tensors) {
    const size_t pieces_begin = pieces.bytes.size();
    encode_pieces(pieces, record);
    put(tensors, record.tensor);
    tensors.number(static_cast<int64_t>(record.pieces.size()));
    tensors.number(static_cast<int64_t>(pieces.bytes.size() - pieces_begin));
  }
  extras.number(static_cast<int64_t>(metadata.extras.size()));
  for (const ExtraRecord& extra : metadata.extras) {
    extras.text(extra.name);
    extras.number(extra.file);
    extras.number(extra.offset);
    extras.number(extra.size_bytes);
    extras.digest(extra.digest);
  }

  Encoder out;
  out.bytes.append(kMagic, 8);
  out.fixed(kFormatVersion);
  out.fixed(uint32_t{4});
  out.fixed(metadata.id.low);
  out.fixed(metadata.id.high);
  out.fixed(static_cast<uint64_t>(metadata.step));
  out.fixed(uint64_t{0});  // size, below
  out.digest({});          // likewise
  append_section(out, kFiles, files.bytes);
  append_section(out, kTensors, tensors.bytes);
  append_section(out, kPieces, pieces.bytes);
  append_section(out, kExtras, extras.bytes);
  const uint64_t size = out.bytes.size();
  std::memcpy(out.bytes.data() + 40, &size, sizeof(size));
  const Digest digest = metadata_digest(out.bytes);
  std::memcpy(out.bytes.data() + kDigestAt, &digest.low, 8);
  std::memcpy(out.bytes.data() + kDigestAt + 8, &digest.high, 8);
  return out.bytes;
}

Metadata decode(std::string_view bytes, const std::string& origin) {
  auto metadata = decode_part(bytes, origin);
  validate(metadata, origin);
  return metadata;
}

Metadata decode_part(std::string_view bytes, const std::string& origin) {
  Metadata metadata;
  uint32_t section_count = 0;
  const std::string_view body = checked_body(bytes, metadata, section_count, origin);
  const auto sections = decode_sections(body, section_count, origin);

  Decoder files(sections.at(kFiles), origin, "list of files");
  metadata.files.resize(files.count(2));
  for (FileRecord& file : metadata.files) {
    file.name = files.text();
    file.size_bytes = files.number();
  }
  files.finish();

  Decoder tensors(sections.at(kTensors), origin, "list of tensors"), pieces(sections.at(kPieces), origin, "list of pieces");
  metadata.tensors.resize(tensors.count(5));
  for (TensorRecord& record : metadata.tensors) {
    take(tensors, record.tensor);
    const size_t dims = record.tensor.shape.size();
    const int64_t piece_count = tensors.number(), piece_bytes = tensors.number();
    const size_t least_bytes = 2 * dims + 18;
    if (static_cast<uint64_t>(piece_bytes) > pieces.left() ||
        static_cast<uint64_t>(piece_count) > static_cast<uint64_t>(piece_bytes) / least_bytes)
      throw CheckpointError("{}: tensor '{}' promises more pieces than there are; the file is damaged", origin, record.tensor.name);
    record.pieces.resize(static_cast<size_t>(piece_count));
    decode_pieces(Decoder(pieces.take(static_cast<size_t>(piece_bytes)), origin, "list of pieces"), record, metadata.files.size());
  }
  tensors.finish();
  pieces.finish();

  Decoder extras(sections.at(kExtras), origin, "list of extras");
  metadata.extras.resize(extras.count(20));
  for (ExtraRecord& extra : metadata.extras) {
    extra.name = extras.text();
    extra.file = file_index(extras, metadata.files.size());
    extra.offset = extras.number();
    extra.size_bytes = extras.number();
    extra.digest = extras.digest();
  }
  extras.finish();
  return metadata;
}

std::array<std::byte, kDataHeaderBytes> data_header(const CheckpointId& id, int64_t step, uint32_t file) {
  Encoder out;
  out.bytes.append(kDataMagic, 8);
  out.fixed(kFormatVersion);
  out.fixed(file);
  out.fixed(id.low);
  out.fixed(id.high);
  out.fixed(step);
  out.bytes.resize(kDataHeaderBytes, '\0');
  std::array<std::byte, kDataHeaderBytes> header;
  std::memcpy(header.data(), out.bytes.data(), header.size());
  return header;
}

int64_t aligned(int64_t end, int64_t size_bytes) {
  const int64_t alignment = size_bytes >= kLargePieceBytes ? kLargeAlignment : kSmallAlignment;
  return (end + alignment - 1) / alignment * alignment;
}

}  // namespace ingot::checkpoint
