#include "mesh/config.h"

namespace ingot::mesh {

void declare_settings(base::SettingsTable& table, ParallelConfig& c) {
  table.add("parallel.data", c.data, base::at_least(-1), "ranks that train on different sequences; -1 = all that the other axes leave");
  table.add("parallel.bucket_mib", c.bucket_mib, base::NumberRange{0, 4096},
            "gradients reduced at a time, while backward goes on; 0 = the smallest that reaches the measured bandwidth");
}

}  // namespace ingot::mesh
