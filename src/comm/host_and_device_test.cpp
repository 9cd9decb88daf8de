#include "comm/host_and_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/group.h"
#include "device/virtual_device.h"

namespace ingot::comm {
namespace {

using ::testing::ElementsAre;
using Kinds = std::vector<Kind>;

// Keeps what it was given; its operations wait for nobody, and are over when it says so.
class Noting : public Backend {
 public:
  Noting(std::string name, Kinds& kinds, const bool& is_over) : name_(std::move(name)), kinds_(kinds), is_over_(is_over) {}
  std::string name() const override { return name_; }
  Work start(Operation operation, bool) override {
    kinds_.push_back(operation.kind);
    return Work(std::make_shared<UnderWay>(is_over_));
  }

 private:
  struct UnderWay : Pending {
    explicit UnderWay(const bool& is_over) : is_over(is_over) {}
    void wait() override {}
    bool is_done() override { return is_over; }
    const bool& is_over;
  };
  std::string name_;
  Kinds& kinds_;
  const bool& is_over_;
};

TEST(HostAndDevice, carries_each_tensor_by_the_back_end_of_where_it_lies) {
  const bool over = true;
  Kinds host, device;
  HostAndDevice both(std::make_unique<Noting>("shared_memory", host, over), std::make_unique<Noting>("nccl", device, over));
  const auto here = at::ones({2}), there = at::ones({2}, at::TensorOptions().device(device::emulated_device(0)));
  both.start({.kind = Kind::all_reduce, .input = here, .output = here}, true).wait();
  both.start({.kind = Kind::all_gather, .input = there, .output = there}, true).wait();
  both.start({.kind = Kind::send, .input = there}, false).wait();
  both.start({.kind = Kind::receive, .output = here}, false).wait();
  both.start({.kind = Kind::barrier}, true).wait();
  EXPECT_THAT(host, ElementsAre(Kind::all_reduce, Kind::receive, Kind::barrier));
  EXPECT_THAT(device, ElementsAre(Kind::all_gather, Kind::send));
  EXPECT_EQ(both.name(), "nccl");
}

// Over NCCL a wait makes the stream wait, not the host: what hangs there must not look finished.
TEST(LedgerOfStreams, an_operation_is_finished_when_its_device_is_not_when_its_wait_returns) {
  Kinds kinds;
  bool is_over = false;
  Counters counters;
  Ledger ledger(0);
  Group group("data", {0, 1}, 0, std::make_unique<Noting>("nccl", kinds, is_over), counters, ledger);
  group.all_reduce(at::ones({2}));
  EXPECT_EQ(ledger.entries().at(0).finished_s, 0);
  is_over = true;
  group.start_all_reduce(at::ones({2})).wait();
  EXPECT_GT(ledger.entries().at(0).finished_s, 0);
}

}  // namespace
}  // namespace ingot::comm
