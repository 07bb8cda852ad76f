"""Remove from a new interpreter the names that only Linux has, to show that standfast does not use them."""

import os
import resource
import signal
import socket
import sys
import sysconfig

sysconfig.get_config_vars()  # Named after the platform that it was built for.
sys.platform = "darwin"

LINUX_ONLY = {
    os: "O_PATH memfd_create pidfd_open sched_getaffinity sched_setaffinity splice eventfd waitid P_PID WNOWAIT WEXITED",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX",
    socket: "AF_NETLINK AF_PACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
}
for _module, _names in LINUX_ONLY.items():
    for _name in _names.split():
        vars(_module).pop(_name, None)
