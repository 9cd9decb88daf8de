#include "layers/deferred.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/work_scope.h"
#include "device/aten.h"

namespace ingot::layers {
namespace {

thread_local DeferredGradients* current_deferred = nullptr;

}  // namespace

DeferredGradients::Scope::Scope(DeferredGradients* deferred) : before_(std::exchange(current_deferred, deferred)) {}
DeferredGradients::Scope::~Scope() { current_deferred = before_; }

DeferredGradients* DeferredGradients::current() { return current_deferred; }

void DeferredGradients::run_or_defer(DeferredGradients* deferred, std::function<void()> work) {
  if (deferred) deferred->work_.push_back(std::move(work));
  else work();
}

void DeferredGradients::run() {
  const base::WorkScope scope("deferred_gradients", base::WorkKind::matmul);
  const at::NoGradGuard no_grad;
  for (auto& work : std::exchange(work_, {})) work();
}

}  // namespace ingot::layers
