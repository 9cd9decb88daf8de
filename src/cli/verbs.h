// Every verb: NAME of NAME.cpp (verb.h). Help lists them in this order.
#pragma once

// Run by the front program; checkpoint and data are in both, since buckets need libraries that take 9 ms to load.
#define INGOT_FRONT_VERBS(VERB) \
  VERB(data)                    \
  VERB(checkpoint)              \
  VERB(bench_verdict)           \
  VERB(report)                  \
  VERB(status)

// Run by libingot.so.
#define INGOT_TORCH_VERBS(VERB) \
  VERB(train)                   \
  VERB(launch)                  \
  VERB(sweep)                   \
  VERB(generate)                \
  VERB(serve)                   \
  VERB(eval)                    \
  VERB(hugging_face)            \
  VERB(export_gguf)             \
  VERB(export_archive)          \
  VERB(data_score)              \
  VERB(bench)                   \
  VERB(bench_storage)           \
  VERB(bench_iteration)         \
  VERB(bench_collectives)       \
  VERB(bench_parallel)          \
  VERB(plan)                    \
  VERB(plan_simulate)           \
  VERB(plan_trace)              \
  VERB(plan_errors)             \
  VERB(plan_law)                \
  VERB(plan_kernels)            \
  VERB(plan_size)               \
  VERB(plan_moe_width)          \
  VERB(verify)                  \
  VERB(doctor)
