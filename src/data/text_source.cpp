#include "data/text_source.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "data/parquet/source.h"

namespace ingot::data {
namespace {

using base::DataError;

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

// Files that people name by mistake; the reason is for the message, "" when the beginning looks like text.
std::string not_text(std::string_view head) {
  if (head.starts_with("PARE")) return "it is a Parquet file that is encrypted: write it without encryption";
  if (head.starts_with("\x1f\x8b") || head.starts_with("\x28\xb5\x2f\xfd") || head.starts_with("PK\x03\x04") || head.starts_with("BZh") ||
      head.starts_with("\xFD\x37zXZ"))
    return "it is compressed: unpack it first";
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) return "it is UTF-16: convert it with 'iconv -f UTF-16 -t UTF-8'";
  if (head.starts_with("MMIDIDX")) return "it is an index of tokens, not text";
  if (head.find('\0') != std::string_view::npos) return "it holds NUL bytes: it is not text";
  return "";
}

// A file as it is, whose beginning was looked at.
class PlainFile : public TextSource {
 public:
  PlainFile(std::string name, std::unique_ptr<FILE, CloseFile> file, std::string head)
      : name_(std::move(name)), file_(std::move(file)), head_(std::move(head)) {
    if (!head_.starts_with("\xEF\xBB\xBF")) return;
    head_.erase(0, 3);  // a byte order mark is no text
    read_bytes_ = 3;
  }

  bool read(std::string& text, size_t bytes) override {
    const size_t of_head = std::min(bytes, head_.size()), old = text.size() + of_head, want = bytes - of_head;
    text.append(head_, 0, of_head);
    head_.erase(0, of_head);
    text.resize(old + want);
    const size_t got = std::fread(text.data() + old, 1, want, file_.get());
    text.resize(old + got);
    read_bytes_ += static_cast<int64_t>(of_head + got);
    if (got < want && std::ferror(file_.get())) throw base::FileError("cannot read {}: {}", name_, std::strerror(errno));
    return got == want;
  }
  int64_t read_bytes() const override { return read_bytes_; }

 private:
  std::string name_;
  std::unique_ptr<FILE, CloseFile> file_;
  std::string head_;        // not handed out yet
  int64_t read_bytes_ = 0;  // handed out
};

}  // namespace

std::unique_ptr<TextSource> open_text_source(const base::fs::path& path, const std::string& field) {
  const auto name = path.string();
  std::unique_ptr<FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) throw base::FileError("cannot open {}: {}", name, std::strerror(errno));
  std::string head(4096, '\0');
  head.resize(std::fread(head.data(), 1, head.size(), file.get()));
  if (std::ferror(file.get())) throw base::FileError("cannot read {}: {}", name, std::strerror(errno));
  if (head.starts_with("PAR1")) {
    if (!base::fs::is_regular_file(path)) throw DataError("{}: a Parquet file is not read from a pipe: name the file itself", name);
    return open_parquet(path, field);
  }
  if (const auto reason = not_text(head); !reason.empty()) throw DataError("{}: {}", name, reason);
  return std::make_unique<PlainFile>(name, std::move(file), std::move(head));
}

}  // namespace ingot::data
