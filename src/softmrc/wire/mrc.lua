-- MRC (Multipath Reliable Connection) for Wireshark: every header, as SoftMRC reads and writes it.
--
-- Filters: mrc.dqp (queue pair), mrc.psn, mrc.ev (the path), mrc.opcode, mrc.retransmission, mrc.nack, mrc.trimmed, mrc.sealed.
-- Of encrypted packets only headers are shown; `softmrc dissect --keys` decrypts the rest.
-- `softmrc dissect --install-wireshark` puts this file where Wireshark looks. Nothing here needs SoftMRC.

local mrc = Proto("mrc", "Multipath Reliable Connection")
mrc.prefs.port = Pref.uint("UDP port", 4791, "MRC's port. Others are tried where a packet looks like MRC's.")

local OPCODES = {
  [0xC6] = "WRITE_FIRST", [0xC7] = "WRITE_MIDDLE", [0xC8] = "WRITE_LAST", [0xC9] = "WRITE_LAST_IMM",
  [0xCA] = "WRITE_ONLY", [0xCB] = "WRITE_ONLY_IMM", [0xD1] = "ACKNOWLEDGE", [0xD8] = "ENDPOINT_REQUEST",
  [0xD9] = "ENDPOINT_RESPONSE", [0xDC] = "SACK", [0xDD] = "NACK", [0xDE] = "PROBE",
}
local MARKS = { [0] = "NONE", [1] = "SKIP_ONCE", [2] = "ALWAYS_SKIP" }
local REASONS = {
  [0x01] = "TRIMMED", [0x02] = "TRIMMED_LASTHOP", [0x06] = "NO_BITMAP", [0x07] = "NO_PKT_BUFFER",
  [0x0A] = "NO_RESOURCE", [0x0B] = "PSN_OOR_WINDOW", [0x19] = "UNEXP_EVENT",
}
local SYNDROMES = { [0x1F] = "ACK", [0x61] = "INVALID_REQUEST", [0x62] = "REMOTE_ACCESS", [0x63] = "REMOTE_OPERATION" }
local OPS = { [0] = "PORT_STATUS_UPDATE", [1] = "EV_PROBE" }
local BTH, ICRC = 12, 4
local KEY, HEADER_TAG, TAG = 12, 8, 16 -- of encrypted packets
local TRIMMED_DSCP = { [12] = true, [16] = true }

-- Fields, by the names that SoftMRC gives them.
local F = {}
local function field(name, kind, label, base, names)
  F[name] = ProtoField[kind]("mrc." .. name, label, base, names)
end
local function flag(name, label) F[name] = ProtoField.bool("mrc." .. name, label) end

field("ev", "uint32", "Entropy value", base.HEX)
flag("trimmed", "Trimmed by a switch")
field("icrc", "uint32", "ICRC", base.HEX)
flag("sealed", "Sealed")
field("seal.qpn", "uint24", "Queue pair whose key it is", base.HEX)
field("seal.epoch", "uint8", "Epoch of the key", base.DEC)
field("seal.number", "uint64", "Number of the packet", base.DEC)
field("seal.header_tag", "bytes", "Tag of the headers")
field("seal.hidden", "bytes", "Hidden")
field("seal.tag", "bytes", "Tag")
field("payload", "bytes", "Payload")
field("opcode", "uint8", "Opcode", base.HEX, OPCODES)
flag("solicited", "Solicited event")
flag("migration", "Migration")
field("pad", "uint8", "Pad bytes", base.DEC)
field("version", "uint8", "Transport version", base.DEC)
field("p_key", "uint16", "Partition key", base.HEX)
field("dqp", "uint24", "Destination queue pair", base.HEX)
flag("ack_request", "Acknowledgement asked for")
flag("retransmission", "Retransmission")
flag("timestamped", "A timestamp follows")
field("psn", "uint24", "PSN", base.DEC)
field("timestamp.ticks", "uint16", "Timestamp, ticks of 128 ns", base.DEC)
flag("timestamp.fine", "Finer ticks")
field("timestamp.ftype", "uint8", "Timestamp format", base.DEC)
field("write.rqmsn", "uint16", "RQMSN", base.DEC)
field("write.msn", "uint16", "MSN", base.DEC)
field("write.va", "uint64", "Address", base.HEX)
field("write.rkey", "uint32", "Remote key", base.HEX)
field("write.dmalen", "uint32", "Length of the message", base.DEC)
field("write.imm", "uint32", "Immediate", base.DEC)
field("write.payload_size", "uint32", "Payload bytes", base.DEC)
field("ack.syndrome", "uint8", "Syndrome", base.HEX, SYNDROMES)
field("ack.msn", "uint24", "MSN", base.DEC)
field("sack.mark", "uint8", "Mark", base.DEC, MARKS)
flag("sack.answers_probe", "Answers a probe")
field("sack.ack_psn_offset", "int16", "Triggering PSN, from cack", base.DEC)
field("sack.entropy", "uint32", "Entropy value of the triggering packet", base.HEX)
field("sack.spdcid", "uint16", "SPDCID", base.HEX)
field("sack.dpdcid", "uint16", "DPDCID", base.HEX)
field("sack.cack_psn", "uint24", "Cumulative PSN", base.DEC)
field("sack.cc_flags", "uint8", "CC flags", base.HEX)
field("sack.mpr", "uint8", "MPR, units of 128", base.DEC)
field("sack.sack_offset", "int16", "First PSN of the bitmap, from cack", base.DEC)
field("sack.bitmap", "uint64", "Bitmap", base.HEX)
field("sack.cc.tx_timestamp", "uint16", "Timestamp, reflected", base.DEC)
field("sack.cc.ooo_count", "uint16", "Out of order", base.DEC)
flag("sack.cc.restore_cwnd", "Restore the window")
field("sack.cc.rcv_cwnd_pen", "uint8", "Window penalty", base.DEC)
field("sack.cc.rcvd_bytes", "uint24", "Received, units of 256 bytes", base.DEC)
field("nack.reason", "uint8", "Reason", base.HEX, REASONS)
field("nack.vendor", "uint8", "Vendor", base.HEX)
field("nack.entropy", "uint32", "Entropy value of the packet", base.HEX)
field("nack.spdcid", "uint16", "SPDCID", base.HEX)
field("nack.dpdcid", "uint16", "DPDCID", base.HEX)
field("nack.nack_psn", "uint24", "PSN", base.DEC)
field("nack.cc_flags", "uint8", "CC flags", base.HEX)
field("nack.tx_timestamp", "uint16", "Timestamp, reflected", base.DEC)
field("probe.vendor", "uint8", "Vendor", base.HEX)
field("probe.probe_id", "uint16", "Probe", base.DEC)
field("probe.spdcid", "uint16", "SPDCID", base.HEX)
field("probe.dpdcid", "uint16", "DPDCID", base.HEX)
field("endpointrequest.op", "uint8", "Operation", base.DEC, OPS)
field("endpointrequest.vendor", "uint8", "Vendor", base.HEX)
field("endpointrequest.port_status_mask", "uint32", "Usable ports", base.HEX)
field("endpointrequest.key", "uint64", "Key or nonce", base.HEX)
field("endpointresponse.op", "uint8", "Operation", base.DEC, OPS)
field("endpointresponse.key", "uint64", "Key or nonce", base.HEX)
field("endpointresponse.service_ns", "uint32", "Service time (ns)", base.DEC)
local all = {}
for _, one in pairs(F) do all[#all + 1] = one end
mrc.fields = all

local E = {
  retransmission = ProtoExpert.new("mrc.expert.retransmission", "Retransmitted", expert.group.SEQUENCE, expert.severity.NOTE),
  nack = ProtoExpert.new("mrc.expert.nack", "Not placed", expert.group.SEQUENCE, expert.severity.WARN),
  trimmed = ProtoExpert.new("mrc.expert.trimmed", "A switch had no room and cut the payload", expert.group.SEQUENCE, expert.severity.WARN),
  mark = ProtoExpert.new("mrc.expert.mark", "The receiver speaks against a path", expert.group.SEQUENCE, expert.severity.NOTE),
  refused = ProtoExpert.new("mrc.expert.refused", "The operation was refused", expert.group.RESPONSE_CODE, expert.severity.ERROR),
  short = ProtoExpert.new("mrc.expert.short", "Too short for its opcode", expert.group.MALFORMED, expert.severity.ERROR),
}
mrc.experts = { E.retransmission, E.nack, E.trimmed, E.mark, E.refused, E.short }

local flow_of = Field.new("ipv6.flow")
local v6_dscp_of = Field.new("ipv6.tclass.dscp")
local v4_dscp_of = Field.new("ip.dsfield.dscp")

-- The last header of several is the packet's own; those before it are the path.
local function last(extractor)
  local found = { extractor() }
  return #found > 0 and found[#found].value or nil
end

local function bits(value, low, count) return math.floor(value / 2 ^ low) % 2 ^ count end

local function is_v4(pinfo) return tostring(pinfo.net_dst):find(":", 1, true) == nil end

local function entropy(pinfo)
  local flow = is_v4(pinfo) and 0 or (last(flow_of) or 0)
  return bits(flow, 0, 16) * 65536 + pinfo.src_port
end

local function is_write(opcode) return opcode >= 0xC6 and opcode <= 0xCB end
local function has_imm(opcode) return opcode == 0xC9 or opcode == 0xCB end

local function is_trimmed(pinfo, opcode)
  local dscp = is_v4(pinfo) and last(v4_dscp_of) or last(v6_dscp_of)
  return is_write(opcode) and TRIMMED_DSCP[dscp or 0] == true
end

local function is_sealed(buffer) return bits(buffer(1, 1):uint(), 0, 4) == 1 end

-- The unencrypted part of a write; of an encrypted one, all that precedes the ciphertext.
local function write_head(opcode, flags, trimmed, sealed)
  local head = BTH + 4 + (bits(flags, 4, 1) == 1 and 4 or 0) + 16
  if sealed then return head + KEY + HEADER_TAG end
  return head + ((has_imm(opcode) and not trimmed) and 4 or 0)
end

-- What a packet of this opcode has at least, and at most where that is known.
local function bounds(opcode, flags, trimmed, sealed)
  if is_write(opcode) then
    local head = write_head(opcode, flags, trimmed, sealed)
    if trimmed then return head, head end
    return head + (sealed and TAG or ICRC), nil
  end
  local sizes = { [0xD1] = 4, [0xD8] = 16, [0xD9] = 36, [0xDC] = 36, [0xDD] = 20, [0xDE] = 16 }
  local least = BTH + sizes[opcode] + (sealed and KEY + TAG or ICRC)
  return least, least + ((opcode == 0xD8 or opcode == 0xD9) and 8 or 0)
end

local function dissect_timestamp(buffer, at, tree)
  local last_word = buffer(at + 2, 2):uint()
  tree:add(F["timestamp.ticks"], buffer(at, 2))
  tree:add(F["timestamp.fine"], buffer(at + 2, 1), bits(last_word, 15, 1) == 1)
  tree:add(F["timestamp.ftype"], buffer(at + 3, 1), bits(last_word, 0, 4))
end

local function dissect_seal(buffer, tree, at)
  tree:add(F["seal.qpn"], buffer(at, 3))
  tree:add(F["seal.epoch"], buffer(at + 3, 1))
  tree:add(F["seal.number"], buffer(at + 4, 8))
  return string.format(" encrypted %06x.%d number %s", buffer(at, 3):uint(), buffer(at + 3, 1):uint(), tostring(buffer(at + 4, 8):uint64()))
end

local function dissect_tag(buffer, tree)
  local size = buffer:reported_len()
  if buffer:len() == size then tree:add(F["seal.tag"], buffer(size - TAG, TAG)) end
end

-- Behind RETH: the key's name, the tag of all that is in front of it, and what only the receiver can read.
local function dissect_hidden(buffer, tree, at, trimmed)
  local words = dissect_seal(buffer, tree, at)
  tree:add(F["seal.header_tag"], buffer(at + KEY, HEADER_TAG))
  if trimmed then return words end
  at = at + KEY + HEADER_TAG
  local size = buffer:reported_len() - at - TAG
  local here = math.min(size, buffer:len() - at)
  if here > 0 then tree:add(F["seal.hidden"], buffer(at, here)) end
  dissect_tag(buffer, tree)
  return " hidden " .. size .. words
end

local function dissect_write(buffer, tree, opcode, flags, pad, trimmed, sealed)
  local at = BTH
  tree:add(F["write.rqmsn"], buffer(at, 2))
  tree:add(F["write.msn"], buffer(at + 2, 2))
  at = at + 4
  if bits(flags, 4, 1) == 1 then
    dissect_timestamp(buffer, at, tree)
    at = at + 4
  end
  tree:add(F["write.va"], buffer(at, 8))
  tree:add(F["write.rkey"], buffer(at + 8, 4))
  tree:add(F["write.dmalen"], buffer(at + 12, 4))
  at = at + 16
  if sealed then return dissect_hidden(buffer, tree, at, trimmed) end
  if trimmed then return "" end
  local imm = ""
  if has_imm(opcode) then
    tree:add(F["write.imm"], buffer(at, 4))
    imm = " imm " .. buffer(at, 4):uint()
    at = at + 4
  end
  local size = buffer:reported_len() - at - ICRC - pad
  tree:add(F["write.payload_size"], size):set_generated()
  local here = math.min(size, buffer:len() - at)
  if here > 0 then tree:add(F.payload, buffer(at, here)) end
  return " len " .. size .. imm
end

local function dissect_ack(buffer, tree)
  local item = tree:add(F["ack.syndrome"], buffer(BTH, 1))
  tree:add(F["ack.msn"], buffer(BTH + 1, 3))
  local syndrome = buffer(BTH, 1):uint()
  if syndrome ~= 0x1F then item:add_proto_expert_info(E.refused) end
  return " msn " .. buffer(BTH + 1, 3):uint() .. " " .. (SYNDROMES[syndrome] or syndrome)
end

local function dissect_sack(buffer, tree)
  local flags = buffer(BTH + 1, 1):uint()
  local mark = bits(flags, 5, 2)
  local item = tree:add(F["sack.mark"], buffer(BTH + 1, 1), mark)
  if mark ~= 0 then item:add_proto_expert_info(E.mark) end
  tree:add(F["sack.answers_probe"], buffer(BTH + 1, 1), bits(flags, 1, 1) == 1)
  tree:add(F["sack.ack_psn_offset"], buffer(BTH + 2, 2))
  tree:add(F["sack.entropy"], buffer(BTH + 4, 4))
  tree:add(F["sack.spdcid"], buffer(BTH + 8, 2))
  tree:add(F["sack.dpdcid"], buffer(BTH + 10, 2))
  tree:add(F["sack.cack_psn"], buffer(BTH + 13, 3))
  tree:add(F["sack.cc_flags"], buffer(BTH + 16, 1), bits(buffer(BTH + 16, 1):uint(), 0, 4))
  tree:add(F["sack.mpr"], buffer(BTH + 17, 1))
  tree:add(F["sack.sack_offset"], buffer(BTH + 18, 2))
  tree:add(F["sack.bitmap"], buffer(BTH + 20, 8))
  local cc = BTH + 28
  tree:add(F["sack.cc.tx_timestamp"], buffer(cc, 2))
  tree:add(F["sack.cc.ooo_count"], buffer(cc + 2, 2), bits(buffer(cc + 2, 2):uint(), 0, 15))
  local window = buffer(cc + 4, 1):uint()
  tree:add(F["sack.cc.restore_cwnd"], buffer(cc + 4, 1), bits(window, 7, 1) == 1)
  tree:add(F["sack.cc.rcv_cwnd_pen"], buffer(cc + 4, 1), bits(window, 0, 7))
  tree:add(F["sack.cc.rcvd_bytes"], buffer(cc + 5, 3))
  return string.format(" ack %+d ev %08x%s", buffer(BTH + 2, 2):int(), buffer(BTH + 4, 4):uint(),
    mark ~= 0 and " " .. (MARKS[mark] or mark) or "")
end

local function dissect_nack(buffer, tree)
  local item = tree:add(F["nack.reason"], buffer(BTH + 2, 1))
  item:add_proto_expert_info(E.nack)
  tree:add(F["nack.vendor"], buffer(BTH + 3, 1))
  tree:add(F["nack.entropy"], buffer(BTH + 4, 4))
  tree:add(F["nack.spdcid"], buffer(BTH + 8, 2))
  tree:add(F["nack.dpdcid"], buffer(BTH + 10, 2))
  tree:add(F["nack.nack_psn"], buffer(BTH + 13, 3))
  tree:add(F["nack.cc_flags"], buffer(BTH + 16, 1), bits(buffer(BTH + 16, 1):uint(), 0, 4))
  tree:add(F["nack.tx_timestamp"], buffer(BTH + 18, 2))
  local reason = buffer(BTH + 2, 1):uint()
  return string.format(" %s ev %08x", REASONS[reason] or reason, buffer(BTH + 4, 4):uint())
end

local function dissect_probe(buffer, tree)
  tree:add(F["probe.vendor"], buffer(BTH + 3, 1))
  tree:add(F["probe.probe_id"], buffer(BTH + 4, 2))
  tree:add(F["probe.spdcid"], buffer(BTH + 8, 2))
  tree:add(F["probe.dpdcid"], buffer(BTH + 10, 2))
  dissect_timestamp(buffer, BTH + 12, tree)
  return " probe " .. buffer(BTH + 4, 2):uint()
end

local function dissect_key(buffer, tree, name, at)
  if buffer:reported_len() >= at + 8 + (is_sealed(buffer) and KEY + TAG or ICRC) then tree:add(F[name .. ".key"], buffer(at, 8)) end
end

local function dissect_request(buffer, tree)
  local op = bits(buffer(BTH + 1, 1):uint(), 0, 2)
  tree:add(F["endpointrequest.op"], buffer(BTH + 1, 1), op)
  tree:add(F["endpointrequest.vendor"], buffer(BTH + 3, 1))
  tree:add(F["endpointrequest.port_status_mask"], buffer(BTH + 4, 4))
  dissect_timestamp(buffer, BTH + 12, tree)
  dissect_key(buffer, tree, "endpointrequest", BTH + 16)
  return " " .. (OPS[op] or op)
end

local function dissect_response(buffer, tree)
  local second = buffer(BTH + 1, 1):uint()
  -- Readers disagree where the operation lies: bits 3:2, or 5:4.
  local op = bits(second, 2, 2) ~= 0 and bits(second, 2, 2) or bits(second, 4, 2)
  tree:add(F["endpointresponse.op"], buffer(BTH + 1, 1), op)
  dissect_timestamp(buffer, BTH + 28, tree)
  tree:add(F["endpointresponse.service_ns"], buffer(BTH + 32, 4))
  dissect_key(buffer, tree, "endpointresponse", BTH + 36)
  return " " .. (OPS[op] or op)
end

local BODIES = {
  [0xD1] = dissect_ack, [0xD8] = dissect_request, [0xD9] = dissect_response, [0xDC] = dissect_sack,
  [0xDD] = dissect_nack, [0xDE] = dissect_probe,
}

local function dissect_bth(buffer, pinfo, tree, trimmed)
  local bth = tree:add(buffer(0, BTH), "Base transport header")
  local second, flags = buffer(1, 1):uint(), buffer(8, 1):uint()
  bth:add(F.opcode, buffer(0, 1))
  bth:add(F.solicited, buffer(1, 1), bits(second, 7, 1) == 1)
  bth:add(F.migration, buffer(1, 1), bits(second, 6, 1) == 1)
  bth:add(F.pad, buffer(1, 1), bits(second, 4, 2))
  bth:add(F.version, buffer(1, 1), bits(second, 0, 4))
  bth:add(F.p_key, buffer(2, 2))
  bth:add(F.dqp, buffer(5, 3))
  bth:add(F.ack_request, buffer(8, 1), bits(flags, 7, 1) == 1)
  local again = bth:add(F.retransmission, buffer(8, 1), bits(flags, 5, 1) == 1)
  if bits(flags, 5, 1) == 1 then again:add_proto_expert_info(E.retransmission) end
  bth:add(F.timestamped, buffer(8, 1), bits(flags, 4, 1) == 1)
  bth:add(F.psn, buffer(9, 3))
  tree:add(F.ev, entropy(pinfo)):set_generated()
  tree:add(F.sealed, is_sealed(buffer)):set_generated()
  if is_write(buffer(0, 1):uint()) then
    local cut = tree:add(F.trimmed, trimmed)
    cut:set_generated()
    if trimmed then cut:add_proto_expert_info(E.trimmed) end
  end
end

local function dissect(buffer, pinfo, root)
  if buffer:len() == 0 or OPCODES[buffer(0, 1):uint()] == nil then return 0 end
  if buffer:len() < BTH then
    root:add(mrc, buffer()):add_proto_expert_info(E.short)
    return buffer:len()
  end
  local opcode, flags = buffer(0, 1):uint(), buffer(8, 1):uint()
  local pad = bits(buffer(1, 1):uint(), 4, 2)
  local trimmed, sealed = is_trimmed(pinfo, opcode), is_sealed(buffer)
  local tree = root:add(mrc, buffer())
  pinfo.cols.protocol = "MRC"
  dissect_bth(buffer, pinfo, tree, trimmed)
  local words = ""
  local least = bounds(opcode, flags, trimmed, sealed)
  if buffer:reported_len() < least or (not is_write(opcode) and buffer:len() < least) or
     (is_write(opcode) and buffer:len() < write_head(opcode, flags, trimmed, sealed)) then
    tree:add_proto_expert_info(E.short)
  elseif is_write(opcode) then
    words = dissect_write(buffer, tree, opcode, flags, pad, trimmed, sealed)
  else
    words = BODIES[opcode](buffer, tree)
    if sealed then
      words = words .. dissect_seal(buffer, tree, buffer:reported_len() - TAG - KEY)
      dissect_tag(buffer, tree)
    end
  end
  local size = buffer:reported_len()
  if not trimmed and not sealed and buffer:len() == size and size >= least then tree:add_le(F.icrc, buffer(size - ICRC, ICRC)) end
  local also = (bits(flags, 5, 1) == 1 and " rtx" or "") .. (trimmed and " trimmed" or "")
  local shown = string.format("%s qp %06x psn %d%s%s", OPCODES[opcode], buffer(5, 3):uint(), buffer(9, 3):uint(), words, also)
  pinfo.cols.info = shown
  tree:append_text(", " .. shown)
  return buffer:len()
end

mrc.dissector = dissect

-- On an unregistered port: the opcode, the version and the exact length must fit.
mrc:register_heuristic("udp", function(buffer, pinfo, root)
  if buffer:len() < BTH then return false end
  local opcode = buffer(0, 1):uint()
  if OPCODES[opcode] == nil or bits(buffer(1, 1):uint(), 0, 4) > 1 then return false end
  local least, most = bounds(opcode, buffer(8, 1):uint(), is_trimmed(pinfo, opcode), is_sealed(buffer))
  local size = buffer:reported_len()
  if size < least or (most ~= nil and size ~= least and size ~= most) then return false end
  dissect(buffer, pinfo, root)
  return true
end)

-- RoCE shares the port; other packets go on to the dissector that had it before.
local ports = DissectorTable.get("udp.port")
local roce = ports:get_dissector(mrc.prefs.port)
local shared = Proto("mrc_or_roce", "MRC, or RoCE on its port")
function shared.dissector(buffer, pinfo, root)
  local used = dissect(buffer, pinfo, root)
  if used == 0 and roce ~= nil and buffer:len() >= BTH then return roce:call(buffer, pinfo, root) end
  return used
end
ports:set(mrc.prefs.port, shared)
