// Writes a trace while a program runs. Inner header. Any thread may call; a writer lives as long as blocks of memory that it saw.
#pragma once

#include <ATen/core/stack.h>

#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "device/aten.h"
#include "device/trace.h"

namespace ingot::device {

class TraceWriter {
 public:
  TraceWriter(c10::DeviceIndex device, int64_t before_bytes);

  // Scopes of the calling thread. The scope that it has now:
  int32_t scope();
  /// Enters a scope of that name below the thread's own, or the backward scope of what a forward pass made; returns the one to go back to.
  int32_t enter(const char* name, base::Work work);
  int32_t enter_backward(uint64_t forward_thread, int64_t sequence);
  void go_back(int32_t scope);

  /// Its number, for release(); -1 is of before.
  int64_t allocation(int64_t bytes);
  void release(int64_t number, int64_t bytes);
  void operation(const char* name, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs, double flops);
  int64_t communication_started(Trace::Communication communication);
  void communication_waited(int64_t number);
  void stream_waits(int64_t stream, int64_t other, int64_t until);
  void host_access(Trace::HostAccess::Kind kind, const char* name, int64_t bytes, bool waits = true);
  void guessed(const std::string& name);

  void record_operations(bool wanted);
  void restart_peak();
  int64_t position();
  Trace finish();

 private:
  int32_t child_of(int32_t parent, const char* name, bool is_backward, base::Work work = {});
  int32_t interned(const char* name);
  void add_shape(const at::Tensor& tensor, int64_t& bytes);
  void moved();  // the thread is in another scope

  const c10::DeviceIndex device_;
  std::recursive_mutex mutex_;
  Trace trace_;
  bool is_closed_ = false, records_operations_ = true;
  int64_t allocated_bytes_ = 0;
  std::set<std::string> names_;
  std::map<std::pair<int32_t, std::string_view>, int32_t> children_;
  std::unordered_map<const char*, int32_t> by_address_;
  std::map<std::string, int32_t, std::less<>> by_name_;
  struct Transition {
    int64_t sequence;  // of autograd nodes made from here on
    int32_t scope;
  };
  std::map<uint64_t, std::vector<Transition>> transitions_;  // by thread
};

}  // namespace ingot::device
