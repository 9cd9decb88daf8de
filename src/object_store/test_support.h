// What the tests of this folder share: a folder that goes away, and errors that must name things.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace ingot::object_store {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> count = 0;
    path_ = std::filesystem::temp_directory_path() / ("ingot_objects_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_ / ".aws");
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// Runs `action` and checks the type of its error and the words in it.
template <class Error, class Action>
void expect_error(const Action& action, const std::vector<std::string>& words) {
  try {
    action();
    ADD_FAILURE() << "no error was thrown; expected words: " << ::testing::PrintToString(words);
  } catch (const Error& error) {
    for (const auto& word : words) EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
  }
}

/// A copy with a few bytes changed, removed, inserted or repeated; the same for the same generator.
inline std::string damaged(std::string text, std::mt19937_64& random) {
  static const std::string kSpecial = "<>&;/\"'=[]#%\n\r\t \0\x01\xFF\xC3-9";
  for (uint64_t changes = 1 + random() % 4; changes > 0 && !text.empty(); --changes) {
    const size_t at = random() % text.size();
    const char byte = random() % 2 ? kSpecial[random() % kSpecial.size()] : static_cast<char>(random());
    switch (random() % 5) {
      case 0: text[at] = byte; break;
      case 1: text.erase(at, 1 + random() % 20); break;
      case 2: text.insert(at, 1 + random() % 3, byte); break;
      case 3: text.insert(at, text.substr(random() % text.size(), random() % 60)); break;
      default: text.resize(at); break;
    }
  }
  return text;
}

}  // namespace ingot::object_store
