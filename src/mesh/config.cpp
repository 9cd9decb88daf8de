#include "mesh/config.h"

namespace ingot::mesh {

void declare_settings(base::SettingsTable& table, ParallelConfig& c) {
  table.add("parallel.data", c.data, base::at_least(-1), "ranks that train on different sequences; -1 = all that the other axes leave");
  table.add("parallel.pipeline", c.pipeline, base::at_least(1), "stages that the layers are dealt out to, by what they cost");
  table.add("parallel.pipeline_schedule", c.pipeline_schedule, {"gpipe", "1f1b", "interleaved", "zero_bubble"},
            "order of the microbatches (train.microbatch_size) on a stage");
  table.add("parallel.pipeline_chunks", c.pipeline_chunks, base::at_least(1), "interleaved: pieces of the model on each stage");
  table.add("parallel.context", c.context, base::at_least(1), "ranks that share each sequence's tokens and hold all weights");
  table.add("parallel.context_method", c.context_method, {"ring", "bidirectional_ring", "allgather", "ulysses"},
            "how attention reaches the other ranks' keys: pass them round one way or both ways, gather them, or exchange tokens for heads");
  table.add("parallel.state_method", c.state_method, {"lasp2", "lasp1", "zeco"},
            "how the states of linear attention get from rank to rank: gathered, along a chain, or along it in blocks");
  table.add("parallel.context_order", c.context_order, {"zigzag", "contiguous"},
            "which tokens a rank gets: an early and a late piece, which balances causal attention, or one");
  table.add("parallel.tensor", c.tensor, base::at_least(1), "ranks that share each matrix and the vocabulary, and work on the same tokens");
  table.add("parallel.tensor_sequence", c.tensor_sequence, base::at_least(1),
            "TSP: ranks that share each matrix, the vocabulary and each sequence's tokens; weights are sent to the tokens");
  table.add("parallel.head_buckets", c.head_buckets, base::at_least(1),
            "tensor_sequence: into how many parts a rank's kv heads go whose keys and values are gathered at a time; more need less memory");
  table.add("parallel.expert", c.expert, base::at_least(1),
            "ranks over which the experts of an MoE are sharded; tokens are dispatched to them. They fold the ranks of a stage anew");
  table.add("parallel.expert_tensor", c.expert_tensor, base::at_least(1), "ranks that share each expert, by its inner width");
  table.add(
      "parallel.sequence_parallel", c.sequence_parallel,
      "tensor parallelism: each rank keeps its slice of the tokens between layers; false: all keep all and repeat norms and residuals");
  table.add("parallel.zero", c.zero, base::IntegerRange{0, 3},
            "what data ranks share out instead of holding it each: 1 optimizer state, 2 gradients too, 3 weights too; 0 nothing");
  table.add("parallel.grad_reduce_dtype", c.grad_reduce_dtype, {"fp32", "bf16"}, "dtype in which data ranks send gradients; they are added in fp32");
  table.add("parallel.bucket_mib", c.bucket_mib, base::NumberRange{0, 4096},
            "gradients reduced at a time, while backward goes on; 0 = the smallest that reaches the measured bandwidth");
}

}  // namespace ingot::mesh
