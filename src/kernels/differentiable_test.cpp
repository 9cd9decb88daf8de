#include "kernels/differentiable.h"

#include <gtest/gtest.h>

#include <memory>

namespace ingot::kernels {
namespace {

at::Tensor leaf(double value) { return at::full({2}, value, at::kDouble).set_requires_grad(true); }

// a * b + c, where c may be missing; 5 is added so that a plain number is among the arguments.
struct MultiplyAdd : Function<MultiplyAdd, WorkKind::elementwise> {
  static inline std::vector<bool> asked;
  static at::Tensor forward(Context& context, const at::Tensor& a, double shift, const at::Tensor& b, const at::Tensor& c) {
    context.save({a, b});
    context.keep(std::make_shared<double>(shift));
    auto out = a * b + shift;
    return c.defined() ? out + c : out;
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    EXPECT_EQ(*context.kept<std::shared_ptr<double>>(), 5);
    asked = {context.needs_gradient(0), context.needs_gradient(1), context.needs_gradient(2)};
    return {grads[0] * saved[1], grads[0] * saved[0], grads[0]};
  }
};

TEST(Differentiable, gradients_go_to_the_tensors_among_the_arguments) {
  const auto a = leaf(2), b = leaf(3), c = leaf(4);
  const auto y = MultiplyAdd::apply(a, 5.0, b, c);
  EXPECT_EQ(y[0].item<double>(), 15);
  backward({y}, {at::full({2}, 10, at::kDouble)});
  EXPECT_EQ(a.grad()[0].item<double>(), 30);
  EXPECT_EQ(b.grad()[0].item<double>(), 20);
  EXPECT_EQ(c.grad()[0].item<double>(), 10);
}

TEST(Differentiable, undefined_tensors_keep_their_place) {
  const auto a = leaf(2), b = leaf(3);
  backward({MultiplyAdd::apply(a, 5.0, b, at::Tensor())});
  EXPECT_EQ(b.grad()[0].item<double>(), 2);
  EXPECT_EQ(MultiplyAdd::asked, (std::vector<bool>{true, true, false}));
}

TEST(Differentiable, says_which_gradients_are_asked_for) {
  const auto a = leaf(2).detach(), b = leaf(3), c = leaf(4);
  const auto grads = gradients({MultiplyAdd::apply(a, 5.0, b, c)}, {c}, {at::ones({2}, at::kDouble)});
  EXPECT_EQ(grads.size(), 1u);
  EXPECT_FALSE(b.grad().defined());
  EXPECT_EQ(MultiplyAdd::asked, (std::vector<bool>{false, false, true}));
}

TEST(Differentiable, without_gradients_no_graph_is_kept) {
  const auto y = MultiplyAdd::apply(leaf(2).detach(), 5.0, leaf(3).detach(), at::Tensor());
  EXPECT_FALSE(y.requires_grad());
}

// Two outputs of a list of inputs; the saved output must not make the graph hold itself.
struct Swap : Function<Swap, WorkKind::elementwise> {
  static inline std::weak_ptr<int> alive;
  static TensorList forward(Context& context, const TensorList& inputs) {
    auto token = std::make_shared<int>(0);
    alive = token;
    context.keep(token);
    TensorList outputs = {inputs[1] * 2, inputs[0] * 3};
    context.save(outputs);
    context.leave_unused_gradients_undefined();
    return outputs;
  }
  static TensorList backward(Context&, const TensorList& grads) {
    return {grads[1].defined() ? grads[1] * 3 : at::Tensor(), grads[0].defined() ? grads[0] * 2 : at::Tensor()};
  }
};

TEST(Differentiable, lists_and_unused_outputs) {
  const auto a = leaf(1), b = leaf(1);
  {
    const auto parts = Swap::apply(TensorList{a, b});
    ASSERT_EQ(parts.size(), 2u);
    backward({parts[0]}, {at::ones({2}, at::kDouble)});
    EXPECT_FALSE(Swap::alive.expired());
  }
  EXPECT_FALSE(a.grad().defined());
  EXPECT_EQ(b.grad()[0].item<double>(), 2);
  EXPECT_TRUE(Swap::alive.expired());
}

// A gradient list that is shorter than the inputs means: none for the rest.
struct OnlyFirst : Function<OnlyFirst, WorkKind::elementwise> {
  static at::Tensor forward(Context&, const at::Tensor& a, const at::Tensor& b) { return a + b; }
  static TensorList backward(Context&, const TensorList& grads) { return {grads[0]}; }
};

TEST(Differentiable, gradients_at_the_end_may_be_left_out) {
  const auto a = leaf(1), b = leaf(1);
  backward({OnlyFirst::apply(a, b)});
  EXPECT_TRUE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
}

}  // namespace
}  // namespace ingot::kernels
