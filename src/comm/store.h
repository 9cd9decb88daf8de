// The store in which the processes of a job find each other: a TCP server that one of them holds, c10d's.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace ingot::comm {

/// Connects to host:port, or listens there (port 0: any free one). Throws what c10d throws; its log, which says the same with
/// stack traces, is silenced.
c10::intrusive_ptr<c10d::TCPStore> open_store(const std::string& host, int port, bool is_server, std::chrono::duration<double> timeout);

}  // namespace ingot::comm
