// Plays NCCL to its network plugin: harness PLUGIN VERSION PROCESSES STORY [NUMBERS]. Says "all holds" in the end.
#include <csignal>
#include <cstdlib>
#include <map>

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>

#include "side.h"
#include "stories.h"

namespace harness {

using Story = void (*)(Side&, int side, const std::vector<int>& numbers);

const std::map<std::string, Story> stories{
    {"traffic", traffic},
    {"words", words},
    {"abort_receive", abort_receive},
    {"abort_send", abort_send},
    {"leaves_first", leaves_first},
    {"killed_sender", killed_sender},
    {"killed_receiver", killed_receiver},
    {"too_long", too_long},
    {"fork", forked},
    {"bursts", bursts},
    {"many", many},
    {"ahead", ahead},
    {"tarry", tarry},
};

void run(const std::string& path, int version, int side, int fd, Story story, const std::vector<int>& numbers) {
  Net net = load(path, version);
  Side here(net, fd);
  story(here, side, numbers);
}

// The other process may be on another machine, as far as the network knows, and another host of a fabric.
void move_elsewhere() {
  if (const char* host = std::getenv("HARNESS_OTHER_HOST")) setenv("SOFTMRC_HOST", host, 1);
  const char* const space = std::getenv("HARNESS_OTHER_NETNS");
  if (!space) return;
  const int fd = open(space, O_RDONLY | O_CLOEXEC);
  require(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "there is such a network namespace");
  ::close(fd);
}

int main(int count, char** words) {
  if (count < 5) return 2;
  const std::string path = words[1], name = words[4];
  const int version = std::atoi(words[2]), processes = std::atoi(words[3]);
  std::vector<int> numbers;
  for (int i = 5; i < count; ++i) numbers.push_back(std::atoi(words[i]));
  signal(SIGPIPE, SIG_IGN);
  if (alone.contains(name)) {
    alone.at(name)(path, version, numbers);
    std::puts("all holds");
    return 0;
  }
  require(stories.contains(name), "there is such a story");
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a way to talk");
  if (processes == 1) {
    std::thread other([&] { run(path, version, 1, ends[1], stories.at(name), numbers); });
    run(path, version, 0, ends[0], stories.at(name), numbers);
    other.join();
  } else {
    const pid_t child = fork();
    const int side = child == 0;
    ::close(ends[!side]);
    if (side) {
      move_elsewhere();
      run(path, version, 1, ends[1], stories.at(name), numbers);
      return 0;
    }
    other_process = child;
    run(path, version, 0, ends[0], stories.at(name), numbers);
    int status = 0;
    require(waitpid(child, &status, 0) == child, "the other process ends");
    const bool was_to_die = name.starts_with("killed");
    require(was_to_die ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "the other process is content");
  }
  std::puts("all holds");
  return 0;
}

}  // namespace harness

int main(int count, char** words) { return harness::main(count, words); }
