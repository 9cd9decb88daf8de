// A tokenizer over many texts, for tests/python/tokenizers_test.py and benchmarks/tokenizer_rates.py; no part of ingot.
//
//   tokenizer_exercise TOKENIZER ids TEXTS     ids, ids with special tokens and decoded text of each text, to stdout
//   tokenizer_exercise TOKENIZER rate          for each TEXTS on stdin: encodes them, prints the CPU seconds it took and the number of ids
//
// TEXTS and stdout are lists of lists: a uint32 of the length before each list, of bytes or of int32. Status 1 with a message on stderr
// for a tokenizer that cannot be used.
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>

#include "base/error.h"
#include "base/files.h"
#include "data/tokenizer.h"

namespace ingot::data {
namespace {

std::vector<std::string> texts_of(const std::string& path) {
  const std::string bytes = base::read_file(path);
  std::vector<std::string> texts;
  for (size_t at = 0; at + 4 <= bytes.size();) {
    uint32_t length = 0;
    std::memcpy(&length, bytes.data() + at, 4);
    texts.push_back(bytes.substr(at + 4, length));
    at += 4 + length;
  }
  return texts;
}

template <class List>
void write_list(const List& list) {
  const auto length = static_cast<uint32_t>(list.size());
  std::fwrite(&length, sizeof(length), 1, stdout);
  std::fwrite(list.data(), sizeof(list[0]), list.size(), stdout);
}

void write_ids(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  for (const auto& text : texts) {
    const auto ids = tokenizer.encode(text);
    write_list(ids);
    write_list(tokenizer.encode_with_special(text));
    write_list(tokenizer.decode(ids));
  }
}

void write_rates(const Tokenizer& tokenizer) {
  for (std::string path; std::getline(std::cin, path);) {
    const auto texts = texts_of(path);
    const std::clock_t start = std::clock();
    size_t count = 0;
    for (const auto& text : texts) count += tokenizer.encode(text).size();
    std::cout << static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC << " " << count << std::endl;
  }
}

int run(const std::vector<std::string>& arguments) try {
  const auto tokenizer = load_tokenizer(arguments[0]);
  if (arguments[1] == "rate") write_rates(*tokenizer);
  else write_ids(*tokenizer, texts_of(arguments.at(2)));
  return 0;
} catch (const base::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}

}  // namespace
}  // namespace ingot::data

int main(int argc, char** argv) {
  if (argc == 3 || argc == 4) return ingot::data::run({argv + 1, argv + argc});
  std::cerr << "tokenizer_exercise TOKENIZER ids TEXTS | TOKENIZER rate\n";
  return 2;
}
