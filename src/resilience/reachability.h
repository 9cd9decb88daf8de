// Whether the other nodes of a job answer where the ranks reach them: a node may beat in a folder that all see, and its link be dead.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ingot::resilience {

class Reachability {
 public:
  struct Peer {
    int64_t id = 0;
    std::string address;
    int port = 0;
  };
  struct Options {
    double every_s = 1;   // between two times that a peer is asked
    double answer_s = 1;  // that it has to answer
  };
  /// Listens on every interface, at a port of the system's choice; a machine that does not permit that answers nobody (port() is 0).
  explicit Reachability(Options options);
  Reachability() : Reachability(Options()) {}
  /// Returns within answer_s, and the time that a name takes to be looked up.
  ~Reachability();
  Reachability(const Reachability&) = delete;

  int port() const;
  /// These are asked from here on. What was known of others is forgotten.
  void watch(std::vector<Peer> peers);
  /// Peers that have answered before, and not for so many seconds and the last kTries times. One that never did may be behind a wall that
  /// ranks do not meet.
  static constexpr int kTries = 3;
  std::vector<int64_t> silent_for(double seconds) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether somebody takes a connection there, in the given time.
bool answers(const std::string& address, int port, double seconds);

}  // namespace ingot::resilience
