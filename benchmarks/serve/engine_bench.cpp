// How fast the engine of `ingot serve` continues texts without a server around it: serve_engine_bench MODEL TEXTS PROMPT_TOKENS NEW_TOKENS.
// Asks for a line on standard input before each round, and answers with the seconds that it took.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "serve/engine/engine.h"
#include "serve/load_model.h"

namespace {

double round_of(ingot::serve::Engine& engine, int64_t texts, int64_t prompt_tokens, int64_t new_tokens, int64_t vocabulary, int64_t round) {
  using Clock = std::chrono::steady_clock;
  std::vector<ingot::serve::TextRequest> requests(static_cast<size_t>(texts));
  for (int64_t i = 0; i < texts; ++i) {
    auto& request = requests[static_cast<size_t>(i)];
    for (int64_t at = 0; at < prompt_tokens; ++at) request.prompt.push_back((1000 * round + 131 * i + at * at + 7 * at) % vocabulary);
    request.most_tokens = new_tokens;
    request.sampling.temperature = 0;
  }
  const auto begin = Clock::now();
  for (const auto& text : engine.submit_all(std::move(requests)))
    while (text->wait(std::chrono::milliseconds(1000)).ended == ingot::serve::Ended::not_yet) {
    }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 5) throw std::runtime_error("call it with a model and numbers of texts, tokens of a prompt, and new tokens");
  const auto number = [&](int i) { return static_cast<int64_t>(std::atoll(arguments[i])); };
  const auto loaded = ingot::serve::load_model(arguments[1], at::kFloat, at::kCPU);
  ingot::serve::Engine engine(*loaded.model);
  std::puts("ready");
  std::fflush(stdout);
  std::string line;
  for (int64_t round = 0; std::getline(std::cin, line); ++round) {
    std::printf("%.6f\n", round_of(engine, number(2), number(3), number(4), loaded.model->config().vocab_size, round));
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 1;
}
