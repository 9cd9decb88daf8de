#include "plan/run/loading.h"

namespace ingot::plan {

double pages_per_iteration(const LoadingShape& shape, double scatter) {
  return scatter * static_cast<double>(shape.batch) * shape.pages_of_sample();
}

double required_reads_per_s(const LoadingShape& shape, double scatter, double iteration_s) {
  return pages_per_iteration(shape, scatter) / iteration_s;
}

double break_even_s(const LoadingShape& shape, double scatter, double reads_per_s) {
  return pages_per_iteration(shape, scatter) / reads_per_s;
}

double scatter_of(const LoadingShape& shape, double extra_pages) { return 1 + extra_pages / shape.pages_of_sample(); }

}  // namespace ingot::plan
