# Debian's libraries. Static where Debian ships an archive; the others are copied beside the program (Bundle.cmake).
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(prometheus-cpp REQUIRED)

# What every folder uses. fmt is linked, not included: its header-only form costs every file that formats 4 s.
add_library(ingot_common INTERFACE)
target_link_libraries(ingot_common INTERFACE fmt::fmt spdlog::spdlog_header_only tomlplusplus::tomlplusplus nlohmann_json::nlohmann_json
  Threads::Threads)
add_library(ingot::common ALIAS ingot_common)

# Archives, and a few shared libraries, that have no CMake package of their own.
function(ingot_archive name header library)
  find_path(INGOT_${name}_INCLUDE ${header} REQUIRED)
  find_library(INGOT_${name}_LIBRARY NAMES ${library} REQUIRED)
  add_library(ingot_${name} INTERFACE)
  target_include_directories(ingot_${name} SYSTEM INTERFACE "${INGOT_${name}_INCLUDE}")
  target_link_libraries(ingot_${name} INTERFACE "${INGOT_${name}_LIBRARY}")
  add_library(ingot::${name} ALIAS ingot_${name})
endfunction()
ingot_archive(pcre2 pcre2.h libpcre2-8.a)
ingot_archive(zstd zstd.h libzstd.so)
ingot_archive(zlib zlib.h libz.so)
ingot_archive(bzip2 bzlib.h libbz2.so)
ingot_archive(cld2 cld2/public/compact_lang_det.h libcld2.so)
ingot_archive(xxhash xxhash.h libxxhash.a)
ingot_archive(uring liburing.h liburing.a)
ingot_archive(pugixml pugixml.hpp libpugixml.a)
ingot_archive(curl curl/curl.h libcurl.so)
ingot_archive(crypto openssl/evp.h libcrypto.so)
ingot_archive(sqlite3 sqlite3.h libsqlite3.so)
ingot_archive(sentencepiece sentencepiece_processor.h libsentencepiece.so)
ingot_archive(sentencepiece_train sentencepiece_trainer.h libsentencepiece_train.so)

# Plots of the report's pages; it lies inside of the program, and of each page.
find_file(INGOT_DYGRAPHS dygraph.min.js PATHS /usr/share/javascript/dygraphs NO_DEFAULT_PATH)
if(NOT INGOT_DYGRAPHS)
  message(FATAL_ERROR "no dygraph.min.js: install Debian's libjs-dygraphs, as ./scripts/build does, or pass -DINGOT_DYGRAPHS=FILE")
endif()

# Its flags (TLS, compression) change the layout of its classes, so they are taken from the library's own description.
find_package(PkgConfig REQUIRED)
pkg_check_modules(INGOT_HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
add_library(ingot::httplib ALIAS PkgConfig::INGOT_HTTPLIB)
