// One group on a machine with GPUs: what lies on the host travels by the host's back-end, what lies on the GPU by the GPU's, as c10d's
// "cpu:gloo,cuda:nccl" does it. So what ranks tell each other (agreements, plans, texts) waits for no kernel, and no kernel for it.
#pragma once

#include <memory>

#include "comm/backend.h"

namespace ingot::comm {

class HostAndDevice : public Backend {
 public:
  HostAndDevice(std::unique_ptr<Backend> host, std::unique_ptr<Backend> device) : host_(std::move(host)), device_(std::move(device)) {}
  std::string name() const override { return device_->name(); }
  /// A barrier is the host's: who comes out of it knows that all have come.
  Work start(Operation operation, bool blocking) override {
    const auto& tensor = operation.input.defined() ? operation.input : operation.output;
    const bool is_host = !tensor.defined() || tensor.device().is_cpu();
    return (is_host ? host_ : device_)->start(std::move(operation), blocking);
  }

 private:
  std::unique_ptr<Backend> host_, device_;
};

}  // namespace ingot::comm
