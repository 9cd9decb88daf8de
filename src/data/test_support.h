// What the tests of this folder share: a folder that goes away, small datasets, and errors that must name things.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace ingot::data {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> count = 0;
    path_ = fs::temp_directory_path() / ("ingot_data_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  fs::path path_;
};

inline std::string content_of(const fs::path& path) { return base::read_file(path); }

/// The most memory that the process has had.
inline int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

inline std::string base64_of(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (size_t i = 0; i < 4; ++i) text += at + i <= bytes.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

/// Documents of the given lengths; the token at stream position p has the id first + p.
inline fs::path counting_dataset(const TemporaryFolder& folder, const std::string& name, const std::vector<int>& lengths,
                                 int32_t first = 0) {
  IndexedDatasetWriter writer(folder / name, TokenType::int32);
  int32_t next = first;
  for (const int length : lengths) {
    std::vector<int32_t> document;
    for (int i = 0; i < length; ++i) document.push_back(next++);
    writer.add_document(document);
  }
  writer.finish();
  return folder / name;
}

/// Runs `action` and checks the type of its error and the words in it.
template <class Error, class Action>
void expect_error(const Action& action, const std::vector<std::string>& words) {
  try {
    action();
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    for (const auto& word : words) EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
  }
}

}  // namespace ingot::data
