// The front program. Parsing, help and every verb that needs no tensors happen here in milliseconds; libtorch, which takes half a second to
// load, comes in with libingot.so when a verb computes.
#include "cli/verb.h"

int main(int argc, char** argv) {
  ingot::cli::Call call;
  if (const auto status = ingot::cli::parse(argc, argv, call)) return *status;
  return ingot::cli::guarded([&] { return ingot::cli::run(call); });
}
