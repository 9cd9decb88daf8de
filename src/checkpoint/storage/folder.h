// A folder of checkpoints, one sub-folder `step_00001000` each: what is there, what may go. A checkpoint that is being
// written or removed lies under a name that begins with a dot, so only complete ones are ever seen here.
// Functions may be called at any time, by several processes too.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

struct StepFolder {
  int64_t step = 0;
  fs::path path;
  bool operator==(const StepFolder&) const = default;
};

/// "step_00001000".
std::string step_name(int64_t step);
/// Of such a name; nothing for any other.
std::optional<int64_t> step_of(const std::string& name);

/// All checkpoints by their names, oldest first, without a look inside. An absent folder has none.
std::vector<StepFolder> all(const fs::path& folder, const Storage& storage = local_storage());

/// The newest checkpoint whose metadata is sound and whose files have the right sizes and ids. Damaged newer ones are
/// logged and passed over.
std::optional<StepFolder> latest(const fs::path& folder, const Storage& storage = local_storage());
/// The same without those that turned out to be damaged inside.
std::optional<StepFolder> latest(const fs::path& folder, const std::set<fs::path>& damaged, const Storage& storage = local_storage());

struct Retention {
  int64_t keep = 3;        // the newest `keep` good checkpoints stay; 0 keeps all
  int64_t keep_every = 0;  // and every one whose step is a multiple of this; 0: none
  int64_t keep_best = 0;   // and so many with the lowest score, of those that have one
};

/// The name of the extra that holds a checkpoint's score, a number as text: the loss on the validation data, say.
inline constexpr const char* kScoreExtra = "score";

/// What `prune` would remove: checkpoints beyond the retention, and damaged ones older than the oldest of the newest
/// `keep`. Damaged ones do not count as kept, so the last good one always stays.
std::vector<StepFolder> prunable(const fs::path& folder, const Retention& retention, const Storage& storage = local_storage());

/// Removes them, each first taken out of sight; one that a reader holds open is left for the next time. Returns those removed.
std::vector<StepFolder> prune(const fs::path& folder, const Retention& retention, const Storage& storage = local_storage());

/// Removes one folder (visible or not) unless it is in use: renames it out of sight, then deletes. False when in use.
bool remove_unused(const fs::path& path, const Storage& storage = local_storage());

/// Removes what processes that died left behind: folders of unfinished saves and removals that nobody holds and that were
/// not changed for `grace_s` (a day where the storage cannot say who holds them). A checkpoint that waited to be replaced
/// and was not gets its name back.
void collect_leftovers(const fs::path& folder, double grace_s, const Storage& storage = local_storage());

/// ".step_00001000.tmp-<id>": where a checkpoint lies until it is complete, and while it is removed.
std::string hidden_name(const std::string& visible_name, const std::string& id);

}  // namespace ingot::checkpoint
