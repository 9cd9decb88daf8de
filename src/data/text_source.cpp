#include "data/text_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/files.h"
#include "data/parquet/source.h"

namespace ingot::data {
namespace {

using base::DataError;

// Files that people name by mistake; the reason is for the message, "" when the beginning looks like text.
std::string not_text(std::string_view head) {
  if (head.starts_with("PARE")) return "it is a Parquet file that is encrypted: write it without encryption";
  for (const auto* packed : {"\x1f\x8b", "\x28\xb5\x2f\xfd", "BZh"})
    if (head.starts_with(packed)) return "it is compressed twice: unpack it first";
  if (head.starts_with("PK\x03\x04") || head.starts_with("\xFD\x37zXZ"))
    return "it is compressed, and neither gzip, zstd nor bzip2: unpack it first";
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return "it is a tar archive: unpack it first";
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) return "it is UTF-16: convert it with 'iconv -f UTF-16 -t UTF-8'";
  if (head.starts_with("MMIDIDX")) return "it is an index of tokens, not text";
  if (head.find('\0') != std::string_view::npos) return "it holds NUL bytes: it is not text";
  return "";
}

// Text, whose beginning was looked at.
class PlainText : public TextSource {
 public:
  PlainText(std::unique_ptr<ByteStream> bytes, std::string head) : bytes_(std::move(bytes)), head_(std::move(head)) {
    if (head_.starts_with("\xEF\xBB\xBF")) head_.erase(0, 3);  // a byte order mark is no text
  }

  bool read(std::string& text, size_t bytes) override {
    const size_t of_head = std::min(bytes, head_.size()), old = text.size() + of_head, want = bytes - of_head;
    text.append(head_, 0, of_head);
    head_.erase(0, of_head);
    text.resize(old + want);
    const size_t got = bytes_->read(text.data() + old, want);
    text.resize(old + got);
    return got == want;
  }
  int64_t read_bytes() const override { return bytes_->file_bytes() - (bytes_->is_packed() ? 0 : static_cast<int64_t>(head_.size())); }

 private:
  std::unique_ptr<ByteStream> bytes_;
  std::string head_;  // not handed out yet
};

// A file in the folder for temporary ones that has no name any more: what a killed process leaves there is nothing.
class NamelessFile {
 public:
  NamelessFile() {
    const auto folder = base::temporary_folder();
    auto name = (folder / "ingot_parquet_XXXXXX").string();
    descriptor_ = ::mkstemp(name.data());
    if (descriptor_ < 0) throw base::FileError("cannot make a file in {}; TMPDIR names another folder", folder.string());
    ::unlink(name.c_str());
  }
  ~NamelessFile() { ::close(descriptor_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_ = -1;
};

// Parquet behind a URL. Its table of contents lies at its end, and columns are read to and fro: it is copied first.
class ParquetFromAfar : public TextSource {
 public:
  ParquetFromAfar(ByteStream& bytes, std::string part, std::string url, const std::string& column) : url_(std::move(url)) {
    constexpr size_t kPart = size_t{4} << 20;
    base::OutputFile out(copy_.path());
    for (; !part.empty(); part.resize(bytes.read(part.data(), part.size()))) {
      try {
        out.write(part);
      } catch (const base::FileError& failure) {
        throw base::FileError("{} (Parquet files are copied to where TMPDIR says before they are read)", named(failure));
      }
      part.resize(kPart);
    }
    out.close();
    of_url([&] { rows_ = open_parquet(copy_.path(), column); });
  }

  bool read(std::string& text, size_t bytes) override {
    bool is_more = false;
    of_url([&] { is_more = rows_->read(text, bytes); });
    return is_more;
  }
  int64_t read_bytes() const override { return rows_->read_bytes(); }
  bool has_rows() const override { return rows_->has_rows(); }

 private:
  // What was said of the copy, of the URL.
  std::string named(const std::exception& failure) const {
    std::string text = failure.what();
    const auto copy = copy_.path();
    for (size_t at = 0; (at = text.find(copy, at)) != std::string::npos; at += url_.size()) text.replace(at, copy.size(), url_);
    return text;
  }
  template <class Call>
  void of_url(const Call& call) const {
    try {
      call();
    } catch (const DataError& failure) {
      throw DataError("{}", named(failure));
    } catch (const base::FileError& failure) {
      throw base::FileError("{}", named(failure));
    }
  }

  std::string url_;
  NamelessFile copy_;
  std::unique_ptr<TextSource> rows_;
};

}  // namespace

std::unique_ptr<TextSource> open_text_source(const FileRange& range, const std::string& field) {
  const auto& path = range.path;
  const auto name = path.string();
  auto bytes = open_bytes(range);
  if (range.begin > 0) return std::make_unique<PlainText>(std::move(bytes), "");
  std::string head(4096, '\0');
  head.resize(bytes->read(head.data(), head.size()));
  if (head.starts_with("PAR1")) {
    if (bytes->is_packed()) throw DataError("{}: it is a Parquet file that is compressed once more: unpack it first", name);
    if (name.find("://") != std::string::npos) return std::make_unique<ParquetFromAfar>(*bytes, std::move(head), name, field);
    if (!base::fs::is_regular_file(path)) throw DataError("{}: a Parquet file is not read from a pipe: name the file itself", name);
    return open_parquet(path, field);
  }
  if (const auto reason = not_text(head); !reason.empty()) throw DataError("{}: {}", name, reason);
  return std::make_unique<PlainText>(std::move(bytes), std::move(head));
}

}  // namespace ingot::data
