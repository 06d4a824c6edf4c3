// Callers and a lane's own thread take turns: never two at once, none left waiting, and a thread without work sleeps.
// Prints what it saw; exits with 1 where something does not hold.
#include "udp/leader_follower.h"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "udp/clock.h"
#include "udp/spin.h"

using namespace softmrc;
using udp::LeaderFollower;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::_Exit(1);
}

// Work comes in as numbers; the driving thread takes one at a time, and one that waits for a number leads until it was
// taken.
struct Lane {
  LeaderFollower turns;
  udp::Clock clock;
  int inside = 0;
  std::uint64_t taken = 0;
  std::uint64_t available = 0;
  std::uint64_t by_own = 0;
  std::uint64_t by_callers = 0;
  bool is_kicked = false;

  template <typename Done>
  void drive(LeaderFollower::Lock& lock, Done done, std::uint64_t& counter) {
    require(++inside == 1, "one drives at a time");
    while (!done()) {
      if (taken < available) {
        ++taken;
        ++counter;
      } else if (!is_kicked) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        lock.lock();
      }
      is_kicked = false;
      turns.yield_to_waiters(lock);
    }
    --inside;
  }

  bool wait_for(std::uint64_t number, Duration timeout) {
    LeaderFollower::Lock lock = turns.enter();
    const Time until = clock.now() + timeout;
    const auto done = [&] { return taken >= number || is_over; };
    turns.drive_until(lock, clock, until, done, [&] {
      drive(lock, [&] { return done() || clock.now() >= until; }, by_callers);
    }, [&] { is_kicked = true; });
    return taken >= number;
  }

  void run() {
    LeaderFollower::Lock lock = turns.enter();
    turns.run(lock, [&] { drive(lock, [&] { return is_over || turns.has_followers(); }, by_own); });
    has_served = true;
  }

  void end() {
    LeaderFollower::Lock lock = turns.enter();
    is_over = true;
    turns.end();
  }

  bool is_over = false;
  bool has_served = false;
};

void callers_get_what_they_wait_for(int callers, std::uint64_t each) {
  Lane lane;
  std::thread own([&] { lane.run(); });
  std::vector<std::thread> threads;
  for (int c = 0; c < callers; ++c) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < each; ++i) {
        std::uint64_t mine = 0;
        {
          const LeaderFollower::EngineLock visit(lane.turns);
          mine = ++lane.available;
        }
        require(lane.wait_for(mine, seconds(60)), "what was posted is taken");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  lane.end();
  own.join();
  require(lane.has_served && lane.taken == each * static_cast<std::uint64_t>(callers), "all of it, once");
  std::printf("%d callers: %llu by callers, %llu by the lane's own thread\n", callers,
              static_cast<unsigned long long>(lane.by_callers), static_cast<unsigned long long>(lane.by_own));
}

void nobody_waits_for_ever(int callers) {
  Lane lane;
  std::thread own([&] { lane.run(); });
  require(!lane.wait_for(1, milliseconds(5)), "nothing came");
  std::vector<std::thread> threads;
  for (int c = 0; c < callers; ++c)
    threads.emplace_back([&] { require(!lane.wait_for(1'000'000, Duration{Time::never().ps / 2}), "it is over"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  lane.end();
  for (std::thread& thread : threads) thread.join();
  own.join();
  require(lane.has_served, "the own thread ends last");
}

void the_own_thread_works_alone() {
  Lane lane;
  std::thread own([&] { lane.run(); });
  {
    const LeaderFollower::EngineLock visit(lane.turns);
    lane.available = 1000;
  }
  LeaderFollower::Lock lock = lane.turns.enter();
  for (int i = 0; i < 20'000 && lane.taken < 1000; ++i) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock = lane.turns.enter();
  }
  require(lane.by_own == 1000, "no thread waits, and it is done");
  lock.unlock();
  lane.end();
  own.join();
}

// The thread that gets its turn may have no use for it any more.
void a_turn_that_nobody_wants_is_passed_on() {
  struct Hand {
    std::atomic<std::int64_t> ps{0};
    Time now() const { return Time{ps.load()}; }
  } clock;
  LeaderFollower turns;
  std::atomic<bool> leaves{false}, is_over{false};
  std::atomic<int> driven{0};
  const Time soon{seconds(100).ps};
  const auto nap = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  const auto is_done = [&] { return is_over.load(); };
  const auto breathe = [&](LeaderFollower::Lock& lock) {
    lock.unlock();
    nap(1);
    lock.lock();
  };
  std::thread leader([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.drive_until(lock, clock, soon, is_done, [&] {
      while (!leaves) breathe(lock);
    }, [] {});
  });
  nap(50);
  std::thread own([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.run(lock, [&] { breathe(lock); });
  });
  std::thread impatient([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.drive_until(lock, clock, soon, is_done, [] {}, [] {});
  });
  nap(50);
  std::thread patient([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.drive_until(lock, clock, Time::never(), is_done, [&] {
      ++driven;
      breathe(lock);
    }, [] {});
  });
  nap(50);
  clock.ps = seconds(101).ps;
  leaves = true;
  leader.join();
  impatient.join();
  for (int i = 0; i < 10'000 && driven == 0; ++i) nap(1);
  require(driven > 0, "who still waits has the turn");
  is_over = true;
  {
    LeaderFollower::Lock lock = turns.enter();
    turns.end();
  }
  patient.join();
  own.join();
}

// A caller asks the lane's own thread to make room, and then has no time left to drive.
void a_caller_that_gives_up_leaves_the_lane_to_its_own_thread() {
  struct Hand {
    std::atomic<std::int64_t> ps{0};
    Time now() const { return Time{ps.load()}; }
  } clock;
  LeaderFollower turns;
  std::atomic<int> driven{0};
  std::thread own([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.run(lock, [&] {
      ++driven;
      for (int i = 0; i < 50 && !turns.has_followers(); ++i) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        lock.lock();
      }
    });
  });
  for (int i = 0; i < 10'000 && driven == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread caller([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.drive_until(lock, clock, Time{seconds(1).ps}, [] { return false; },
                      [] { require(false, "it has no time to drive"); }, [&] { clock.ps = seconds(2).ps; });
  });
  caller.join();
  const int before = driven;
  for (int i = 0; i < 10'000 && driven == before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  require(driven > before, "the own thread drives again");
  {
    LeaderFollower::Lock lock = turns.enter();
    turns.end();
  }
  own.join();
}

// What most callers wait for has not come after most turns: those sleep on, and the others are woken.
void only_those_are_woken_that_have_what_they_wait_for() {
  constexpr int idle = 20;
  constexpr std::uint64_t rounds = 2'000;
  LeaderFollower turns;
  udp::Clock clock;
  std::uint64_t wanted = 0, given = 0;
  bool is_over = false;
  std::atomic<std::uint64_t> looks{0};
  std::vector<std::thread> threads;
  const auto nap = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  // One drives and gives, one takes, all others wait for the end.
  std::thread driver([&] {
    LeaderFollower::Lock lock = turns.enter();
    turns.drive_until(lock, clock, Time::never(), [&] { return is_over; }, [&] {
      while (!is_over) {
        if (given < wanted) ++given;
        turns.wake_done();
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }, [] {});
  });
  nap(50);
  for (int i = 0; i < idle; ++i) {
    threads.emplace_back([&] {
      const std::thread::id here = std::this_thread::get_id();
      LeaderFollower::Lock lock = turns.enter();
      turns.drive_until(lock, clock, Time::never(), [&] {
        looks += std::this_thread::get_id() == here;
        return is_over;
      }, [] {}, [] {});
    });
  }
  nap(50);
  const std::uint64_t before = looks;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    LeaderFollower::Lock lock = turns.enter();
    const std::uint64_t mine = ++wanted;
    turns.drive_until(lock, clock, Time::never(), [&] { return given >= mine; }, [] {}, [] {});
  }
  require(looks - before < rounds, "who waits for something else sleeps on");
  {
    LeaderFollower::Lock lock = turns.enter();
    is_over = true;
    turns.wake_all();
  }
  driver.join();
  for (std::thread& thread : threads) thread.join();
}

// Who posts and never waits must not keep everybody from driving.
void posts_are_not_waited_for_for_ever() {
  Lane lane;
  std::thread own([&] { lane.run(); });
  const auto offer = [&](std::uint64_t number) {
    const LeaderFollower::EngineLock visit(lane.turns);
    lane.available = number;
  };
  offer(1);
  require(lane.wait_for(1, seconds(60)), "a caller drives");
  offer(2);
  std::uint64_t taken = 1;
  for (int i = 0; i < 200'000 && taken < 2; ++i) {
    LeaderFollower::Lock lock = lane.turns.enter();
    lane.turns.on_post();
    taken = lane.taken;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  require(taken == 2, "the own thread does, however often something is posted");
  lane.end();
  own.join();
}

void spinning_ends() {
  udp::Spin spin(microseconds(50));
  Time now{1'000'000'000};
  spin.begin(now);
  for (int i = 0; i < 100; ++i) spin.on_work(now = now + microseconds(5));
  require(spin.wants_more(now + microseconds(10)), "work comes often: look again");
  require(!spin.wants_more(now + microseconds(60)), "not for longer than it may");
  for (int i = 0; i < 100; ++i) {
    now = now + milliseconds(1);
    require(i < 8 || !spin.wants_more(now), "work comes seldom: sleep at once");
    spin.on_slept(now);
    spin.on_work(now = now + microseconds(100));
  }
  for (int i = 0; i < 100; ++i) spin.on_work(now = now + microseconds(5));
  require(spin.wants_more(now), "often again");
  spin.on_looked(now, now + milliseconds(4));
  now = now + milliseconds(4);
  spin.on_work(now);
  for (int i = 0; i < 100; ++i) spin.on_work(now = now + microseconds(5));
  require(!spin.wants_more(now), "another process wanted the processor");
  for (int i = 0; i < 30'000; ++i) spin.on_work(now = now + microseconds(5));
  require(spin.wants_more(now), "for a while");
  spin.set_longest(Duration{0});
  require(!spin.wants_more(now), "never, where it may not");
}

}  // namespace

int main() {
  for (int callers : {1, 2, 5}) callers_get_what_they_wait_for(callers, 300);
  for (int callers : {1, 4}) nobody_waits_for_ever(callers);
  the_own_thread_works_alone();
  a_turn_that_nobody_wants_is_passed_on();
  a_caller_that_gives_up_leaves_the_lane_to_its_own_thread();
  only_those_are_woken_that_have_what_they_wait_for();
  posts_are_not_waited_for_for_ever();
  spinning_ends();
  std::puts("all holds");
}
