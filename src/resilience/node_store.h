// Where the launchers of a job write what the others must know: short texts by name, on a file system that all nodes share, or in a TCP
// server that one of them holds.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace ingot::resilience {

/// Any thread may call any function. Names are of letters, digits, dots and dashes. What cannot be written or read is a CommError that says
/// where the nodes meet; in a folder what cannot be read at the moment is as good as not there.
class NodeStore {
 public:
  virtual ~NodeStore() = default;
  /// Replaces it. Readers see the old text, the new one, or none for a moment.
  virtual void put(const std::string& name, const std::string& text) = 0;
  virtual std::optional<std::string> get(const std::string& name) = 0;
  /// The text that `name` has from now on, for all: of whoever came first.
  virtual std::string create(const std::string& name, const std::string& text) = 0;
};

/// For the launchers of one process.
std::shared_ptr<NodeStore> make_memory_store();
/// Nobody holds it: any node may be lost. The folder is made.
std::shared_ptr<NodeStore> make_folder_store(const std::filesystem::path& folder);
/// It is lost with the node that holds it (`is_server`). Throws CommError when nobody answers within `patience`, or the port is taken.
std::shared_ptr<NodeStore> make_tcp_store(const std::string& host, int port, bool is_server, std::chrono::duration<double> patience);

}  // namespace ingot::resilience
