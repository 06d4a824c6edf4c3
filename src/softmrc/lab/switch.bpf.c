// What a lab's port does to a packet that leaves by it: lose it, break it, mark it, or cut it down to its headers.
//
// One program serves every port; a map says, by interface, when to act. It reads the backlog of the port's own queue,
// so that marks and trims follow what is really waiting. Compiled without kernel headers: the few kernel structures it
// reads are declared here by the fields it needs, and the loader finds where they lie.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define MAP_FIELD(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type* name

enum { map_hash = 1, act_ok = 0, act_shot = 2 };
enum { proto_udp = 17, proto_ipv6 = 41, proto_routing = 43 };
enum { ethernet_size = 14, ipv6_size = 40, udp_size = 8 };
enum { dscp_trimmable = 4, dscp_trimmable_retx = 8, dscp_trimmed = 12, dscp_trimmed_last_hop = 16, dscp_control = 46 };
enum { bth_version = 1, bth_flags = 8, bth_timestamp = 0x10, through_reth = 32, timestamp_size = 4 };
enum { sealed_version = 1, seal_front = 20 };
enum { flag_black_hole = 1, flag_last_hop = 2 };
enum { flipped_from_end = 6, smallest_flipped = 100 };  // a bit shortly before the end: in the payload, or in the ICRC
#define CONTROL_CLASS ((1u << 16) | 0x10)
#define DATA_CLASS ((1u << 16) | 0x20)

// The context of a tc program, as the kernel's interface fixes it.
struct __sk_buff {
  u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto;
  u32 priority, ingress_ifindex, ifindex;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct gnet_stats_queue {
  u32 backlog;
};
struct Qdisc {
  struct gnet_stats_queue qstats;
};
struct netdev_queue {
  struct Qdisc* qdisc_sleeping;
};
struct net_device {
  struct netdev_queue* _tx;
};
struct sk_buff {
  struct net_device* dev;
};
#pragma clang attribute pop

// Both are mirrored in lab/bpf.py.
struct port {
  u32 flags, loss, ecn_min, ecn_max, trim_at, corrupt;  // loss and corrupt out of 2^32; bytes; a zero turns a thing off
};
struct count {
  u64 marked, trimmed, lost, black_holed, corrupted;
};

struct {
  MAP_FIELD(type, map_hash);
  MAP_FIELD(max_entries, 16384);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, struct port);
} ports SEC(".maps");

struct {
  MAP_FIELD(type, map_hash);
  MAP_FIELD(max_entries, 16384);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, struct count);
} counts SEC(".maps");

static void* (*map_find)(void* map, const void* key) = (void*)1;
static u32 (*random_u32)(void) = (void*)7;
static long (*store_bytes)(struct __sk_buff*, u32 at, const void* from, u32 size, u64 flags) = (void*)9;
static long (*load_bytes)(const struct __sk_buff*, u32 at, void* to, u32 size) = (void*)26;
static long (*change_tail)(struct __sk_buff*, u32 size, u64 flags) = (void*)38;
extern void* bpf_cast_to_kern_ctx(void*) __attribute__((section(".ksyms")));

// Where the headers of a packet lie. `inner` equals `outer` where there is only one.
struct layout {
  u32 outer, inner, udp;
};

INLINE int find_headers(struct __sk_buff* skb, struct layout* at) {
  u8 ip[ipv6_size];
  u8 routing[2];
  at->outer = at->inner = ethernet_size;
  if (skb->protocol != __builtin_bswap16(0x86DD) || load_bytes(skb, at->outer, ip, sizeof ip)) return 0;
  u8 next = ip[6];
  u32 end = at->outer + ipv6_size;
  if (next == proto_routing) {
    if (load_bytes(skb, end, routing, sizeof routing)) return 0;
    next = routing[0];
    end += 8 + 8 * (u32)routing[1];
  }
  if (next == proto_ipv6) {
    at->inner = end;
    if (load_bytes(skb, end, ip, sizeof ip)) return 0;
    next = ip[6];
    end += ipv6_size;
  }
  at->udp = end;
  return next == proto_udp;
}

INLINE u8 traffic_class(struct __sk_buff* skb, u32 at) {
  u8 head[2] = {0, 0};
  load_bytes(skb, at, head, sizeof head);
  return (head[0] << 4) | (head[1] >> 4);
}

INLINE void set_traffic_class(struct __sk_buff* skb, u32 at, u8 value) {
  u8 head[2] = {0, 0};
  load_bytes(skb, at, head, sizeof head);
  head[0] = (head[0] & 0xF0) | (value >> 4);
  head[1] = (head[1] & 0x0F) | (value << 4);
  store_bytes(skb, at, head, sizeof head, 0);
}

INLINE void set_word(struct __sk_buff* skb, u32 at, u16 value) {
  const u16 big = __builtin_bswap16(value);
  store_bytes(skb, at, &big, sizeof big, 0);
}

// Removes everything after RETH, or after the header tag of an encrypted packet. Adapts lengths and DSCP in every
// header, and clears the checksum.
INLINE int trim(struct __sk_buff* skb, const struct layout* at, u8 dscp) {
  u8 flags = 0, version = 0;
  if (load_bytes(skb, at->udp + udp_size + bth_flags, &flags, 1)) return 0;
  if (load_bytes(skb, at->udp + udp_size + bth_version, &version, 1)) return 0;
  const u32 sealed = (version & 0x0F) == sealed_version ? seal_front : 0;
  const u32 keep = through_reth + (flags & bth_timestamp ? timestamp_size : 0) + sealed;
  const u32 end = at->udp + udp_size + keep;
  if (skb->len <= end) return 0;
  const u8 ecn = traffic_class(skb, at->inner) & 3;
  set_word(skb, at->udp + 4, udp_size + keep);
  set_word(skb, at->udp + 6, 0);
  set_word(skb, at->inner + 4, end - at->inner - ipv6_size);
  set_traffic_class(skb, at->inner, (dscp << 2) | ecn);
  if (at->outer != at->inner) {
    set_word(skb, at->outer + 4, end - at->outer - ipv6_size);
    set_traffic_class(skb, at->outer, (dscp << 2) | ecn);
  }
  return change_tail(skb, end, 0) == 0;
}

INLINE int should_mark(const struct port* p, u32 waiting) {
  if (!p->ecn_max || waiting <= p->ecn_min) return 0;
  if (waiting >= p->ecn_max) return 1;
  return random_u32() % (p->ecn_max - p->ecn_min) < waiting - p->ecn_min;
}

INLINE void flip_a_bit(struct __sk_buff* skb, struct count* c) {
  u8 byte = 0;
  if (skb->len < smallest_flipped || load_bytes(skb, skb->len - flipped_from_end, &byte, 1)) return;
  byte ^= 0x10;
  if (store_bytes(skb, skb->len - flipped_from_end, &byte, 1, 0) == 0) __sync_fetch_and_add(&c->corrupted, 1);
}

SEC("tc") int leave(struct __sk_buff* skb) {
  u32 key = skb->ifindex;
  const struct port* p = map_find(&ports, &key);
  struct count* c = map_find(&counts, &key);
  if (!p || !c) return act_ok;
  if (p->flags & flag_black_hole) {
    __sync_fetch_and_add(&c->black_holed, 1);
    return act_shot;
  }
  if (p->loss && random_u32() < p->loss) {
    __sync_fetch_and_add(&c->lost, 1);
    return act_shot;
  }
  if (p->corrupt && random_u32() < p->corrupt) flip_a_bit(skb, c);
  struct layout at;
  if (!find_headers(skb, &at)) return act_ok;
  const u8 tclass = traffic_class(skb, at.inner);
  const u8 dscp = tclass >> 2;
  if (dscp == dscp_control || dscp == dscp_trimmed || dscp == dscp_trimmed_last_hop) {
    skb->priority = CONTROL_CLASS;
    return act_ok;
  }
  skb->priority = DATA_CLASS;
  const struct sk_buff* kernel_skb = bpf_cast_to_kern_ctx(skb);
  const u32 waiting = kernel_skb->dev->_tx->qdisc_sleeping->qstats.backlog;
  if (p->trim_at && waiting + skb->len > p->trim_at && (dscp == dscp_trimmable || dscp == dscp_trimmable_retx)) {
    if (trim(skb, &at, p->flags & flag_last_hop ? dscp_trimmed_last_hop : dscp_trimmed)) {
      skb->priority = CONTROL_CLASS;
      __sync_fetch_and_add(&c->trimmed, 1);
    }
    return act_ok;
  }
  const u8 ecn = tclass & 3;
  if ((ecn == 1 || ecn == 2) && should_mark(p, waiting)) {
    set_traffic_class(skb, at.inner, tclass | 3);
    if (at.outer != at.inner) set_traffic_class(skb, at.outer, traffic_class(skb, at.outer) | 3);
    __sync_fetch_and_add(&c->marked, 1);
  }
  return act_ok;
}

// This file may be used under the GPL as well as under the project's licence; the kernel asks for that.
char terms[] SEC("license") = "Dual MIT/GPL";
