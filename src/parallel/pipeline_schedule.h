// The order in which a pipeline stage does its work. Pure functions of the sizes: what runs where and when, for any number of
// stages, microbatches and chunks, and how long that takes when passes cost so and so much.
//
// A model is cut into `chunks * stages` pieces along its depth; piece g lies on stage g % stages. Backward of a microbatch needs
// its forward, and the gradient from the piece behind; a zero-bubble schedule does the gradients of the weights by themselves.
#pragma once

#include <string>
#include <vector>

namespace ingot::parallel {

enum class Schedule {
  gpipe,        // all forwards, then all backwards: every stage keeps the activations of all microbatches
  one_f_one_b,  // as soon as possible one backward for one forward: stage s keeps stages - s microbatches
  interleaved,  // the same with several chunks on each stage: the bubble is a chunk's instead of a stage's
  zero_bubble   // 1F1B whose gradients of weights wait and fill the bubble (ZB-H1 of Qi et al. 2023)
};
/// "gpipe", "1f1b", "interleaved", "zero_bubble". Throws ConfigError.
Schedule schedule_from_name(const std::string& name);

enum class Pass { forward, backward, weights };  // weights: only in zero-bubble schedules, where backward leaves them out

struct Action {
  Pass pass;
  int chunk, microbatch;  // chunk: of this stage, 0 … chunks - 1
  bool operator==(const Action&) const = default;
};

struct PipelineShape {
  Schedule schedule = Schedule::one_f_one_b;
  int stages = 1, chunks = 1, microbatches = 1;
  int pieces() const { return stages * chunks; }
  int piece_of(int stage, int chunk) const { return chunk * stages + stage; }
};

/// Throws ConfigError when the schedule does not exist for these sizes, with those that would work.
void check(const PipelineShape& shape);

/// What stage does, in its order.
std::vector<Action> actions_of(const PipelineShape& shape, int stage);

/// What passes cost, in any unit; of a whole piece.
struct PassCosts {
  double forward = 1, backward = 1, weights = 1;  // a schedule without weights passes adds them to backward
};

struct Timeline {
  struct Entry {
    int stage;
    Action action;
    double begin, end;
  };
  std::vector<Entry> entries;
  double end = 0;
  /// Share of stage time in which nothing runs.
  double bubble = 0;
  /// Most microbatches (of any chunk) whose activations a stage keeps at a time.
  std::vector<int> kept;
};

/// Plays the schedule with messages that take no time. Throws NumericError when it would wait for ever.
Timeline simulate(const PipelineShape& shape, const PassCosts& costs);

/// A line of text for each stage, a column for each unit of time: the microbatch in forward (1), backward (1') and weights (1w).
std::string draw(const PipelineShape& shape, const PassCosts& costs);

}  // namespace ingot::parallel
