#include "data/byte_stream.h"

#include <bzlib.h>
#include <fnmatch.h>
#include <glob.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <future>
#include <limits>

#include "base/error.h"
#include "data/remote/files.h"

namespace ingot::data {
namespace {

using base::DataError;

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

// As it lies there, with a look at the beginning, which a pipe gives once.
class Raw : public ByteStream {
 public:
  explicit Raw(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  const std::string& head() {
    constexpr size_t kHead = 8;  // enough to know a format by
    if (head_.empty()) {
      head_.resize(kHead);
      head_.resize(fetch(head_.data(), kHead));
    }
    return head_;
  }
  size_t read(char* to, size_t bytes) final {
    const size_t of_head = std::min(bytes, head_.size() - taken_);
    std::memcpy(to, head_.data() + taken_, of_head);
    taken_ += of_head;
    const size_t got = of_head + (bytes > of_head ? fetch(to + of_head, bytes - of_head) : 0);
    read_bytes_ += static_cast<int64_t>(got);
    return got;
  }
  int64_t file_bytes() const final { return read_bytes_; }

 private:
  virtual size_t fetch(char* to, size_t bytes) = 0;  // fewer only at the end

  std::string name_, head_;
  size_t taken_ = 0;
  int64_t read_bytes_ = 0;
};

class FileBytes : public Raw {
 public:
  explicit FileBytes(const FileRange& range)
      : Raw(range.path.string()),
        file_(std::fopen(range.path.c_str(), "rb")),
        left_bytes_(range.end < 0 ? std::numeric_limits<int64_t>::max() : range.end - range.begin) {
    if (!file_) throw base::FileError("cannot open {}: {}", name(), std::strerror(errno));
    if (range.begin > 0 && ::fseeko(file_.get(), range.begin, SEEK_SET) != 0)
      throw base::FileError("cannot read {} from byte {} on: {}", name(), range.begin, std::strerror(errno));
  }

 private:
  size_t fetch(char* to, size_t bytes) override {
    bytes = std::min(bytes, static_cast<size_t>(left_bytes_));
    const size_t got = std::fread(to, 1, bytes, file_.get());
    if (got < bytes && std::ferror(file_.get())) throw base::FileError("cannot read {}: {}", name(), std::strerror(errno));
    left_bytes_ -= static_cast<int64_t>(got);
    return got;
  }
  std::unique_ptr<FILE, CloseFile> file_;
  int64_t left_bytes_;
};

// The next piece is on its way while one is handed out.
class ObjectBytes : public Raw {
 public:
  ObjectBytes(std::string url, std::unique_ptr<RemoteFile> object) : Raw(std::move(url)), object_(std::move(object)) { ask(); }

 private:
  static constexpr int64_t kPiece = int64_t{16} << 20;

  void ask() {
    const int64_t size = std::min(kPiece, object_->size_bytes() - asked_);
    if (size <= 0) return;
    next_ = std::async(std::launch::async, [this, from = asked_, size] {
      std::string piece(static_cast<size_t>(size), '\0');
      object_->read_at(from, piece.data(), size);
      return piece;
    });
    asked_ += size;
  }
  size_t fetch(char* to, size_t bytes) override {
    size_t got = 0;
    while (got < bytes) {
      if (at_ == piece_.size()) {
        if (!next_.valid()) break;
        piece_ = next_.get();
        at_ = 0;
        ask();
      }
      const size_t count = std::min(bytes - got, piece_.size() - at_);
      std::memcpy(to + got, piece_.data() + at_, count);
      got += count, at_ += count;
    }
    return got;
  }

  std::unique_ptr<RemoteFile> object_;
  int64_t asked_ = 0;
  std::string piece_;
  size_t at_ = 0;
  std::future<std::string> next_;  // the last member: it reads the others, and its end is waited for first
};

// What one call of a decoder did.
struct Progress {
  size_t taken = 0, made = 0;
  bool is_damaged = false, has_ended = false;  // ended: a stream, behind which another may begin
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual const char* format() const = 0;
  virtual Progress decode(const char* in, size_t in_bytes, char* out, size_t out_bytes) = 0;
  /// Another stream.
  virtual void begin() = 0;
};

class Gzip : public Decoder {
 public:
  Gzip() {
    if (inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK) throw base::Error("zlib does not start");
  }
  ~Gzip() override { inflateEnd(&stream_); }
  const char* format() const override { return "gzip"; }
  Progress decode(const char* in, size_t in_bytes, char* out, size_t out_bytes) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in));
    stream_.avail_in = static_cast<uInt>(in_bytes);
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(out_bytes);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    const bool is_well = status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR;
    return {in_bytes - stream_.avail_in, out_bytes - stream_.avail_out, !is_well, status == Z_STREAM_END};
  }
  void begin() override { inflateReset(&stream_); }

 private:
  z_stream stream_{};
};

class Bzip2 : public Decoder {
 public:
  Bzip2() { start(); }
  ~Bzip2() override { BZ2_bzDecompressEnd(&stream_); }
  const char* format() const override { return "bzip2"; }
  Progress decode(const char* in, size_t in_bytes, char* out, size_t out_bytes) override {
    stream_.next_in = const_cast<char*>(in);
    stream_.avail_in = static_cast<unsigned>(in_bytes);
    stream_.next_out = out;
    stream_.avail_out = static_cast<unsigned>(out_bytes);
    const int status = BZ2_bzDecompress(&stream_);
    return {in_bytes - stream_.avail_in, out_bytes - stream_.avail_out, status != BZ_OK && status != BZ_STREAM_END,
            status == BZ_STREAM_END};
  }
  void begin() override {
    BZ2_bzDecompressEnd(&stream_);
    stream_ = {};
    start();
  }

 private:
  void start() {
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) throw base::Error("libbz2 does not start");
  }
  bz_stream stream_{};
};

class Zstd : public Decoder {
 public:
  Zstd() : stream_(ZSTD_createDStream()) {
    if (!stream_) throw base::Error("libzstd does not start");
  }
  ~Zstd() override { ZSTD_freeDStream(stream_); }
  const char* format() const override { return "zstd"; }
  Progress decode(const char* in, size_t in_bytes, char* out, size_t out_bytes) override {
    ZSTD_inBuffer from{in, in_bytes, 0};
    ZSTD_outBuffer to{out, out_bytes, 0};
    const size_t status = ZSTD_decompressStream(stream_, &to, &from);
    return {from.pos, to.pos, ZSTD_isError(status) != 0, status == 0};
  }
  void begin() override { ZSTD_DCtx_reset(stream_, ZSTD_reset_session_only); }

 private:
  ZSTD_DStream* stream_;
};

class Unpacked : public ByteStream {
 public:
  Unpacked(std::unique_ptr<Raw> file, std::unique_ptr<Decoder> decoder)
      : file_(std::move(file)), decoder_(std::move(decoder)), packed_(kPacked) {}

  size_t read(char* to, size_t bytes) override {
    size_t made = 0;
    while (made < bytes) {
      if (at_ == size_ && !is_at_end_) {
        at_ = 0;
        size_ = file_->read(packed_.data(), packed_.size());
        is_at_end_ = size_ < packed_.size();
      }
      if (at_ == size_ && is_at_end_ && is_between_streams_) break;
      if (is_between_streams_) decoder_->begin(), is_between_streams_ = false;
      const auto step = decoder_->decode(packed_.data() + at_, size_ - at_, to + made, std::min(bytes - made, kMostAtOnce));
      at_ += step.taken;
      made += step.made;
      if (step.is_damaged) fail("is damaged, or not {} all through");
      if (step.has_ended) is_between_streams_ = true;
      else if (step.made == 0 && at_ == size_ && is_at_end_) fail("ends in the middle of its {} data: it was cut short");
    }
    return made;
  }
  int64_t file_bytes() const override { return file_->file_bytes() - static_cast<int64_t>(size_ - at_); }
  bool is_packed() const override { return true; }

 private:
  static constexpr size_t kPacked = size_t{256} << 10, kMostAtOnce = size_t{1} << 30;

  [[noreturn]] void fail(const char* what) const {
    throw DataError("{}, byte {}: {}", file_->name(), file_bytes(), fmt::format(fmt::runtime(what), decoder_->format()));
  }

  std::unique_ptr<Raw> file_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<char> packed_;
  size_t at_ = 0, size_ = 0;  // of packed_: taken, there
  bool is_at_end_ = false, is_between_streams_ = true;
};

std::unique_ptr<Decoder> decoder_for(const std::string& head) {
  if (head.starts_with("\x1f\x8b")) return std::make_unique<Gzip>();
  if (head.starts_with("BZh")) return std::make_unique<Bzip2>();
  if (head.starts_with("\x28\xb5\x2f\xfd")) return std::make_unique<Zstd>();
  return nullptr;
}

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const FileRange& range) {
  if (range.begin > 0) return std::make_unique<FileBytes>(range);
  const auto name = range.path.string();
  std::unique_ptr<Raw> file;
  if (is_url(name)) file = std::make_unique<ObjectBytes>(name, remote_files().open(name));
  else file = std::make_unique<FileBytes>(range);
  if (auto decoder = decoder_for(file->head())) return std::make_unique<Unpacked>(std::move(file), std::move(decoder));
  return file;
}

bool is_plain_file(const base::fs::path& path) {
  if (is_url(path.string()) || !base::fs::is_regular_file(path)) return false;
  const auto head = FileBytes(FileRange{path}).head();
  return !decoder_for(head) && !head.starts_with("PAR1");
}

int64_t readable_bytes(const base::fs::path& path) {
  const auto name = path.string();
  if (is_url(name)) return remote_files().open(name)->size_bytes();
  std::error_code error;
  const auto status = base::fs::status(path, error);
  if (!base::fs::exists(status)) throw base::FileError("{} does not exist", name);
  if (base::fs::is_directory(status)) throw base::FileError("{} is a folder: name the files in it", name);
  if (!base::fs::is_regular_file(status)) return 0;
  if (::access(path.c_str(), R_OK) != 0) throw base::FileError("cannot open {}: {}", name, std::strerror(errno));
  return static_cast<int64_t>(base::fs::file_size(path));
}

std::vector<base::fs::path> files_like(const std::string& pattern) {
  const bool is_pattern = pattern.find_first_of("*?[") != std::string::npos;
  if (!is_pattern || pattern.starts_with("http://") || pattern.starts_with("https://") || (!is_url(pattern) && base::fs::exists(pattern)))
    return {pattern};
  std::vector<base::fs::path> files;
  if (is_url(pattern)) {
    const auto slash = pattern.rfind('/');
    const auto folder = pattern.substr(0, slash);
    if (folder.find_first_of("*?[") != std::string::npos)
      throw base::FileError("{}: only what is behind the last slash of a URL may be a pattern", pattern);
    for (const auto& name : remote_files().names_in(folder))
      if (::fnmatch(pattern.c_str() + slash + 1, name.c_str(), FNM_PERIOD) == 0) files.emplace_back(folder + "/" + name);
    std::sort(files.begin(), files.end());
  } else {
    glob_t found{};
    const int status = ::glob(pattern.c_str(), GLOB_BRACE, nullptr, &found);
    for (size_t i = 0; status == 0 && i < found.gl_pathc; ++i)
      if (!base::fs::is_directory(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
    globfree(&found);
  }
  if (files.empty()) throw base::FileError("no file is named as {}", pattern);
  return files;
}

base::fs::path name_when_unpacked(const base::fs::path& path) {
  if (const auto name = path.string(); name.starts_with("http")) {
    if (const auto end = name.find_first_of("?#"); end != std::string::npos) return name_when_unpacked(name.substr(0, end));
  }
  const auto extension = path.extension();
  const bool is_packed = extension == ".gz" || extension == ".zst" || extension == ".zstd" || extension == ".bz2";
  return is_packed ? path.parent_path() / path.stem() : path;
}

}  // namespace ingot::data
