// What happens between two ranks, and to one alone.
#pragma once

#include <deque>
#include <map>
#include <random>

#include "side.h"

namespace harness {

inline pid_t other_process = 0;

// In stories.cpp: two sides.
void traffic(Side& here, int side, const std::vector<int>& numbers);
void words(Side& here, int side, const std::vector<int>& numbers);
void abort_receive(Side& here, int side, const std::vector<int>& numbers);
void abort_send(Side& here, int side, const std::vector<int>& numbers);
void leaves_first(Side& here, int side, const std::vector<int>& numbers);
void killed_sender(Side& here, int side, const std::vector<int>& numbers);
void killed_receiver(Side& here, int side, const std::vector<int>& numbers);
void too_long(Side& here, int side, const std::vector<int>& numbers);
void forked(Side& here, int side, const std::vector<int>& numbers);
void ahead(Side& here, int side, const std::vector<int>& numbers);
void tarry(Side& here, int side, const std::vector<int>& numbers);
void bursts(Side& here, int side, const std::vector<int>& numbers);
void many(Side& here, int side, const std::vector<int>& numbers);

// In alone.cpp: one process, or one that starts others.
using Alone = void (*)(const std::string& path, int version, const std::vector<int>& numbers);
extern const std::map<std::string, Alone> alone;

}  // namespace harness
