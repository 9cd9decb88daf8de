// Gradients of weights that wait: a zero-bubble pipeline does them when there is nothing better to do. Layers whose weights get
// their gradient in Parameter::grad (linear, experts) ask here; gradients of inputs are never put off.
#pragma once

#include <functional>
#include <vector>

namespace ingot::layers {

class DeferredGradients {
 public:
  /// Does now what has been put off, in its order.
  void run();
  bool is_empty() const { return work_.empty(); }

  /// While it lives, layers that this thread runs, forward or again in backward, put off what they can.
  class Scope {
   public:
    explicit Scope(DeferredGradients* deferred);  // null: nothing is put off
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    DeferredGradients* before_;
  };
  /// Of this thread; null when nothing is put off. A layer asks in its forward pass and remembers the answer.
  static DeferredGradients* current();
  /// Runs `work` now, or later.
  static void run_or_defer(DeferredGradients* deferred, std::function<void()> work);

 private:
  std::vector<std::function<void()>> work_;
};

}  // namespace ingot::layers
