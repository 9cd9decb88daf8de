// What saving and loading checkpoints cost, as JSON: a line of checkpoints.jsonl (docs/run-directory.md) and a field of the step lines.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/load/load.h"
#include "checkpoint/save/writer.h"

namespace ingot::train {

/// {"kind": "save", "where": "folder" or "memory", "step", "path", "ok", "failure", "bytes", "metadata_bytes", "planned", "total_s",
/// "stall_s", "slowest_rank", "ranks":
/// [{"bytes", "plan_s", "stall_s", "copy_s", "hash_s", "write_s", "sync_s", "gb_per_s"}]}; rates are bytes over (write_s + sync_s).
nlohmann::ordered_json to_json(const checkpoint::SaveOutcome& outcome, const char* where);

/// {"kind": "load", "step", "path", "ok": true, "total_s", "slowest_rank", "ranks": [{"wanted_bytes", "read_bytes", "cached_bytes", "sent_bytes",
/// "received_bytes", "plan_s", "read_s", "exchange_s", "total_s", "gb_per_s"}]}; rates are bytes read over total_s.
nlohmann::ordered_json load_json(const std::string& path, int64_t step, const checkpoint::LoadReport& report);

}  // namespace ingot::train
