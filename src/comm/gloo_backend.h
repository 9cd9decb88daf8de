// Collectives over TCP by Gloo, for ranks on several machines without GPUs. Messages are Gloo's; collectives are made of them
// (pairwise.h), because Gloo's own reduce_scatter and all_gather move and wait more than they must (docs/communication.md).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/backend.h"
#include "comm/shared_backend.h"

namespace ingot::comm {

/// Whether this program was compiled with Gloo's headers.
bool has_gloo();

/// `store`: for the addresses of the ranks; `address`: of this machine, on the network that reaches the others.
/// All members must call it. Throws CommError, also when there is no Gloo.
std::unique_ptr<Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> members,
                                           const std::string& address, std::chrono::duration<double> timeout, ArtificialDelay delay);

}  // namespace ingot::comm
