#include "data/process/spool.h"

#include <zstd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ingot::data::process {
namespace {

constexpr int kFastLevel = 1;
constexpr uint64_t kMostPlainBytes = uint64_t{1} << 30;  // of a block

struct Head {
  int64_t block_bytes = 0, documents = 0;
};

template <class Number>
void append(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}
[[noreturn]] void fail(std::string_view why) { throw base::DataError("a work file is damaged: {}", why); }

std::string_view taken(std::string_view& rest, size_t bytes) {
  if (bytes > rest.size()) fail("a document is longer than its block");
  const auto part = rest.substr(0, bytes);
  rest.remove_prefix(bytes);
  return part;
}
template <class Number>
Number taken(std::string_view& rest) {
  Number number;
  std::memcpy(&number, taken(rest, sizeof number).data(), sizeof number);
  return number;
}

nlohmann::ordered_json members_of(std::string_view text) {
  auto members = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (members.is_discarded()) fail("members of a document are no JSON");
  return members;
}

std::string decompressed(const std::string& block) {
  std::string plain(static_cast<size_t>(plain_bytes(block)), '\0');
  const size_t size = ZSTD_decompress(plain.data(), plain.size(), block.data(), block.size());
  if (ZSTD_isError(size)) fail(ZSTD_getErrorName(size));
  return plain;
}

}  // namespace

int64_t plain_bytes(const std::string& block) {
  const auto bytes = ZSTD_getFrameContentSize(block.data(), block.size());
  if (bytes > kMostPlainBytes) fail("a block says nothing of its size, or more than it can have");  // errors are larger than all sizes
  return static_cast<int64_t>(bytes);
}

std::string compressed(std::string_view text, int level) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), level);
  if (ZSTD_isError(size)) throw base::Error(std::string("zstd: ") + ZSTD_getErrorName(size));
  out.resize(size);
  return out;
}

std::string packed(const std::vector<Document>& documents) {
  std::string plain;
  for (const auto& document : documents) {
    const auto members = document.members.is_null() ? std::string() : document.members.dump();
    append(plain, document.source);
    append(plain, document.text.size());
    append(plain, members.size());
    plain.append(document.text).append(members);
  }
  return compressed(plain, kFastLevel);
}

std::vector<Document> unpacked(const std::string& block) {
  const std::string plain = decompressed(block);
  std::vector<Document> documents;
  for (std::string_view rest = plain; !rest.empty();) {
    auto& document = documents.emplace_back();
    document.source = taken<int32_t>(rest);
    const auto text = taken<size_t>(rest), members = taken<size_t>(rest);
    document.text = taken(rest, text);
    if (members > 0) document.members = members_of(taken(rest, members));
  }
  return documents;
}

void SpoolWriter::add(const std::string& block, int64_t documents) {
  const Head head{static_cast<int64_t>(block.size()), documents};
  file_.write(&head, sizeof head);
  file_.write(block);
  bytes_ += static_cast<int64_t>(sizeof head + block.size());
}

SpoolReader::SpoolReader(const base::fs::path& path)
    : path_(path), file_(path, std::ios::binary), bytes_(static_cast<int64_t>(base::fs::file_size(path))), left_(bytes_) {
  if (!file_.is_open()) throw base::FileError("cannot open {}: {}", path_.string(), std::strerror(errno));
}

bool SpoolReader::next(std::string& block, int64_t& documents) {
  Head head;
  if (!file_.read(reinterpret_cast<char*>(&head), sizeof head)) {
    if (file_.bad() || file_.gcount() != 0) throw base::FileError("cannot read {}: it ends too early", path_.string());
    return false;
  }
  left_ -= static_cast<int64_t>(sizeof head);
  if (head.block_bytes < 0 || head.block_bytes > left_) throw base::FileError("cannot read {}: it ends too early", path_.string());
  left_ -= head.block_bytes;
  block.resize(static_cast<size_t>(head.block_bytes));
  if (!file_.read(block.data(), head.block_bytes)) throw base::FileError("cannot read {}: it ends too early", path_.string());
  documents = head.documents;
  return true;
}

}  // namespace ingot::data::process
