#include "device/trace_writer.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>

#include "device/state.h"

namespace ingot::device {
namespace {

// Where a thread is, for the writer that it last wrote to.
struct ThreadScope {
  const TraceWriter* writer = nullptr;
  int32_t scope = 0;
};
ThreadScope& thread_scope(const TraceWriter* writer) {
  thread_local ThreadScope here;
  if (here.writer != writer) here = {writer, 0};
  return here;
}

// What picks rows of a table, or adds to some, touches those alone.
void count_picked_rows(const char* name, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs, Trace::Operation& o) {
  const std::string_view of = name;
  const auto bytes = [](const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); };
  if ((of == "aten::index_select" || of == "aten::embedding") && inputs.size() == 2 && outputs.size() == 1) {
    o.read_bytes = bytes(outputs[0]) + bytes(inputs[1]);
  } else if ((of == "aten::index_add_" || of == "aten::index_add") && inputs.size() == 3) {
    o.read_bytes = 2 * bytes(inputs[2]) + bytes(inputs[1]);
    o.written_bytes = bytes(inputs[2]);
  }
}

}  // namespace

TraceWriter::TraceWriter(c10::DeviceIndex device, int64_t before_bytes) : device_(device), allocated_bytes_(before_bytes) {
  trace_.scopes.push_back({});
  trace_.before_bytes = trace_.peak_bytes = before_bytes;
}

int32_t TraceWriter::child_of(int32_t parent, const char* name, bool is_backward, base::Work work) {
  const auto found = children_.find({parent, name});
  if (found != children_.end()) return found->second;
  const auto scope = static_cast<int32_t>(trace_.scopes.size());
  const bool below = trace_.scopes[static_cast<size_t>(parent)].is_backward;
  trace_.scopes.push_back({name, parent, is_backward || below, work});
  children_[{parent, names_.insert(name).first->c_str()}] = scope;
  return scope;
}

int32_t TraceWriter::scope() { return thread_scope(this).scope; }

void TraceWriter::moved() {
  auto& of_thread = transitions_[at::RecordFunction::currentThreadId()];
  const auto sequence = static_cast<int64_t>(at::sequence_number::peek());
  if (!of_thread.empty() && of_thread.back().sequence == sequence) of_thread.back().scope = scope();
  else of_thread.push_back({sequence, scope()});
}

int32_t TraceWriter::enter(const char* name, base::Work work) {
  const std::lock_guard lock(mutex_);
  auto& here = thread_scope(this).scope;
  const auto before = here;
  if (!is_closed_) here = child_of(here, name, false, work);
  moved();
  return before;
}

int32_t TraceWriter::enter_backward(uint64_t forward_thread, int64_t sequence) {
  const std::lock_guard lock(mutex_);
  auto& here = thread_scope(this).scope;
  const auto before = here;
  if (is_closed_) return before;
  int32_t forward = here;
  const auto of_thread = transitions_.find(forward_thread);
  if (of_thread != transitions_.end() && sequence >= 0) {
    auto next = std::upper_bound(of_thread->second.begin(), of_thread->second.end(), sequence,
                                 [](int64_t value, const Transition& transition) { return value < transition.sequence; });
    if (next != of_thread->second.begin()) forward = std::prev(next)->scope;
  }
  here = child_of(forward, "backward", true);
  moved();
  return before;
}

void TraceWriter::go_back(int32_t scope) {
  const std::lock_guard lock(mutex_);
  thread_scope(this).scope = scope;
  moved();
}

int64_t TraceWriter::allocation(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return -1;
  const int64_t position = trace_.positions++;
  trace_.allocations.push_back({bytes, scope(), position});
  allocated_bytes_ += bytes;
  if (allocated_bytes_ > trace_.peak_bytes) trace_.peak_bytes = allocated_bytes_, trace_.peak_position = position;
  return static_cast<int64_t>(trace_.allocations.size()) - 1;
}

void TraceWriter::release(int64_t number, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  allocated_bytes_ -= bytes;
  if (number < 0) trace_.before_bytes -= bytes;
  else trace_.allocations[static_cast<size_t>(number)].end = trace_.positions++;
}

int32_t TraceWriter::interned(const char* name) {
  const auto [at, is_new] = by_address_.try_emplace(name, 0);
  if (!is_new) return at->second;
  const auto [by_name, is_first] = by_name_.try_emplace(name, static_cast<int32_t>(trace_.names.size()));
  if (is_first) trace_.names.emplace_back(name);
  return at->second = by_name->second;
}

void TraceWriter::add_shape(const at::Tensor& tensor, int64_t& bytes) {
  auto& numbers = trace_.shape_numbers;
  numbers.push_back(static_cast<int64_t>(tensor.scalar_type()));
  numbers.push_back(tensor.dim());
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  bytes += static_cast<int64_t>(tensor.nbytes());
}

void TraceWriter::operation(const char* name, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs, double flops) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || !records_operations_) return;
  Trace::Operation o{.name = interned(name), .scope = scope(), .position = trace_.positions++, .flops = flops};
  o.stream = current_stream_id(device_);
  o.shapes = static_cast<int64_t>(trace_.shape_numbers.size());
  for (const auto& tensor : inputs)
    if (tensor.defined()) add_shape(tensor, o.read_bytes), ++o.inputs;
  for (const auto& tensor : outputs)
    if (tensor.defined()) add_shape(tensor, o.written_bytes), ++o.outputs;
  count_picked_rows(name, inputs, outputs, o);
  trace_.operations.push_back(o);
}

int64_t TraceWriter::communication_started(Trace::Communication communication) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || !records_operations_) return -1;
  communication.scope = communication.wait_scope = scope();
  communication.start = trace_.positions++;
  communication.stream = current_stream_id(device_);
  trace_.communications.push_back(std::move(communication));
  return static_cast<int64_t>(trace_.communications.size()) - 1;
}

void TraceWriter::communication_waited(int64_t number) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || number < 0) return;
  auto& communication = trace_.communications[static_cast<size_t>(number)];
  communication.wait = trace_.positions++;
  communication.wait_scope = scope();
  communication.wait_stream = current_stream_id(device_);
}

void TraceWriter::stream_waits(int64_t stream, int64_t other, int64_t until) {
  const std::lock_guard lock(mutex_);
  if (!is_closed_ && records_operations_ && stream != other) trace_.stream_waits.push_back({stream, other, until, trace_.positions++});
}

void TraceWriter::host_access(Trace::HostAccess::Kind kind, const char* name, int64_t bytes, bool waits) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || !records_operations_) return;
  trace_.host_accesses.push_back({kind, bytes, interned(name), scope(), trace_.positions++, waits});
}

void TraceWriter::guessed(const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto& all = trace_.guessed;
  if (!is_closed_ && std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
}

void TraceWriter::record_operations(bool wanted) {
  const std::lock_guard lock(mutex_);
  records_operations_ = wanted;
}

void TraceWriter::restart_peak() {
  const std::lock_guard lock(mutex_);
  trace_.peak_bytes = allocated_bytes_;
  trace_.peak_position = trace_.positions - 1;
}

int64_t TraceWriter::position() {
  const std::lock_guard lock(mutex_);
  return trace_.positions;
}

Trace TraceWriter::finish() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  return std::move(trace_);
}

}  // namespace ingot::device
