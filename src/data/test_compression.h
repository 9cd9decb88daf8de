// For tests: texts as gzip, zstd and bzip2.
#pragma once

#include <bzlib.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <string>

namespace ingot::data {

enum class Format { gzip, zstd, bzip2 };
inline constexpr Format kFormats[] = {Format::gzip, Format::zstd, Format::bzip2};
inline constexpr const char* kExtensions[] = {".gz", ".zst", ".bz2"};

inline std::string packed(Format format, const std::string& text) {
  std::string out(text.size() + text.size() / 50 + 1000, '\0');
  if (format == Format::gzip) {
    z_stream stream{};
    deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
  } else if (format == Format::zstd) {
    ZSTD_CCtx* const context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
    ZSTD_freeCCtx(context);
  } else {
    auto bytes = static_cast<unsigned>(out.size());
    EXPECT_EQ(BZ2_bzBuffToBuffCompress(out.data(), &bytes, const_cast<char*>(text.data()), static_cast<unsigned>(text.size()), 9, 0, 0),
              BZ_OK);
    out.resize(bytes);
  }
  return out;
}

}  // namespace ingot::data
