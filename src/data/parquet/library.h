// The C interface of libingot_parquet.so, which reads Parquet files with Apache Arrow and is loaded when one is named (source.h). A plain
// interface, so that neither side needs the other's C++ libraries. One thread at a time may use a file; different files are independent.
#pragma once

#include <cstdint>

struct IngotParquetFile;

struct IngotParquetFunctions {
  int32_t version;  // of this struct
  /// Reads the file's description. Null: there is no memory. What went wrong otherwise is what `error` says.
  IngotParquetFile* (*open)(const char* path);
  /// What went wrong, "" if nothing did; texts live as long as the file.
  const char* (*error)(IngotParquetFile*);
  /// A JSON list of the columns' names.
  const char* (*columns)(IngotParquetFile*);
  int64_t (*rows)(IngotParquetFile*);
  /// Null: all columns. 0: `error` says why not.
  int32_t (*choose)(IngotParquetFile*, const char* column);
  /// The next rows, a JSON object and a newline each, about a megabyte of them. 1: there they are, until the next call; 0: there are no
  /// more; -1: `error` says why not.
  int32_t (*next)(IngotParquetFile*, const char** text, int64_t* text_bytes, int64_t* rows_done);
  void (*close)(IngotParquetFile*);
};

constexpr int32_t kIngotParquetVersion = 1;
/// The library's only function, by its name.
constexpr char kIngotParquetSymbol[] = "ingot_parquet";
using IngotParquet = const IngotParquetFunctions* (*)();
