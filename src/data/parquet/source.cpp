#include "data/parquet/source.h"

#include <dlfcn.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/parquet/library.h"

namespace ingot::data {
namespace {

using base::DataError;

struct Library {
  const IngotParquetFunctions* functions = nullptr;
  std::string problem;
};

// By its name alone: the loader looks beside this program, as it was built to. Its names stay its own (RTLD_LOCAL), as libtorch's do not.
Library load() {
  void* const library = dlopen("libingot_parquet.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const std::string reason = dlerror();
    if (reason.starts_with("libingot_parquet.so"))
      return {.problem = "this ingot was built without libingot_parquet.so: ./scripts/build builds it (" + reason + ")"};
    return {.problem =
                "Apache Arrow's library is missing: set LD_LIBRARY_PATH to the folder of Python's package pyarrow 26 (" + reason + ")"};
  }
  const auto symbol = reinterpret_cast<IngotParquet>(dlsym(library, kIngotParquetSymbol));
  if (!symbol || symbol()->version != kIngotParquetVersion)
    return {.problem = "libingot_parquet.so is not of this build: run ./scripts/build again"};
  return {.functions = symbol()};
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

class Parquet : public TextSource {
 public:
  Parquet(const base::fs::path& path, const std::string& column) : name_(path.string()), functions_(*library().functions) {
    file_bytes_ = static_cast<int64_t>(base::fs::file_size(path));
    file_ = {functions_.open(path.c_str()), functions_.close};
    if (!file_) throw DataError("{}: there is no memory to read it", name_);
    check();
    rows_ = functions_.rows(file_.get());
    if (!column.empty()) require(column);
    if (!functions_.choose(file_.get(), column.empty() ? nullptr : column.c_str())) check();
  }

  bool read(std::string& text, size_t bytes) override {
    for (const size_t enough = text.size() + bytes; text.size() < enough;) {
      const char* more = nullptr;
      int64_t more_bytes = 0;
      switch (functions_.next(file_.get(), &more, &more_bytes, &rows_done_)) {
        case 0: rows_done_ = rows_; return false;
        case 1: text.append(more, static_cast<size_t>(more_bytes)); break;
        default: check();
      }
    }
    return true;
  }
  // The share of the rows.
  int64_t read_bytes() const override {
    if (rows_done_ >= rows_) return file_bytes_;
    return static_cast<int64_t>(static_cast<double>(file_bytes_) * (static_cast<double>(rows_done_) / static_cast<double>(rows_)));
  }
  bool has_rows() const override { return true; }

 private:
  void check() {
    if (const std::string error = functions_.error(file_.get()); !error.empty()) throw DataError("{}: {}", name_, error);
  }

  void require(const std::string& column) {
    const auto names = nlohmann::json::parse(functions_.columns(file_.get()), nullptr, /*allow_exceptions=*/false);
    if (!names.is_array()) throw DataError("{}: the names of its columns are not UTF-8", name_);
    const auto columns = names.get<std::vector<std::string>>();
    if (std::find(columns.begin(), columns.end(), column) == columns.end())
      throw DataError("{}: there is no column '{}'{}; it has {}; choose one with --field", name_, column,
                      base::did_you_mean(column, columns), base::join(columns, ", "));
  }

  std::string name_;
  const IngotParquetFunctions& functions_;
  std::unique_ptr<IngotParquetFile, void (*)(IngotParquetFile*)> file_{nullptr, nullptr};
  int64_t file_bytes_ = 0, rows_ = 0, rows_done_ = 0;
};

}  // namespace

std::unique_ptr<TextSource> open_parquet(const base::fs::path& path, const std::string& column) {
  if (!library().functions) throw DataError("{} is a Parquet file, and {}", path.string(), library().problem);
  return std::make_unique<Parquet>(path, column);
}

}  // namespace ingot::data
