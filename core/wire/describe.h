// Packets in words: one line each, dense, its columns aligned, for people who read captures.
#pragma once

#include <string>
#include <string_view>

#include "wire/frame.h"

namespace softmrc::wire {

// The names that the spec uses; a value without a name has an empty one.
std::string_view name_of(Opcode opcode);
std::string_view name_of(NackReason reason);
std::string_view name_of(Mark mark);
std::string_view name_of(Syndrome syndrome);
std::string_view name_of(EndpointOp op);
// Why something was refused, as the rest of a sentence that begins with "refused:".
std::string_view reason_of(ParseError refusal);
std::string reason_of(const FrameResult& verdict);

// "WRITE_ONLY       qp 000011 psn       5 ...". A trimmed packet has no payload length to tell.
std::string describe(const Packet& packet, bool trimmed = false);

}  // namespace softmrc::wire
