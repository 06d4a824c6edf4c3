"""Which system calls are refused in the tests, in which thread, and with which errors; and which are not, and why not.

A case is one (thread, call, error): it is refused once, and a lane's in the nightly tests for a second. Threads have
the names that they have outside: `softmrc` is a lane's, `softmrc-control` a control socket's, `softmrc-listen` a
listener's (the test names it so), `caller` the one that runs the test, `*` any.
"""

from __future__ import annotations

from errno import (
    EACCES,
    EADDRNOTAVAIL,
    EAGAIN,
    ECONNABORTED,
    EHOSTUNREACH,
    EINTR,
    EINVAL,
    EIO,
    EMFILE,
    EMSGSIZE,
    ENETDOWN,
    ENETUNREACH,
    ENFILE,
    ENOBUFS,
    ENOMEM,
    ENOSPC,
    EOPNOTSUPP,
    EPERM,
    EPROTO,
)  # fmt: skip

SHORT = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
Table = dict[tuple[str, str], tuple[int, ...]]

# Lanes, while data goes on over two planes.
DRIVER: Table = {
    ("softmrc", "recvmmsg"): (EINTR, EAGAIN, ENOMEM, ENOBUFS, ENETDOWN, EINVAL),
    ("softmrc", "sendmmsg"): (
        EINTR, EAGAIN, ENOMEM, ENOBUFS, EPERM, EACCES, EINVAL, EMSGSIZE, ENETUNREACH, EHOSTUNREACH, ENETDOWN,
    ),
    ("softmrc", "train"): (EINVAL, EIO, EOPNOTSUPP, ENOMEM, ENOBUFS),  # a sendmmsg that the kernel is to cut
    ("softmrc", "epoll_pwait2"): (EINTR, EINVAL, ENOMEM),
    ("softmrc", "epoll_wait"): (EINTR, EINVAL, ENOMEM),
    ("softmrc", "read"): (EINTR, EAGAIN),
    ("softmrc", "write"): (EINTR, EAGAIN),
    ("caller", "write"): (EINTR, EAGAIN),
}  # fmt: skip

# What a lane does when the socket buffer of a plane is full: sendmmsg reports it, and the lane watches the socket.
NO_ROOM: Table = {("softmrc", "epoll_ctl"): (ENOMEM, ENOSPC, EINTR)}

# What a lane does when a packet's destination port is closed: it reads the reports.
NOBODY_THERE: Table = {
    ("softmrc", "recvmsg"): (EINTR, ENOMEM, ENOBUFS),
    ("softmrc", "getsockopt"): (ENOMEM, ENOBUFS),
}

# What a lane does when links change, in a separate namespace.
LINKS: Table = {
    ("softmrc", "recv"): (EINTR, ENOMEM, ENOBUFS),
    ("softmrc", "if_nametoindex"): SHORT,
    ("softmrc", "if_indextoname"): SHORT,
    ("softmrc", "getifaddrs"): SHORT,
    ("softmrc", "socket"): SHORT,
    ("softmrc", "ioctl"): (EINTR, ENOMEM),
    ("softmrc", "setsockopt"): (ENOMEM, ENOBUFS),
}

# A listener's thread, while connectors come.
LISTENER: Table = {
    ("softmrc-listen", "accept4"): (*SHORT, EINTR, EAGAIN, ECONNABORTED, EPROTO, EPERM, ENETDOWN),
    ("softmrc-listen", "epoll_wait"): (EINTR, ENOMEM, EINVAL),
    ("softmrc-listen", "epoll_ctl"): (ENOMEM, ENOSPC),
    ("softmrc-listen", "recv"): (EINTR, EAGAIN, ENOMEM, ENOBUFS),
    ("softmrc-listen", "send"): (EINTR, EAGAIN, ENOMEM, ENOBUFS),
    ("softmrc-listen", "ioctl"): (ENOMEM,),
    ("softmrc-listen", "setsockopt"): (ENOMEM, ENOBUFS),
    ("softmrc-listen", "getpeername"): (ENOBUFS,),
}

# Of one that connects: each time that it is made, one after another. It connects, or says in a sentence why not; and
# the next time it does.
CONNECTOR: dict[str, tuple[int, ...]] = {
    "connect": (ENETUNREACH, ENOBUFS, ENOMEM, EAGAIN, EINTR),
    "epoll_create1": (EMFILE, ENOMEM),
    "epoll_ctl": (ENOMEM, ENOSPC),
    "epoll_wait": (EINTR, ENOMEM),
    "getpeername": (ENOBUFS,),
    "getsockname": (ENOBUFS,),
    "getsockopt": (ENOBUFS,),
    "poll": (EINTR, ENOMEM),
    "recv": (EINTR, EAGAIN, ENOMEM),
    "send": (EINTR, EAGAIN, ENOMEM, ENOBUFS),
    "setsockopt": (ENOMEM,),
    "socket": SHORT,
}

# … from an address of a plane, of several ways to the listener.
SOURCE: dict[str, tuple[int, ...]] = {"bind": (EADDRNOTAVAIL, ENOMEM)}

# A control socket, during a request.
CONTROL: Table = {
    ("softmrc-control", "poll"): (EINTR, ENOMEM, EINVAL),
    ("softmrc-control", "accept4"): (*SHORT, EINTR, EAGAIN, ECONNABORTED, EPERM),
    ("softmrc-control", "recv"): (EINTR, EAGAIN, ENOMEM, ENOBUFS),
    ("softmrc-control", "send"): (EINTR, EAGAIN, ENOMEM, ENOBUFS),
    ("softmrc-control", "getsockopt"): (ENOMEM, ENOBUFS),
}

# A group's lanes, while two ranks reduce.
RANKS: Table = {key: errors[:3] for key, errors in DRIVER.items() if key[0] == "softmrc" and key[1] != "write"}

# A call made for a caller: each time that it is made, one after another. It may fail in one sentence; whatever is made
# has all that it would have had; and the next attempt works.
OPENING: dict[str, tuple[int, ...]] = {
    "bind": (ENOMEM,),
    "epoll_create1": (EMFILE, ENOMEM),
    "epoll_ctl": (ENOMEM, ENOSPC),
    "eventfd": (EMFILE, ENOMEM),
    "getsockname": (ENOBUFS,),
    "if_nametoindex": (EMFILE, ENOMEM),
    "ioctl": (ENOMEM,),
    "listen": (ENOMEM,),
    "mmap": (ENOMEM,),
    "pthread_create": (EAGAIN,),
    "setsockopt": (ENOMEM, ENOBUFS),
    "socket": SHORT,
}

# A listener is opened, on a device that is there; and a group is joined, by ranks with separate devices.
LISTENING: dict[str, tuple[int, ...]] = {
    "bind": (ENOMEM,),
    "epoll_create1": (EMFILE, ENOMEM),
    "epoll_ctl": (ENOMEM, ENOSPC),
    "getsockname": (ENOBUFS,),
    "listen": (ENOMEM,),
    "pthread_create": (EAGAIN,),
    "setsockopt": (ENOMEM,),
    "socket": SHORT,
}
JOINING: dict[str, tuple[int, ...]] = {
    "bind": (ENOMEM,),
    "epoll_create1": (EMFILE, ENOMEM),
    "epoll_ctl": (ENOMEM,),
    "eventfd": (EMFILE, ENOMEM),
    "mmap": (ENOMEM,),
    "pthread_create": (EAGAIN,),
    "read": (EINTR,),
    "recvmmsg": (EINTR, ENOMEM),
    "sendmmsg": (EINTR, ENOMEM),
    "setsockopt": (ENOMEM,),
    "socket": (EMFILE,),
}

# NCCL's threads, in the plugin: connections are set up although it is refused for a while.
PLUGIN: Table = {
    ("*", "accept4"): (*SHORT, EINTR, EPERM, EPROTO),
    ("*", "connect"): (ENETUNREACH, ENOBUFS, ENOMEM, EAGAIN, EINTR),
    ("*", "epoll_ctl"): (ENOMEM,),
    ("*", "epoll_wait"): (EINTR, ENOMEM),
    ("*", "getpeername"): (ENOBUFS,),
    ("*", "getsockopt"): (ENOBUFS,),
    ("*", "send"): (EINTR, ENOMEM, ENOBUFS),
    ("*", "setsockopt"): (ENOMEM,),
    ("*", "recv"): (EINTR, ENOMEM),
}

# What the plugin asks for when NCCL first listens, and first connects.
PLUGIN_LISTENS: dict[str, tuple[int, ...]] = {
    "bind": (ENOMEM,),
    "epoll_create1": (EMFILE, ENOMEM),
    "epoll_ctl": (ENOMEM,),
    "eventfd": (EMFILE, ENOMEM),
    "getsockname": (ENOBUFS,),
    "listen": (ENOMEM,),
    "pthread_create": (EAGAIN,),
    "setsockopt": (ENOMEM,),
    "socket": SHORT,
}
PLUGIN_CONNECTS = {call: errors for call, errors in PLUGIN_LISTENS.items() if call != "listen"} | {
    "open": (EMFILE, ENFILE),  # of the key log
}

# Calls that our libraries make and that no test refuses, and why that is right.
NOT_REFUSED = {
    "chmod": "of a control socket in a folder that nobody else may enter",
    "eventfd_read": "of an acceptor that another one woke: if it failed, it would be woken once more",
    "eventfd_write": "to wake another acceptor, whose counter is far from full; else it would look at its next event",
    "shutdown": "fails where the connection is gone already",
    "close": "nothing depends on its answer, and what it is called with is gone in any case",
    "closedir": "as close",
    "dlclose": "of OpenSSL, once a process",
    "dlinfo": "of OpenSSL, once a process",
    "dlopen": "of OpenSSL, once a process: who seals is told that there is none",
    "clock_gettime": "cannot fail",
    "nanosleep": "a shorter rest is no harm",
    "sched_yield": "cannot fail",
    "madvise": "advice",
    "munmap": "frees",
    "mprotect": "of freed memory in tests of allocations",
    "pause": "the processor's instruction, by the same name",
    "prctl": "a thread's name and how exactly it sleeps",
    "sched_getaffinity": "how many processors there are; it cannot be short of anything",
    "sysconf": "cannot be short of anything",
    "syscall": "refused by the name of the call: epoll_pwait2",
    "geteuid": "cannot fail",
    "getpid": "cannot fail",
    "ppoll": "stands in for epoll_pwait2 where there is none",
    "access": "of control sockets that others left: one that cannot be looked at is left",
    "opendir": "as access",
    "readdir": "as access",
    "unlink": "as access",
    "stat": "of XDG_RUNTIME_DIR: without it the folder is in /tmp, as documented",
    "lstat": "of the folder of control sockets, when a device is opened: it then has none, and says why",
    "mkdir": "as lstat",
    "getrandom": "waits for nothing once the system has started",
    "fallocate": "a pipe between two ranks of a host: without it they go by the network",
    "memfd_create": "as fallocate",
    "fcntl": "as fallocate",
    "fstat": "as fallocate; of a capture, and a file of keys: who asked for it is told",
    "open": "as fstat",
    "fdopen": "as fstat",
    "ftruncate": "as fstat",
    "rename": "as fstat",
    "fopen64": "of files of settings: who asked is told",
    "pthread_join": "fails for threads that are none",
    "pthread_detach": "as pthread_join",
    "realpath": "of a link's place in the machine: NCCL does without",
    "writev": "of the C++ library in the plugin, to standard error",
    "lseek64": "as writev",
    "fstat64": "as writev",
}
