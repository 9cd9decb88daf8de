// write_figures CLUSTERS DOCUMENT: puts current tables into the document, and its figures into the folder of the document's name. Not part
// of the program: `cmake --build build/release --target parallel_figures`.
#include <cstdio>

#include "base/error.h"
#include "base/files.h"
#include "bench/parallel/figures.h"

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: write_figures CLUSTERS DOCUMENT\n", stderr);
    return 2;
  }
  try {
    const std::filesystem::path document = arguments[2];
    ingot::base::write_file_atomically(document, ingot::bench::with_current_tables(ingot::base::read_file(document), arguments[1]));
    for (const auto& figure : ingot::bench::figures())
      ingot::base::write_file_atomically(document.parent_path() / document.stem() / figure.file, figure.svg);
    return 0;
  } catch (const ingot::base::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
