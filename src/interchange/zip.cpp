#include "interchange/zip.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace ingot::interchange {

using base::CheckpointError;

static_assert(std::endian::native == std::endian::little, "files are read and written without swapping bytes");

namespace {

constexpr int64_t kHeadBytes = 1024, kTailBytes = 2048;
constexpr uint32_t kLocalMagic = 0x04034b50, kEntryMagic = 0x02014b50, kEndMagic = 0x06054b50, kEnd64Magic = 0x06064b50,
                   kLocator64Magic = 0x07064b50;
constexpr int64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr int64_t kCommentLimitBytes = 65535;
constexpr uint16_t kZip64Tag = 1, kPaddingTag = 0x4246;  // the latter is torch's: "FB"

// Eight tables, so that eight bytes are taken at once.
constexpr auto kCrcTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320 : 0);
    tables[0][i] = value;
  }
  for (size_t t = 1; t < 8; ++t)
    for (size_t i = 0; i < 256; ++i) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
  return tables;
}();

uint64_t number_at(std::string_view bytes, size_t offset, size_t count) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, count);
  return value;
}

// Little-endian fields of given widths, one after the other.
class Fields {
 public:
  Fields& u16(uint64_t value) { return add(value, 2); }
  Fields& u32(uint64_t value) { return add(value, 4); }
  Fields& u64(uint64_t value) { return add(value, 8); }
  const std::string& text() const { return text_; }

 private:
  Fields& add(uint64_t value, size_t bytes) {
    text_.append(reinterpret_cast<const char*>(&value), bytes);
    return *this;
  }
  std::string text_;
};

}  // namespace

uint32_t crc32(uint32_t crc, const void* data, int64_t size_bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  const auto& t = kCrcTables;
  crc = ~crc;
  for (; size_bytes >= 8; size_bytes -= 8, next += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, next, 8);
    eight ^= crc;
    crc = t[7][eight & 255] ^ t[6][eight >> 8 & 255] ^ t[5][eight >> 16 & 255] ^ t[4][eight >> 24 & 255] ^ t[3][eight >> 32 & 255] ^
          t[2][eight >> 40 & 255] ^ t[1][eight >> 48 & 255] ^ t[0][eight >> 56];
  }
  for (; size_bytes > 0; --size_bytes, ++next) crc = crc >> 8 ^ t[0][(crc ^ *next) & 255];
  return ~crc;
}

FileView::FileView(std::shared_ptr<const checkpoint::Source> source, std::string file, int64_t begin, int64_t size_bytes)
    : source_(std::move(source)), file_(std::move(file)), begin_(begin), size_bytes_(size_bytes) {
  if (begin < 0 || size_bytes < 0 || begin > source_->size_bytes() || size_bytes > source_->size_bytes() - begin)
    throw CheckpointError("{} has {} bytes, but bytes {} to {} are wanted of it; it is truncated or belongs to another checkpoint", file_,
                          source_->size_bytes(), begin, static_cast<uint64_t>(begin) + static_cast<uint64_t>(size_bytes));
  head_.resize(static_cast<size_t>(std::min(kHeadBytes, size_bytes)));
  source_->read_at(begin_, head_.data(), static_cast<int64_t>(head_.size()));
  tail_.resize(static_cast<size_t>(std::min(kTailBytes, size_bytes)));
  source_->read_at(begin_ + size_bytes - static_cast<int64_t>(tail_.size()), tail_.data(), static_cast<int64_t>(tail_.size()));
}

void FileView::read_at(int64_t offset, void* destination, int64_t size_bytes) const {
  if (offset < 0 || size_bytes < 0 || offset > size_bytes_ || size_bytes > size_bytes_ - offset)
    fail(std::clamp<int64_t>(offset, 0, size_bytes_), fmt::format("{} bytes should follow, but the archive ends before", size_bytes));
  const int64_t tail_begin = size_bytes_ - static_cast<int64_t>(tail_.size());
  if (offset + size_bytes <= static_cast<int64_t>(head_.size())) {
    std::memcpy(destination, head_.data() + offset, static_cast<size_t>(size_bytes));
  } else if (offset >= tail_begin) {
    std::memcpy(destination, tail_.data() + (offset - tail_begin), static_cast<size_t>(size_bytes));
  } else {
    source_->read_at(begin_ + offset, destination, size_bytes);
  }
}

void FileView::fail(int64_t offset, const std::string& what) const {
  throw CheckpointError("{}, byte {}: {}; the file is damaged or no archive of torch.save", file_, begin_ + offset, what);
}

ZipReader::ZipReader(FileView view) : view_(std::move(view)) {
  // The end record is the last thing but for a comment, which torch does not write.
  const int64_t size = view_.size_bytes();
  if (size < kEndBytes) view_.fail(0, fmt::format("an archive of {} bytes is too short", size));
  int64_t end_begin = -1;
  std::string tail;
  for (const int64_t tail_bytes : {std::min(size, kEndBytes), std::min(size, kEndBytes + kCommentLimitBytes)}) {
    tail.resize(static_cast<size_t>(tail_bytes));
    view_.read_at(size - tail_bytes, tail.data(), tail_bytes);
    for (int64_t at = tail_bytes - kEndBytes; at >= 0 && end_begin < 0; --at) {
      const auto place = static_cast<size_t>(at);
      if (number_at(tail, place, 4) == kEndMagic && static_cast<int64_t>(number_at(tail, place + 20, 2)) == tail_bytes - kEndBytes - at) {
        end_begin = size - tail_bytes + at;
        tail = tail.substr(place, kEndBytes);
      }
    }
    if (end_begin >= 0) break;
  }
  if (end_begin < 0) view_.fail(size - kEndBytes, "there is no end record of a zip archive");

  uint64_t count = number_at(tail, 10, 2), directory_bytes = number_at(tail, 12, 4), directory_begin = number_at(tail, 16, 4);
  uint64_t disks = number_at(tail, 4, 2) | number_at(tail, 6, 2);
  int64_t directory_limit = end_begin;
  std::string locator(kLocator64Bytes, '\0');
  if (end_begin >= kLocator64Bytes) view_.read_at(end_begin - kLocator64Bytes, locator.data(), kLocator64Bytes);
  if (number_at(locator, 0, 4) == kLocator64Magic) {
    const uint64_t place = number_at(locator, 8, 8);
    if (place > static_cast<uint64_t>(end_begin - kLocator64Bytes))
      view_.fail(end_begin - kLocator64Bytes, fmt::format("the zip64 end record is said to be at {}", place));
    std::string end64(kEnd64Bytes, '\0');
    view_.read_at(static_cast<int64_t>(place), end64.data(), kEnd64Bytes);
    if (number_at(end64, 0, 4) != kEnd64Magic) view_.fail(static_cast<int64_t>(place), "there is no zip64 end record");
    disks = number_at(end64, 16, 4) | number_at(end64, 20, 4);
    count = number_at(end64, 32, 8);
    directory_bytes = number_at(end64, 40, 8);
    directory_begin = number_at(end64, 48, 8);
    directory_limit = static_cast<int64_t>(place);
  }
  if (disks != 0) view_.fail(end_begin, "archives of several parts are not read");
  if (directory_begin > static_cast<uint64_t>(directory_limit) ||
      directory_bytes > static_cast<uint64_t>(directory_limit) - directory_begin)
    view_.fail(end_begin,
               fmt::format("the directory is said to be at bytes {} to {}+{}", directory_begin, directory_begin, directory_bytes));
  read_directory(static_cast<int64_t>(directory_begin), static_cast<int64_t>(directory_bytes), count);
}

void ZipReader::read_directory(int64_t begin, int64_t size_bytes, uint64_t count) {
  if (count > static_cast<uint64_t>(size_bytes / kEntryBytes))
    view_.fail(begin, fmt::format("{} entries do not fit a directory of {} bytes", count, size_bytes));
  std::string all(static_cast<size_t>(size_bytes), '\0');
  view_.read_at(begin, all.data(), size_bytes);
  entries_.reserve(count);
  std::string_view rest = all;
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t at = begin + static_cast<int64_t>(all.size() - rest.size());
    if (rest.size() < kEntryBytes || number_at(rest, 0, 4) != kEntryMagic) view_.fail(at, "the directory has no entry where one is due");
    const uint64_t name_bytes = number_at(rest, 28, 2), extra_bytes = number_at(rest, 30, 2), comment_bytes = number_at(rest, 32, 2);
    if (name_bytes + extra_bytes + comment_bytes > rest.size() - kEntryBytes) view_.fail(at, "an entry goes beyond the directory");
    const uint64_t flags = number_at(rest, 8, 2), method = number_at(rest, 10, 2);
    uint64_t packed = number_at(rest, 20, 4), size = number_at(rest, 24, 4), header = number_at(rest, 42, 4);
    ZipEntry entry{std::string(rest.substr(kEntryBytes, name_bytes)), static_cast<uint32_t>(number_at(rest, 16, 4)), 0, 0};

    std::string_view extra = rest.substr(kEntryBytes + name_bytes, extra_bytes);
    while (extra.size() >= 4) {
      const uint64_t tag = number_at(extra, 0, 2), bytes = number_at(extra, 2, 2);
      if (bytes > extra.size() - 4) view_.fail(at, fmt::format("an extra field of '{}' is too long", entry.name));
      std::string_view values = extra.substr(4, bytes);
      for (uint64_t* field : {&size, &packed, &header}) {  // only those that did not fit, in this order
        if (tag != kZip64Tag || *field != UINT32_MAX) continue;
        if (values.size() < 8) view_.fail(at, fmt::format("the zip64 field of '{}' is too short", entry.name));
        *field = number_at(values, 0, 8);
        values.remove_prefix(8);
      }
      extra.remove_prefix(4 + bytes);
    }

    if (flags & 1) view_.fail(at, fmt::format("'{}' is encrypted", entry.name));
    if (method != 0 || packed != size) view_.fail(at, fmt::format("'{}' is compressed, which torch.save does not do", entry.name));
    if (header > static_cast<uint64_t>(begin) || size > static_cast<uint64_t>(begin) - header)
      view_.fail(at, fmt::format("'{}' is said to have {} bytes at {}, but the directory begins at {}", entry.name, size, header, begin));
    entry.size_bytes = static_cast<int64_t>(size);
    entry.header_offset = static_cast<int64_t>(header);
    entries_.push_back(std::move(entry));
    rest.remove_prefix(kEntryBytes + name_bytes + extra_bytes + comment_bytes);
  }
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const ZipEntry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

int64_t ZipReader::data_offset(const ZipEntry& entry) const {
  std::string header(static_cast<size_t>(kLocalBytes) + entry.name.size(), '\0');
  view_.read_at(entry.header_offset, header.data(), static_cast<int64_t>(header.size()));
  if (number_at(header, 0, 4) != kLocalMagic || number_at(header, 26, 2) != entry.name.size() ||
      std::string_view(header).substr(kLocalBytes) != entry.name)
    view_.fail(entry.header_offset, fmt::format("the header of '{}' is not here, where the directory says", entry.name));
  const int64_t offset = entry.header_offset + static_cast<int64_t>(header.size() + number_at(header, 28, 2));
  if (offset > view_.size_bytes() - entry.size_bytes)
    view_.fail(entry.header_offset, fmt::format("the {} bytes of '{}' do not fit the archive", entry.size_bytes, entry.name));
  return offset;
}

std::string ZipReader::read(const ZipEntry& entry, bool check_crc) const {
  const int64_t offset = data_offset(entry);
  std::string content(static_cast<size_t>(entry.size_bytes), '\0');
  view_.read_at(offset, content.data(), entry.size_bytes);
  if (check_crc && crc32(0, content.data(), entry.size_bytes) != entry.crc) wrong_crc(entry);
  return content;
}

void ZipReader::check(const ZipEntry& entry) const {
  constexpr int64_t kPartBytes = int64_t{1} << 20;
  const int64_t offset = data_offset(entry);
  std::string part(static_cast<size_t>(std::min(kPartBytes, entry.size_bytes)), '\0');
  uint32_t crc = 0;
  for (int64_t done = 0; done < entry.size_bytes;) {
    const int64_t now = std::min(kPartBytes, entry.size_bytes - done);
    view_.read_at(offset + done, part.data(), now);
    crc = crc32(crc, part.data(), now);
    done += now;
  }
  if (crc != entry.crc) wrong_crc(entry);
}

void ZipReader::wrong_crc(const ZipEntry& entry) const {
  throw CheckpointError(
      "{}: the {} bytes of '{}' in the archive at byte {} do not have the CRC that stands there; the file is damaged (or was saved with "
      "torch's CRCs switched off: then read without checking them)",
      view_.file(), entry.size_bytes, entry.name, view_.begin());
}

void ZipWriter::put(std::string_view bytes) {
  out_(bytes.data(), static_cast<int64_t>(bytes.size()));
  at_ += static_cast<int64_t>(bytes.size());
}

void ZipWriter::add(const std::string& name, const void* data, int64_t size_bytes, int64_t alignment) {
  const ZipEntry entry{name, crc32(0, data, size_bytes), size_bytes, at_};
  const bool zip64 = zip64_ || size_bytes >= UINT32_MAX;
  Fields extra;
  if (zip64) extra.u16(kZip64Tag).u16(16).u64(static_cast<uint64_t>(size_bytes)).u64(static_cast<uint64_t>(size_bytes));
  int64_t padding = -(at_ + kLocalBytes + static_cast<int64_t>(name.size() + extra.text().size())) & (alignment - 1);
  if (padding > 0 && padding < 4) padding += std::max<int64_t>(alignment, 4);
  std::string fields = extra.text();
  if (padding > 0)
    fields += Fields().u16(kPaddingTag).u16(static_cast<uint64_t>(padding - 4)).text() + std::string(static_cast<size_t>(padding - 4), 'Z');
  const uint64_t size = zip64 ? UINT32_MAX : static_cast<uint64_t>(size_bytes);
  // Magic, version needed, flags (names are UTF-8), method (stored), time and date (1980-01-01), CRC, sizes, lengths.
  put(Fields()
          .u32(kLocalMagic)
          .u16(zip64 ? 45 : 20)
          .u16(0x800)
          .u16(0)
          .u16(0)
          .u16(0x21)
          .u32(entry.crc)
          .u32(size)
          .u32(size)
          .u16(name.size())
          .u16(fields.size())
          .text() +
      name + fields);
  put({static_cast<const char*>(data), static_cast<size_t>(size_bytes)});
  entries_.push_back(entry);
}

int64_t ZipWriter::finish() {
  const auto begin = static_cast<uint64_t>(at_);
  for (const ZipEntry& entry : entries_) {
    const auto size = static_cast<uint64_t>(entry.size_bytes), header = static_cast<uint64_t>(entry.header_offset);
    const bool far = zip64_ || size >= UINT32_MAX || header >= UINT32_MAX;
    Fields extra;
    if (far) extra.u16(kZip64Tag).u16(24).u64(size).u64(size).u64(header);
    Fields head;
    head.u32(kEntryMagic).u16(45).u16(far ? 45 : 20).u16(0x800).u16(0).u16(0).u16(0x21).u32(entry.crc);
    head.u32(far ? UINT32_MAX : size).u32(far ? UINT32_MAX : size).u16(entry.name.size()).u16(extra.text().size());
    head.u16(0).u16(0).u16(0).u32(0).u32(far ? UINT32_MAX : header);  // comment, disk, attributes, place
    put(head.text() + entry.name + extra.text());
  }
  const uint64_t end = static_cast<uint64_t>(at_), size = end - begin, count = entries_.size();
  const bool far = zip64_ || count >= UINT16_MAX || begin >= UINT32_MAX || size >= UINT32_MAX;
  if (far) {
    put(Fields().u32(kEnd64Magic).u64(kEnd64Bytes - 12).u16(45).u16(45).u32(0).u32(0).u64(count).u64(count).u64(size).u64(begin).text());
    put(Fields().u32(kLocator64Magic).u32(0).u64(end).u32(1).text());
  }
  put(Fields()
          .u32(kEndMagic)
          .u16(0)
          .u16(0)
          .u16(far ? UINT16_MAX : count)
          .u16(far ? UINT16_MAX : count)
          .u32(far ? UINT32_MAX : size)
          .u32(far ? UINT32_MAX : begin)
          .u16(0)
          .text());
  return at_;
}

}  // namespace ingot::interchange
