// Stories that measure, for whoever tunes: they hold on any machine, and what they print is worth what the machine is.
#include <algorithm>

#include "stories.h"

namespace harness {
namespace {

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

// A message there and one back, as often as is said, on connections of their own: half the time of a turn.
void pingpong(Side& here, int side, const std::vector<int>& numbers) {
  const int turns = numbers.at(0);
  const auto size = static_cast<std::size_t>(numbers.at(1));
  here.connect(1);
  Pages out(size + 1), in(size + 1);
  void* const from = here.registered(here.sends[0], out);
  void* const to = here.registered(here.receives[0], in);
  std::vector<double> times;
  for (int i = 0; i < turns; ++i) {
    const auto start = Clock::now();
    void* const got = here.begin_receive(here.receives[0], in.data(), size, to);
    if (side == 1) here.finish(got);
    here.finish(here.begin_send(here.sends[0], out.data(), size));
    if (side == 0) here.finish(got);
    times.push_back(since(start) / 2);
  }
  std::sort(times.begin(), times.end());
  if (side == 0)
    std::printf("%zu B: median %.1f us, 9 of 10 within %.1f us\n", size, times[turns / 2] * 1e6,
                times[turns * 9 / 10] * 1e6);
  must(here.net.middle.deregister_memory(here.sends[0].comm, from), "deregMr");
  must(here.net.middle.deregister_memory(here.receives[0].comm, to), "deregMr");
  here.close();
}

// As NCCL moves much: a few messages under way each way, on so many connections, in steps that end together.
void speed(Side& here, int side, const std::vector<int>& numbers) {
  constexpr std::size_t size = 1 << 20, window = 4;
  const int steps = numbers.at(0), messages = numbers.at(1), connections = numbers.at(2);
  here.connect(connections);
  Pages out(size), in(size * window);
  std::vector<void*> handles;
  for (int c = 0; c < connections; ++c) {
    here.registered(here.sends[c], out);
    handles.push_back(here.registered(here.receives[c], in));
  }
  struct Way {
    int begun = 0, ended = 0;
    std::deque<void*> pending{};
  };
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    const Deadline deadline(60);
    const auto start = Clock::now();
    std::vector<Way> sends(connections), receives(connections);
    bool is_over = false;
    while (!is_over) {
      is_over = true;
      for (int i = 0; i < 2 * connections; ++i) {
        const bool is_send = i % 2;
        Way& way = (is_send ? sends : receives)[i / 2];
        Connection& c = (is_send ? here.sends : here.receives)[i / 2];
        void* request = nullptr;
        if (way.begun < messages && way.pending.size() < window) {
          if (is_send) must(here.net.send(c.comm, out.data(), size, &request), "isend");
          else
            must(here.net.receive(c.comm, in.data() + way.begun % window * size, size, handles[i / 2], &request),
                 "irecv");
          if (request) way.pending.push_back(request);
          way.begun += request != nullptr;
        }
        int is_done = 0;
        if (!way.pending.empty()) must(here.net.tail.test(way.pending.front(), &is_done, nullptr), "test");
        if (is_done) way.pending.pop_front();
        way.ended += is_done;
        is_over &= way.ended == messages;
      }
      deadline.check("a step");
      std::this_thread::yield();
    }
    times.push_back(since(start));
  }
  std::sort(times.begin(), times.end());
  const double bytes = static_cast<double>(size) * messages * connections;
  if (side == 0)
    std::printf("%d MiB each way: median %.2f ms, %.0f MB/s\n", messages * connections, times[steps / 2] * 1e3,
                bytes / times[steps / 2] / 1e6);
  here.bootstrap.meet();
  here.close();
}

}  // namespace harness
