#include "sim/baselines/roce.h"

#include <algorithm>

namespace softmrc::sim {

void RoceHost::open(std::uint32_t qp, std::uint32_t destination, std::uint32_t entropy, std::uint8_t port) {
  RoceSender s;
  s.qp = qp;
  s.destination = destination;
  s.entropy = entropy;
  s.port = port;
  s.rate_bps = s.target_bps = static_cast<double>(config_.line_rate_bps);
  sender_of_[qp] = static_cast<std::uint32_t>(senders_.size());
  senders_.push_back(std::move(s));
}

void RoceHost::accept(std::uint32_t qp, std::uint32_t source, std::uint32_t entropy, std::uint8_t port) {
  RoceReceiver r;
  r.qp = qp;
  r.source = source;
  r.entropy = entropy;
  r.port = port;
  receiver_of_[qp] = static_cast<std::uint32_t>(receivers_.size());
  receivers_.push_back(r);
}

void RoceHost::post(Time now, std::uint32_t qp, std::uint32_t flow, std::uint32_t offset, std::uint32_t bytes) {
  RoceSender& s = senders_[sender_of_.at(qp)];
  if (s.acked_psn == s.end_psn) s.progress_at = now;
  s.segments.push_back({flow, offset, bytes, s.end_psn});
  s.end_psn += packets_of(bytes);
  reschedule(s);
}

// To be called after any change of a sender. Whether it may send by now is left to the clock: see wake_paced.
void RoceHost::reschedule(RoceSender& s) {
  const std::uint32_t i = static_cast<std::uint32_t>(&s - senders_.data());
  const bool has_work = !s.is_broken && s.next_psn != s.end_psn;
  ready_.set(i, false);
  paced_.set(i, has_work ? s.send_at : Time::never());
  Time at = s.acked_psn != s.next_psn ? s.progress_at + config_.retransmit_timeout : Time::never();
  at = std::min(at, s.increase_at);
  timers_.set(i, s.is_broken ? Time::never() : at);
}

void RoceHost::wake_paced(Time now) {
  while (paced_.earliest() <= now) {
    const std::uint32_t i = paced_.whose_is_earliest();
    paced_.set(i, Time::never());
    ready_.set(i, true);
  }
}

void RoceHost::handle(Time now, const RocePacket& packet, bool congestion) {
  if (packet.kind == RocePacket::Kind::data) {
    on_data(now, receivers_[receiver_of_.at(packet.qp)], packet, congestion);
    return;
  }
  RoceSender& s = senders_[sender_of_.at(packet.qp)];
  if (s.is_broken) return;
  if (packet.kind == RocePacket::Kind::cnp) {
    on_cnp(now, s);
    reschedule(s);
    return;
  }
  on_acknowledged(now, s, packet.psn);
  // Go back to what is missing and send everything after it again.
  if (packet.kind == RocePacket::Kind::nak && packet.psn >= s.acked_psn && packet.psn < s.next_psn)
    s.next_psn = packet.psn;
  reschedule(s);
}

void RoceHost::on_data(Time now, RoceReceiver& r, const RocePacket& packet, bool congestion) {
  const auto owe = [&](bool& what) {
    if (!r.ack_due && !r.nak_due && !r.cnp_due) replies_.push_back(receiver_of_.at(r.qp));
    what = true;
  };
  if (congestion && config_.dcqcn && now - r.cnp_at >= config_.cnp_interval) {
    r.cnp_at = now;
    owe(r.cnp_due);
  }
  if (packet.psn == r.expected) {
    ++r.expected;
    r.gap_reported = false;
    observer_.on_roce_placed(packet, r.port);
    if (++r.unacknowledged >= config_.ack_every_packets || packet.is_last) owe(r.ack_due);
  } else if (packet.psn > r.expected) {
    if (!r.gap_reported) owe(r.nak_due);
    r.gap_reported = true;
  } else {
    owe(r.ack_due);
  }
}

void RoceHost::on_acknowledged(Time now, RoceSender& s, std::uint32_t psn) {
  if (psn <= s.acked_psn || psn > s.end_psn) return;
  s.acked_psn = psn;
  s.next_psn = std::max(s.next_psn, psn);
  s.progress_at = now;
  s.retries = 0;
  while (!s.segments.empty() && s.segments.front().first_psn + packets_of(s.segments.front().bytes) <= psn) {
    observer_.on_roce_acknowledged(s.segments.front().flow, s.segments.front().bytes);
    s.segments.pop_front();
  }
}

// DCQCN's reaction point: cut by half of alpha, remember where to return to.
void RoceHost::on_cnp(Time now, RoceSender& s) {
  for (; s.alpha_at <= now && s.alpha > config_.gain; s.alpha_at = s.alpha_at + config_.alpha_interval)
    s.alpha *= 1 - config_.gain;
  s.target_bps = s.rate_bps;
  s.rate_bps = std::max(s.rate_bps * (1 - s.alpha / 2),
                        config_.min_rate_share * static_cast<double>(config_.line_rate_bps));
  s.alpha = (1 - config_.gain) * s.alpha + config_.gain;
  s.timer_stages = s.byte_stages = 0;
  s.bytes_since = 0;
  s.alpha_at = now + config_.alpha_interval;
  s.increase_at = now + config_.increase_interval;
}

// Five stages of halfway back, then additive, then hyper increase when both clocks agree.
void RoceHost::raise_rate(RoceSender& s, std::uint32_t stages) {
  constexpr std::uint32_t fast_recovery_stages = 5;
  const double line = static_cast<double>(config_.line_rate_bps);
  if (std::min(s.timer_stages, s.byte_stages) > fast_recovery_stages) s.target_bps += config_.hyper_share * line;
  else if (stages > fast_recovery_stages) s.target_bps += config_.additive_share * line;
  s.target_bps = std::min(s.target_bps, line);
  s.rate_bps = std::min((s.rate_bps + s.target_bps) / 2, line);
}

bool RoceHost::poll_reply(std::uint32_t free_ports, RoceSend& out) {
  for (std::size_t i = 0; i < replies_.size(); ++i) {
    const std::uint32_t index = replies_[i];
    RoceReceiver& r = receivers_[index];
    if (!(free_ports >> r.port & 1)) continue;
    out.destination = r.source;
    out.entropy = r.entropy;
    out.port = r.port;
    out.packet = RocePacket{};
    out.packet.qp = r.qp;
    out.packet.psn = r.expected;
    if (r.cnp_due) {
      out.packet.kind = RocePacket::Kind::cnp;
      r.cnp_due = false;
    } else if (r.nak_due) {
      out.packet.kind = RocePacket::Kind::nak;
      r.nak_due = r.ack_due = false;
    } else {
      out.packet.kind = RocePacket::Kind::ack;
      r.ack_due = false;
      r.unacknowledged = 0;
    }
    if (!r.ack_due && !r.nak_due && !r.cnp_due) replies_.erase(replies_.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  return false;
}

void RoceHost::send_next(Time now, RoceSender& s, RoceSend& out) {
  const auto holds = [&](const Segment& segment) { return s.next_psn < segment.first_psn + packets_of(segment.bytes); };
  const auto segment = std::find_if(s.segments.begin(), s.segments.end(), holds);
  const std::uint32_t at = (s.next_psn - segment->first_psn) * mtu_;
  out.destination = s.destination;
  out.entropy = s.entropy;
  out.port = s.port;
  out.packet = {RocePacket::Kind::data,
                s.qp,
                s.next_psn,
                segment->flow,
                segment->offset + at,
                std::min(mtu_, segment->bytes - at),
                at + mtu_ >= segment->bytes};
  if (s.next_psn < s.highest_sent) ++retransmitted_;
  ++s.next_psn;
  s.highest_sent = std::max(s.highest_sent, s.next_psn);
  const double bits = 8.0 * out.packet.bytes;
  s.send_at = std::max(s.send_at, now) + Duration{static_cast<std::int64_t>(bits * 1e12 / s.rate_bps)};
  s.bytes_since += out.packet.bytes;
  if (s.increase_at != Time::never() && s.bytes_since >= config_.increase_bytes) {
    s.bytes_since = 0;
    raise_rate(s, ++s.byte_stages);
  }
  reschedule(s);
}

bool RoceHost::poll(Time now, std::uint32_t free_ports, std::uint32_t data_ports, RoceSend& out) {
  if (poll_reply(free_ports, out)) return true;
  if (!data_ports) return false;
  wake_paced(now);
  std::uint32_t found = 0;
  if (!ready_.take([&](std::uint32_t i) { return data_ports >> senders_[i].port & 1; }, found)) return false;
  send_next(now, senders_[found], out);
  return true;
}

void RoceHost::handle_timeout(Time now) {
  while (timers_.earliest() <= now) {
    RoceSender& s = senders_[timers_.whose_is_earliest()];
    if (s.increase_at <= now) {
      raise_rate(s, ++s.timer_stages);
      s.increase_at = s.rate_bps >= static_cast<double>(config_.line_rate_bps) ? Time::never()
                                                                               : now + config_.increase_interval;
    }
    if (s.acked_psn != s.next_psn && now >= s.progress_at + config_.retransmit_timeout) retry(now, s);
    reschedule(s);
  }
}

void RoceHost::retry(Time now, RoceSender& s) {
  s.progress_at = now;
  s.next_psn = s.acked_psn;
  if (++s.retries <= config_.max_retries) return;
  s.is_broken = true;
  observer_.on_roce_broken(s.qp);
}

Time RoceHost::deadline(Time now) {
  wake_paced(now);
  return std::min(paced_.earliest(), timers_.earliest());
}

}  // namespace softmrc::sim
