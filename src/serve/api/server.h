// A model behind OpenAI's interface: /v1/completions, /v1/chat/completions, /v1/models, and vLLM's /tokenize, /detokenize, /tokenizer_info,
// /health and /metrics.
#pragma once

#include <memory>
#include <string>

#include "serve/api/request.h"
#include "serve/engine/engine.h"

namespace ingot::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;           // 0: any
  std::string model;         // its name, which answers have
  std::string api_key;       // that requests under /v1 must have; empty: none
  double timeout_s = 600;    // of a whole answer
  size_t connections = 256;  // at once
  size_t request_mib = 16;
};

class ApiServer {
 public:
  /// Listens from here on; engine and language must outlive it. Throws UsageError when the address is taken.
  ApiServer(Engine& engine, const Language& language, ServerOptions options);
  /// Answers that are not done end where they are.
  ~ApiServer();

  int port() const;
  /// Takes no more requests, and waits for the answers under way, no longer than that.
  void drain(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::serve
