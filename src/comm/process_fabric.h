// How processes meet: in a TCP store, then through shared memory on one machine, Gloo between machines, NCCL between GPUs.
#pragma once

#include <memory>

#include "comm/world.h"

namespace ingot::comm {

/// Connects to the store (or holds it, as rank 0 of a job whose launcher does not), and waits for all ranks. Throws CommError.
std::unique_ptr<Fabric> make_process_fabric(const RankEnvironment& environment, bool is_gpu, const WorldOptions& options);

}  // namespace ingot::comm
