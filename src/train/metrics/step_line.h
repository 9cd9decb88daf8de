// The line that a person watches: one per step, in columns, under 180 characters.
#pragma once

#include <string>
#include <string_view>

#include "train/metrics/step_record.h"

namespace ingot::train {

/// For instance
///   step  1200/20000   6%  loss  3.215  norm 0.8422  lr 2.95e-04   1234/1180 ms  12.3 k tok/s  …
/// Columns keep their place from line to line; a value that needs no column (no prediction, dense model, no validation)
/// is left out.
std::string step_line(const StepRecord& record);

/// For instance
///   step 1200  agreement (40 items): acc 0.7250 ± 0.07140, acc_norm 0.7000 ± 0.07338
/// The sign is that of a standard error.
std::string evaluation_line(int64_t step, const Evaluation& evaluation);

/// What the columns of step_line() mean, in one line that is printed before the first of them.
std::string step_line_legend();

/// What MFU means in this run, printed once at its start (design §4.5). `peak_tflops` of 0 means that no peak was measured.
std::string mfu_convention(double peak_tflops, std::string_view peak_source);

}  // namespace ingot::train
