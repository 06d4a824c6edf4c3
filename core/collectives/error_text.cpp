#include "collectives/error_text.h"

namespace softmrc::collectives {
namespace {

const char* reason_of(proto::CompletionStatus status) {
  using enum proto::CompletionStatus;
  switch (status) {
    case retry_exceeded: return "stopped answering";
    case remote_access: return "refused a write: it gave up the operation";
    case remote_invalid: return "could not make sense of a write";
    case remote_operation: return "did not keep up with messages";
    case peer_error: return "broke off the connection";
    case local_protocol: return "wrote where it may not";
    case success:
    case flushed: break;
  }
  return "lost its connection";
}

}  // namespace

std::string rank_name(std::uint32_t rank) { return "rank " + std::to_string(rank); }

std::string describe(const CollectiveFingerprint& d) {
  const auto name = [](const auto& names, auto value) {
    return static_cast<std::size_t>(value) < names.size() ? std::string(names[static_cast<std::size_t>(value)])
                                                          : std::string("?");
  };
  std::string text = name(kind_names, d.kind);
  if (reduces(d.kind)) text += "(" + name(op_names, d.op) + ")";
  if (d.count) text += " of " + std::to_string(d.count) + " " + name(dtype_names, d.dtype);
  else if (d.kind != Kind::barrier) text += " of " + name(dtype_names, d.dtype);
  if (d.root >= 0) text += " with root " + std::to_string(d.root);
  return text;
}

std::string timeout_message(const std::string& what, std::uint32_t rank, double timeout_s, const std::string& whom) {
  std::string seconds = std::to_string(timeout_s);
  seconds.erase(seconds.find_last_not_of('0') + 1);
  if (seconds.back() == '.') seconds.pop_back();
  return "timed out, its timeout is over: " + what + " of " + rank_name(rank) + " did not end within " + seconds +
         " s: " + whom;
}

// A rank that has never answered may have left before it was connected, and so had no reason to send a bye.
std::string connection_lost_message(std::uint32_t peer, proto::CompletionStatus status, bool has_received) {
  const bool is_unreached = status == proto::CompletionStatus::retry_exceeded && !has_received;
  return rank_name(peer) + " " +
         (is_unreached ? "has left the group or is gone: it has never answered" : reason_of(status));
}

}  // namespace softmrc::collectives
