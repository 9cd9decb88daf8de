// What libingot_parquet.so exports (library.h).
#include "data/parquet/library.h"

#include <arrow/array/array_base.h>
#include <arrow/chunked_array.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/status.h>
#include <arrow/type.h>
#include <arrow/util/utf8.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "data/parquet/json_text.h"

namespace ingot::data::parquet {
namespace {

namespace pq = ::parquet;

constexpr int64_t kMostMemory = int64_t{2} << 30;    // of what Arrow holds for one file
constexpr size_t kTextBytes = size_t{1} << 20;       // of rows handed out at once
constexpr int64_t kFirstRows = 64, kMostRows = 512;  // read at once; the more, the shorter they are

void require(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// One line, without bytes of the file that a terminal would obey.
std::string readable(std::string text) {
  if (const size_t end = text.find('\n'); end != std::string::npos) text.resize(end);
  if (text.size() > 300) text.resize(300);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e; }, '?');
  return text;
}

// A column and the rows of it that are read.
struct Column {
  std::string name, before;  // what stands before its value in a line
  std::unique_ptr<pq::arrow::ColumnReader> reader;
  std::shared_ptr<arrow::ChunkedArray> values;
  int chunk = 0;
  int64_t at = 0;  // in the chunk

  void read(int64_t rows) {
    values = nullptr;
    require(reader->NextBatch(rows, &values));
    chunk = 0;
    at = 0;
  }
  int64_t length() const { return values ? values->length() : 0; }
  void append(std::string& out) {
    while (at == values->chunk(chunk)->length()) {
      ++chunk;
      at = 0;
    }
    append_json(*values->chunk(chunk), at++, out);
  }
};

class File {
 public:
  /// Runs a part of the interface: what is thrown becomes `error`.
  template <class Result, class Part>
  Result guarded(Result failed, const Part& part) noexcept {
    try {
      return part();
    } catch (const std::bad_alloc&) {
      error = "there is not enough memory";
    } catch (const std::exception& exception) {
      error = readable(exception.what());
    } catch (...) {
      error = "the file cannot be read";
    }
    return failed;
  }

  void open(const char* path) {
    arrow::util::InitializeUTF8();
    auto file = arrow::io::ReadableFile::Open(path, &pool_);
    require(file.status());
    pq::ReaderProperties reading(&pool_);
    reading.enable_buffered_stream();  // pages, not whole columns
    reading.set_page_checksum_verification(true);
    reading.set_thrift_container_size_limit(100'000);
    pq::arrow::FileReaderBuilder builder;
    require(builder.Open(*file, reading));
    pq::ArrowReaderProperties arrays(/*use_threads=*/false);
    arrays.set_pre_buffer(false);
    require(builder.memory_pool(&pool_)->properties(arrays)->Build(&reader_));
    rows = reader_->parquet_reader()->metadata()->num_rows();
    if (rows < 0) throw std::runtime_error("it says that it has " + std::to_string(rows) + " rows");
    require(reader_->GetSchema(&schema_));
    columns = "[";
    for (const auto& field : schema_->fields()) {
      if (columns.size() > 1) columns += ',';
      append_string(field->name(), columns);
    }
    columns += ']';
  }

  void choose(const char* column) {
    for (int i = 0; i < schema_->num_fields(); ++i) {
      const auto& field = *schema_->field(i);
      if (column && field.name() != column) continue;
      for (const auto& other : chosen_)
        if (other.name == field.name()) throw std::runtime_error("two columns are named '" + field.name() + "'");
      require_json(*field.type(), field.name());
      auto& made = chosen_.emplace_back();
      made.name = field.name();
      made.before = chosen_.size() > 1 ? "," : "{";
      append_string(made.name, made.before);
      made.before += ':';
      require(reader_->GetColumn(i, &made.reader));
    }
    if (chosen_.empty()) throw std::runtime_error(column ? "there is no column '" + std::string(column) + "'" : "it has no columns");
  }

  bool next() {
    text_.clear();
    while (text_.size() < kTextBytes) {
      if (in_batch_ == batch_rows_ && !read_batch()) break;
      append_row();
    }
    return !text_.empty();
  }

  const std::string& text() const { return text_; }

  std::string error, columns;
  int64_t rows = 0, rows_done = 0;

 private:
  // As many rows as the last ones' length promises to be a megabyte; text that is short in the beginning and long later costs no more than
  // twice as many at once.
  bool read_batch() {
    if (rows_done == rows) return false;
    if (batch_rows_ > 0) {
      const int64_t fit = static_cast<int64_t>(kTextBytes) * batch_rows_ / std::max<int64_t>(batch_bytes_, 1);
      ask_ = std::clamp<int64_t>(fit, 1, std::min(2 * ask_, kMostRows));
    }
    for (auto& column : chosen_) column.read(std::min(ask_, rows - rows_done));
    batch_rows_ = chosen_.front().length();
    in_batch_ = batch_bytes_ = 0;
    for (const auto& column : chosen_) {
      if (column.length() != batch_rows_)
        throw std::runtime_error("the columns '" + chosen_.front().name + "' and '" + column.name + "' have different numbers of rows");
      if (column.values) require(column.values->Validate());
    }
    if (batch_rows_ == 0)
      throw std::runtime_error("it says that it has " + std::to_string(rows) + " rows, and ends behind row " + std::to_string(rows_done));
    return true;
  }

  void append_row() {
    const size_t begin = text_.size();
    for (auto& column : chosen_) try {
        text_ += column.before;
        column.append(text_);
      } catch (const std::runtime_error& wrong) {
        throw std::runtime_error("row " + std::to_string(rows_done + 1) + ": column '" + column.name + "': " + wrong.what());
      }
    text_ += "}\n";
    if (text_.size() - begin > kMostLineBytes) throw std::runtime_error("row " + std::to_string(rows_done + 1) + " is longer than 256 MiB");
    batch_bytes_ += static_cast<int64_t>(text_.size() - begin);
    ++in_batch_;
    ++rows_done;
  }

  arrow::CappedMemoryPool pool_{arrow::system_memory_pool(), kMostMemory};
  std::unique_ptr<pq::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<Column> chosen_;
  int64_t ask_ = kFirstRows, batch_rows_ = 0, in_batch_ = 0, batch_bytes_ = 0;
  std::string text_;
};

}  // namespace
}  // namespace ingot::data::parquet

struct IngotParquetFile : ingot::data::parquet::File {};

namespace {

using File = IngotParquetFile;

File* open_file(const char* path) {
  auto* const file = new (std::nothrow) File;
  if (file) file->guarded(false, [&] { return file->open(path), true; });
  return file;
}

int32_t choose(File* file, const char* column) {
  return file->guarded(0, [&] { return file->choose(column), 1; });
}

int32_t next(File* file, const char** text, int64_t* text_bytes, int64_t* rows_done) {
  return file->guarded(-1, [&] {
    if (!file->next()) return 0;
    *text = file->text().data();
    *text_bytes = static_cast<int64_t>(file->text().size());
    *rows_done = file->rows_done;
    return 1;
  });
}

constexpr IngotParquetFunctions kFunctions = {
    kIngotParquetVersion,
    open_file,
    [](File* file) { return file->error.c_str(); },
    [](File* file) { return file->columns.c_str(); },
    [](File* file) { return file->rows; },
    choose,
    next,
    [](File* file) { delete file; },
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const IngotParquetFunctions* ingot_parquet() { return &kFunctions; }
