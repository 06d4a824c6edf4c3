// How error messages name ranks and operations, and what they say of a timeout or of a lost connection.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/message.h"
#include "proto/completion.h"

namespace softmrc::collectives {

constexpr const char* closed_message = "the group is closed";
constexpr const char* invalid_message = " sent a message that makes no sense";  // after the rank's name

std::string rank_name(std::uint32_t rank);
std::string describe(const CollectiveFingerprint& descriptor);
std::string timeout_message(const std::string& what, std::uint32_t rank, double timeout_s, const std::string& whom);
// `has_received`: the peer has sent a message before.
std::string connection_lost_message(std::uint32_t peer, proto::CompletionStatus status, bool has_received);

}  // namespace softmrc::collectives
