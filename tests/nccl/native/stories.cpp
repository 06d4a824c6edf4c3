#include "stories.h"

#include <sys/wait.h>

#include <csignal>

namespace harness {
namespace {

constexpr std::size_t mib = 1 << 20;
constexpr std::size_t longest = 8 * mib;
constexpr std::size_t canary = 64;

// The bytes of a message follow from where it belongs.
void fill(std::uint8_t* data, std::size_t size, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t at = 0; at < size; at += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(data + at, &state, std::min<std::size_t>(8, size - at));
  }
}

bool is_filled(const std::uint8_t* data, std::size_t size, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t at = 0; at < size; at += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (std::memcmp(data + at, &state, std::min<std::size_t>(8, size - at)) != 0) return false;
  }
  return true;
}

// One direction of one connection, from one of its ends.
struct Flow {
  static constexpr std::size_t window = 8, room = longest + 4096 + canary;
  struct Pending {
    void* request;
    std::uint64_t number;
  };

  Side& side;
  Connection& connection;
  const bool is_send;
  const std::uint64_t seed;
  const std::uint64_t messages;
  std::mt19937_64 luck;
  Pages pages{window * room};
  std::uint64_t next = 0, ended = 0;
  std::deque<Pending> pending{};
  bool is_used[window] = {};

  Flow(Side& s, Connection& c, bool sends, std::uint64_t with_seed, std::uint64_t count)
      : side(s), connection(c), is_send(sends), seed(with_seed), messages(count), luck(with_seed + sends) {
    connection.memory = side.registered(connection, pages);
  }

  // The same at both ends.
  std::size_t size_of(std::uint64_t number) const {
    if (number == messages / 2) return longest;
    static constexpr std::size_t sizes[] = {0, 1, 4095, 65535, 65536, 65537, mib, 100, 8192, 8193, 0, 8};
    const std::uint64_t draw = (seed * 31 + number) * 0xD1342543DE82EF95u >> 33;
    return sizes[draw % 4 == 0 ? draw / 4 % 7 : draw / 4 % 12];
  }
  std::uint8_t* at(std::uint64_t number) { return pages.data() + number % window * room; }
  std::uint64_t seed_of(std::uint64_t number) const { return seed << 20 | number; }

  bool is_over() const { return ended == messages; }

  void begin() {
    if (next == messages || is_used[next % window] || luck() % 4 == 0) return;
    const std::size_t size = size_of(next);
    std::uint8_t* const data = at(next);
    void* request = nullptr;
    if (is_send) {
      fill(data, size, seed_of(next));
      must(side.net.send(connection.comm, data, size, &request), "isend");
    } else {
      const std::size_t extra = luck() % 3 * 1024;
      std::memset(data + size, 0xA5, canary);
      must(side.net.receive(connection.comm, data, size + extra, connection.memory, &request), "irecv");
    }
    require(request != garbage, "a request is made or none is");
    if (!request) return;
    is_used[next % window] = true;
    pending.push_back({request, next++});
  }

  void look() {
    if (pending.empty()) return;
    const auto which = luck() % 8 == 0 ? pending.end() - 1 : pending.begin();  // any may be tested
    int is_done = 0, size = -1;
    must(side.net.tail.test(which->request, &is_done, &size), "test");
    if (!is_done) return;
    const std::uint64_t number = which->number;
    require(static_cast<std::size_t>(size) == size_of(number), "a message has its size");
    if (!is_send) {
      require(is_filled(at(number), size_of(number), seed_of(number)), "a message has its bytes");
      for (std::size_t i = 0; i < canary; ++i)
        require(at(number)[size_of(number) + i] == 0xA5, "nothing is written outside a message");
    }
    is_used[number % window] = false;
    pending.erase(which);
    ++ended;
  }

  void end() {
    must(side.net.middle.deregister_memory(connection.comm, connection.memory), "deregMr");
    pages.give_back();
  }
};

// Sends a message each way on the connection of this number, and checks it.
void converse(Side& here, int side, int connection, std::size_t size) {
  Pages out(size + 1), in(size + 1);
  Connection &send = here.sends[connection], &receive = here.receives[connection];
  void* const from = here.registered(send, out);
  void* const to = here.registered(receive, in);
  fill(out.data(), size, 77 + side);
  void* const got = here.begin_receive(receive, in.data(), size, to);
  void* const sent = here.begin_send(send, out.data(), size);
  require(static_cast<std::size_t>(here.finish(sent)) == size && static_cast<std::size_t>(here.finish(got)) == size,
          "a message has its size");
  require(is_filled(in.data(), size, 77 + !side), "a message has its bytes");
  must(here.net.middle.deregister_memory(send.comm, from), "deregMr");
  must(here.net.middle.deregister_memory(receive.comm, to), "deregMr");
}

// Asks until an error comes, and gives it back; success where the request ends well.
Result outcome(Side& here, void* request, double seconds) {
  const Deadline deadline(seconds);
  while (true) {
    int is_done = 0;
    const Result result = here.net.tail.test(request, &is_done, nullptr);
    if (result != Result::success || is_done) return result;
    deadline.check("an outcome");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

void traffic(Side& here, int side, const std::vector<int>& numbers) {
  const int connections = numbers.at(0), messages = numbers.at(1), seed = numbers.at(2);
  here.connect(connections);
  std::deque<Flow> flows;
  for (int i = 0; i < connections; ++i) {
    flows.emplace_back(here, here.sends[i], true, seed * 100 + i * 2 + side, messages);
    flows.emplace_back(here, here.receives[i], false, seed * 100 + i * 2 + !side, messages);
  }
  std::thread progress([&] {
    const Deadline deadline(90);
    bool is_over = false;
    while (!is_over) {
      is_over = true;
      for (Flow& flow : flows) {
        flow.begin();
        flow.look();
        is_over &= flow.is_over();
      }
      deadline.check("traffic");
      std::this_thread::yield();
    }
  });
  progress.join();
  for (Flow& flow : flows) flow.end();
  here.close();
}

// LL: a reader of the receive buffer finds no new flag next to old data while bytes come in.
void words(Side& here, int side, const std::vector<int>& numbers) {
  const std::uint32_t messages = static_cast<std::uint32_t>(numbers.at(0));
  const auto count = static_cast<std::size_t>(numbers.at(1));
  const auto data_of = [](std::uint32_t number, std::size_t i) {
    return static_cast<std::uint32_t>((number * 0x9E3779B9u ^ i) * 0x85EBCA6Bu);
  };
  here.connect(1);
  Pages pages(count * 8);
  auto* const memory = reinterpret_cast<std::uint64_t*>(pages.data());
  Connection& connection = side == 0 ? here.sends[0] : here.receives[0];
  void* const handle = here.registered(connection, pages);
  std::uint64_t partial = 0;
  const Deadline deadline(60);
  for (std::uint32_t number = 1; number <= messages; ++number) {
    if (side == 0) {
      for (std::size_t i = 0; i < count; ++i) memory[i] = std::uint64_t{number} << 32 | data_of(number, i);
      require(here.finish(here.begin_send(connection, memory, count * 8)) == static_cast<int>(count * 8),
              "all words leave");
      continue;
    }
    void* const request = here.begin_receive(connection, memory, count * 8, handle);
    int is_done = 0;
    while (!is_done) {
      std::size_t fresh = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t word = __atomic_load_n(memory + i, __ATOMIC_RELAXED);
        if (word >> 32 != number) continue;
        ++fresh;
        require(static_cast<std::uint32_t>(word) == data_of(number, i), "a new flag stands next to new data");
      }
      partial += fresh > 0 && fresh < count;
      must(here.net.tail.test(request, &is_done, nullptr), "test");
      deadline.check("words");
    }
  }
  require(side == 0 || partial > 0, "some messages were seen half arrived");
  here.bootstrap.meet();
  must(here.net.middle.deregister_memory(connection.comm, handle), "deregMr");
  here.close();
}

// Receives are posted and granted, bytes are on their way, and the memory goes.
void abort_receive(Side& here, int side, const std::vector<int>&) {
  here.connect(2);
  if (side == 0) {
    Pages pages(mib);
    void* const memory = here.registered(here.sends[0], pages);
    char word = 0;
    here.bootstrap.hear(&word, 1);
    std::vector<void*> requests;
    requests.push_back(here.begin_send(here.sends[0], pages.data(), 100));
    for (int i = 0; i < 3; ++i) {
      void* request = nullptr;
      const Deadline deadline(20);
      while (!request && here.net.send(here.sends[0].comm, pages.data(), mib, &request) == Result::success)
        deadline.check("isend");
      if (request) requests.push_back(request);
    }
    here.bootstrap.tell(&word, 1);
    for (void* request : requests)
      if (const Result result = outcome(here, request, 15); result != Result::success) {
        require(result == Result::remote_error,
                "a peer that is gone is a remote error, not " + std::to_string(static_cast<int>(result)));
        break;
      }
    must(here.net.middle.deregister_memory(here.sends[0].comm, memory), "deregMr");
  } else {
    Pages pages(4 * mib);
    void* const memory = here.registered(here.receives[0], pages);
    here.begin_receive(here.receives[0], pages.data(), 100, memory);
    for (int i = 1; i < 4; ++i) here.begin_receive(here.receives[0], pages.data() + i * mib, mib, memory);
    char word = 0;
    here.bootstrap.tell(&word, 1);
    here.bootstrap.hear(&word, 1);
    must(here.net.middle.deregister_memory(here.receives[0].comm, memory), "deregMr");
    pages.give_back();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // while they arrive
    must(here.net.tail.close_receive(here.receives[0].comm), "closeRecv");
    here.receives.erase(here.receives.begin());
    here.receives.insert(here.receives.begin(), Connection{});
  }
  here.bootstrap.meet();
  converse(here, side, 1, 100'000);
  here.bootstrap.meet();
  if (side == 1) here.receives.erase(here.receives.begin());
  here.close();
}

// The same from the other end: a send is under way when its memory goes.
void abort_send(Side& here, int side, const std::vector<int>&) {
  here.connect(2);
  if (side == 0) {
    Pages pages(longest);
    void* const memory = here.registered(here.sends[0], pages);
    fill(pages.data(), longest, 1);
    void* const request = here.begin_send(here.sends[0], pages.data(), longest);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    int is_done = 0;
    must(here.net.tail.test(request, &is_done, nullptr), "test");
    must(here.net.middle.deregister_memory(here.sends[0].comm, memory), "deregMr");
    pages.give_back();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    must(here.net.tail.close_send(here.sends[0].comm), "closeSend");
    here.sends[0] = Connection{};
  } else {
    Pages pages(longest);
    void* const memory = here.registered(here.receives[0], pages);
    void* const request = here.begin_receive(here.receives[0], pages.data(), longest, memory);
    const Result result = outcome(here, request, 15);
    require(result == Result::success || result == Result::remote_error, "it comes whole or is known to be lost");
    require(result == Result::success || warning().find("peer") != std::string::npos, "in words: " + warning());
    must(here.net.middle.deregister_memory(here.receives[0].comm, memory), "deregMr");
  }
  here.bootstrap.meet();
  converse(here, side, 1, 100'000);
  here.bootstrap.meet();
  if (side == 0) here.sends.erase(here.sends.begin());
  here.close();
}

// The receiver is gone as soon as it has what it wanted; the sender hears that all arrived.
void leaves_first(Side& here, int side, const std::vector<int>& numbers) {
  const auto size = static_cast<std::size_t>(numbers.at(0));
  here.connect(1);
  Pages pages(size + 1);
  Connection& connection = side == 0 ? here.sends[0] : here.receives[0];
  void* const memory = here.registered(connection, pages);
  if (side == 0) {
    fill(pages.data(), size, 5);
    require(static_cast<std::size_t>(here.finish(here.begin_send(connection, pages.data(), size))) == size,
            "all is sent");
  } else {
    here.finish(here.begin_receive(connection, pages.data(), size, memory));
    require(is_filled(pages.data(), size, 5), "all has come");
  }
  must(here.net.middle.deregister_memory(connection.comm, memory), "deregMr");
  here.close();
}

void killed_sender(Side& here, int side, const std::vector<int>&) {
  here.connect(1);
  converse(here, side, 0, 10'000);
  if (side == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it has the grant: nothing is on its way any more
    raise(SIGKILL);
  }
  Pages pages(mib);
  void* const memory = here.registered(here.receives[0], pages);
  void* const request = here.begin_receive(here.receives[0], pages.data(), mib, memory);
  require(outcome(here, request, 15) == Result::remote_error, "who was killed is a remote error");
  require(warning().find("peer 127.0.0.") != std::string::npos, "named: " + warning());
  must(here.net.middle.deregister_memory(here.receives[0].comm, memory), "deregMr");
  here.close();
}

void killed_receiver(Side& here, int side, const std::vector<int>&) {
  here.connect(1);
  converse(here, side, 0, 10'000);
  if (side == 1) raise(SIGKILL);
  Pages pages(mib);
  void* const memory = here.registered(here.sends[0], pages);
  const Deadline deadline(15);
  void* request = nullptr;
  Result result = Result::success;
  // No grant will come: nothing is ever under way, and yet it must be noticed.
  while ((result = here.net.send(here.sends[0].comm, pages.data(), mib, &request)) == Result::success) {
    require(!request, "it was not granted");
    deadline.check("noticing");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(result == Result::remote_error && warning().find("peer 127.0.0.") != std::string::npos,
          "a remote error, named: " + warning());
  must(here.net.middle.deregister_memory(here.sends[0].comm, memory), "deregMr");
  here.close();
}

// The sender goes ahead of the receiver as far as allowed, and data in the eager buffer is not overwritten.
void ahead(Side& here, int side, const std::vector<int>&) {
  constexpr int messages = 150;
  constexpr std::size_t size = 5000;
  here.connect(1);
  Pages pages(messages * size);
  Connection& connection = side == 0 ? here.sends[0] : here.receives[0];
  void* const memory = here.registered(connection, pages);
  int begun = 0;
  const Deadline deadline(20);
  if (side == 0) {
    const auto until = Clock::now() + std::chrono::milliseconds(200);
    for (; Clock::now() < until && begun < messages; deadline.check("going ahead")) {
      fill(pages.data() + begun * size, size, static_cast<std::uint64_t>(begun));
      void* request = nullptr;
      must(here.net.send(connection.comm, pages.data() + begun * size, size, &request), "isend");
      if (!request) continue;
      here.finish(request);
      ++begun;
    }
    require(begun > 0 && begun < 64, "there is an end to it");
  }
  here.bootstrap.meet();
  for (; begun < messages; ++begun) {
    std::uint8_t* const data = pages.data() + begun * size;
    if (side == 0) fill(data, size, static_cast<std::uint64_t>(begun));
    here.finish(side == 0 ? here.begin_send(connection, data, size)
                          : here.begin_receive(connection, data, size, memory));
    require(side == 0 || is_filled(data, size, static_cast<std::uint64_t>(begun)), "a message has its bytes");
  }
  must(here.net.middle.deregister_memory(connection.comm, memory), "deregMr");
  here.close();
}

// Both get an error soon. A sender by the eager buffer saw success before, and gets the error with its next send.
void too_long(Side& here, int side, const std::vector<int>&) {
  here.connect(2);
  constexpr std::size_t sizes[2][2] = {{200, 100},
                                       {30'000, 20'000}};  // what is sent, and what fits: eager, and granted
  for (int i = 0; i < 2; ++i) {
    Pages pages(longest);
    Connection& connection = side == 0 ? here.sends[i] : here.receives[i];
    void* const memory = here.registered(connection, pages);
    if (side == 0) {
      void* const first = here.begin_send(connection, pages.data(), sizes[i][0]);
      if (i == 0) here.bootstrap.meet();  // without a grant yet, it goes to the eager buffer
      Result result = outcome(here, first, 10);
      if (i == 0) here.bootstrap.meet();
      const Deadline deadline(5);
      for (void* request = nullptr; i == 0 && result == Result::success;
           deadline.check("an error for too long a send")) {
        if (request) {
          result = outcome(here, std::exchange(request, nullptr), 5);
        } else {
          result = here.net.send(connection.comm, pages.data(), 30'000, &request);  // which is never received
        }
      }
      require(i == 0 ? result == Result::remote_error && warning().find("broke off") != std::string::npos
                     : result == Result::invalid_usage,
              "the sender gets an error: " + warning());
    } else {
      Pages more(4096);
      if (i == 0) here.bootstrap.meet();
      on_warning = [&] { here.registered(connection, more); };
      const Result result = outcome(here, here.begin_receive(connection, pages.data(), sizes[i][1], memory), 10);
      on_warning = nullptr;
      require(result == Result::invalid_usage &&
                  warning().find("200 bytes to a receive of 100") != std::string::npos == (i == 0),
              "the receiver gets an error: " + warning());
      if (i == 0) here.bootstrap.meet();
    }
    here.bootstrap.meet();
    must(here.net.middle.deregister_memory(connection.comm, memory), "deregMr");
  }
  here.close();
}

// A data loader's worker, for one: it has copies of everything, and must disturb nothing.
void forked(Side& here, int side, const std::vector<int>&) {
  here.connect(1);
  converse(here, side, 0, 50'000);
  const pid_t child = fork();
  if (child == 0) {
    Handle handle;
    void* comm = nullptr;
    const Result result = here.net.listen(here.context, handle.data(), &comm);
    std::exit(result == Result::system_error && warning().find("fork") != std::string::npos ? 0 : 3);
  }
  int status = 0;
  require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "a forked child gets an error, and ends");
  here.bootstrap.meet();
  converse(here, side, 0, 500'000);
  here.bootstrap.meet();
  here.close();
}

// They talk until a file is there, so that another process may use the plugin's control socket until then.
void tarry(Side& here, int side, const std::vector<int>&) {
  here.connect(1);
  const Deadline deadline(60);
  char is_over = 0;
  while (!is_over) {
    converse(here, side, 0, 300'000);
    if (side == 0) {
      is_over = access(std::getenv("HARNESS_UNTIL"), F_OK) == 0;
      here.bootstrap.tell(&is_over, 1);
    } else {
      here.bootstrap.hear(&is_over, 1);
    }
    deadline.check("tarrying");
  }
  here.close();
}

// One message after the other, with gaps in which lanes fall asleep: a wake-up that gets lost costs up to half a
// second.
void many(Side& here, int side, const std::vector<int>& numbers) {
  here.connect(1);
  Pages out(64), in(64);
  void* const from = here.registered(here.sends[0], out);
  void* const to = here.registered(here.receives[0], in);
  const Deadline deadline(15);
  for (int i = 0; i < numbers.at(0); ++i) {
    void* const got = here.begin_receive(here.receives[0], in.data(), 64, to);
    if (side == 1) here.finish(got);
    std::this_thread::sleep_for(std::chrono::microseconds(numbers.at(1)));
    out.data()[0] = static_cast<std::uint8_t>(i);
    here.finish(here.begin_send(here.sends[0], out.data(), 8));
    if (side == 0) here.finish(got);
    require(in.data()[0] == static_cast<std::uint8_t>(i), "one after the other");
    deadline.check("many");
  }
  must(here.net.middle.deregister_memory(here.sends[0].comm, from), "deregMr");
  must(here.net.middle.deregister_memory(here.receives[0].comm, to), "deregMr");
  here.close();
}

// NUMBERS: bursts, messages of a megabyte in each, the burst for which the receiver comes late, and how many ms. Side 0
// sends, with a pause after each burst; before the last it waits until its standard input ends.
void bursts(Side& here, int side, const std::vector<int>& numbers) {
  here.connect(1);
  const int messages = numbers[1];
  Pages pages(messages * mib);
  Connection& mine = side == 0 ? here.sends[0] : here.receives[0];
  void* const memory = here.registered(mine, pages);
  for (int burst = 0; burst < numbers[0]; ++burst) {
    if (side == 0 && burst == numbers[0] - 1)
      while (std::getchar() != EOF) {}
    here.bootstrap.meet();
    if (side == 1 && burst == numbers[2]) std::this_thread::sleep_for(std::chrono::milliseconds(numbers[3]));
    std::vector<void*> pending;
    for (int i = 0; i < messages; ++i) {
      std::uint8_t* const data = pages.data() + i * mib;
      pending.push_back(side == 0 ? here.begin_send(mine, data, mib) : here.begin_receive(mine, data, mib, memory));
    }
    for (void* const request : pending) here.finish(request, 30);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  must(here.net.middle.deregister_memory(mine.comm, memory), "deregMr");
  here.bootstrap.meet();
  here.close();
}

}  // namespace harness
