#include "data/process/spool.h"

#include <zstd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ingot::data::process {
namespace {

constexpr int kFastLevel = 1;

struct Head {
  int64_t block_bytes = 0, documents = 0;
};

template <class Number>
void append(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}
template <class Number>
Number taken(std::string_view& rest) {
  Number number;
  std::memcpy(&number, rest.data(), sizeof number);
  rest.remove_prefix(sizeof number);
  return number;
}

}  // namespace

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
  std::string plain(ZSTD_getFrameContentSize(block.data(), block.size()), '\0');
  const size_t size = ZSTD_decompress(plain.data(), plain.size(), block.data(), block.size());
  if (ZSTD_isError(size)) throw base::DataError("a work file is damaged: {}", ZSTD_getErrorName(size));
  std::vector<Document> documents;
  for (std::string_view rest = plain; !rest.empty();) {
    auto& document = documents.emplace_back();
    document.source = taken<int32_t>(rest);
    const auto text = taken<size_t>(rest), members = taken<size_t>(rest);
    document.text = rest.substr(0, text);
    if (members > 0) document.members = nlohmann::ordered_json::parse(rest.substr(text, members));
    rest.remove_prefix(text + members);
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
    : path_(path), file_(path, std::ios::binary), bytes_(static_cast<int64_t>(base::fs::file_size(path))) {
  if (!file_.is_open()) throw base::FileError("cannot open {}: {}", path_.string(), std::strerror(errno));
}

bool SpoolReader::next(std::string& block, int64_t& documents) {
  Head head;
  if (!file_.read(reinterpret_cast<char*>(&head), sizeof head)) {
    if (file_.bad() || file_.gcount() != 0) throw base::FileError("cannot read {}: it ends too early", path_.string());
    return false;
  }
  block.resize(static_cast<size_t>(head.block_bytes));
  if (!file_.read(block.data(), head.block_bytes)) throw base::FileError("cannot read {}: it ends too early", path_.string());
  documents = head.documents;
  return true;
}

}  // namespace ingot::data::process
