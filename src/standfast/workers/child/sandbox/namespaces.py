"""Build the namespaces and the file system of workers.

``SandboxBuilder.prepare_server`` runs once in the fork server: it builds a read-only root with the files that the
interpreter needs and little else, and leaves the host's file system for good. ``sys.path`` is not a list of these
files: an editable install puts the folder of a program there, and a virtual environment may lie in it. What is left
out can be added by the ``readable`` paths of the policy.

``enter_worker_namespaces`` runs in each supervisor, before the worker is forked. ``confinement.confine_process`` runs
last, in the worker itself.
"""

import contextlib
import os
import socket
import stat
import sys
import sysconfig
from collections.abc import Iterable

from standfast.workers.child.sandbox import syscalls as sys_
from standfast.workers.wire.control import SandboxSpec

_FOLDERS_OF_PROGRAMS = "bin sbin lib lib32 lib64 libx32 libexec"
# Not all of /usr: programs are often unpacked in /usr/src or /usr/local.
_SYSTEM_PATHS = (
    "/opt/python",
    *(f"/{name}" for name in _FOLDERS_OF_PROGRAMS.split()),
    *(f"{base}/{name}" for base in ("/usr", "/usr/local") for name in f"{_FOLDERS_OF_PROGRAMS} share include".split()),
)
# Of /etc/ssl and /etc/pki only what is public: private keys are beside it.
_ETC_FILES = (
    "passwd group hosts host.conf resolv.conf nsswitch.conf localtime timezone ld.so.cache ld.so.conf ld.so.conf.d "
    "ssl/certs ssl/openssl.cnf ssl/cert.pem pki/tls/certs pki/tls/cert.pem pki/tls/openssl.cnf pki/ca-trust/extracted "
    "ca-certificates alternatives mime.types fonts matplotlibrc python3 services protocols"
)
_INSTALLATION_PATHS = ("stdlib", "platstdlib", "purelib", "platlib", "include", "platinclude", "scripts")
SESSION_DIRECTORY = "/session"
DEVICES = ("null", "zero", "full", "random", "urandom")


def find_readable_paths(extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the paths that a worker may read, without those inside another one, shortest first."""
    candidates = [*_find_installation_paths(), *_find_shared_libraries(), *_SYSTEM_PATHS, *extra]
    candidates += [path for path in _follow_links(sys.executable) if not _is_inside(path, candidates)]
    paths: list[str] = []
    for path in sorted({os.path.abspath(path) for path in candidates}, key=len):
        if path != "/" and not _is_inside(path, paths) and os.path.exists(path):
            paths.append(path)
    return (*paths, *(f"/etc/{name}" for name in _ETC_FILES.split() if os.path.exists(f"/etc/{name}")))


def remove_hidden_entries(readable: Iterable[str]) -> tuple[str, ...]:
    """Remove from ``sys.path`` the existing folders that are not inside these paths, and return them."""
    paths = tuple(readable)
    hidden = [entry for entry in sys.path if os.path.exists(entry) and not _is_inside(os.path.abspath(entry), paths)]
    sys.path[:] = [entry for entry in sys.path if entry not in hidden]
    return tuple(hidden)


def _find_installation_paths() -> list[str]:
    """Return the folders of the installation and of the virtual environment, not the folders that contain them."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    places = {**sysconfig.get_paths(), "cfg": os.path.join(sys.prefix, "pyvenv.cfg")}
    original = sysconfig.get_paths("posix_prefix", vars=base)
    return [
        *(places[name] for name in (*_INSTALLATION_PATHS, "cfg")),
        *(original[name] for name in _INSTALLATION_PATHS),
    ]


def _find_shared_libraries() -> tuple[str, ...]:
    """Return the folder of the libraries that the interpreter is linked with, if they are its own."""
    is_conda = os.path.isdir(os.path.join(sys.base_prefix, "conda-meta"))
    return (os.path.join(sys.base_prefix, "lib"),) if is_conda or sysconfig.get_config_var("Py_ENABLE_SHARED") else ()


def _follow_links(path: str) -> list[str]:
    """Return a file and the files that its symbolic links lead to, one after the other."""
    hops = [path]
    while os.path.islink(path) and len(hops) < 16:
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        hops.append(path)
    return [*hops, os.path.realpath(path)]


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


class SandboxBuilder:
    """Builds the part of the sandbox that all workers of a fork server share, and that of each worker."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.readable = find_readable_paths(spec.readable)
        self.notes: list[str] = []
        self._pid_namespace = -1
        host_paths = (*self.readable, *spec.writable)
        # Paths below /tmp, for example of an interpreter, are mounted into the worker's own, writable /tmp.
        self._below_tmp = () if "/tmp" in host_paths else tuple(p for p in host_paths if p.startswith("/tmp/"))

    @property
    def uses_namespaces(self) -> bool:
        return self.spec.level == "namespaces"

    def prepare_server(self) -> None:
        """Leave the host's file system and drop privileges. With namespaces, this forks: the caller becomes pid 1."""
        if self.spec.level != "plain":
            self._hide_import_paths()
        if not self.uses_namespaces:
            self._drop_privileges()
            return
        if os.geteuid() == 0:
            # Done as root, which can read the interpreter's files wherever they are, for example below /root.
            sys_.unshare(sys_.CLONE_NEWNS)
            self._build_root()
            self._drop_privileges()
            sys_.unshare(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID)
            sys_.map_identity(os.geteuid(), os.getegid())
        else:
            uid, gid = os.geteuid(), os.getegid()
            self._drop_groups()
            sys_.unshare(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID)
            sys_.map_identity(uid, gid)
            self._build_root()
        _continue_as_init()
        self._pid_namespace = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork_supervisor(self) -> int:
        """Fork a supervisor. With namespaces, it is pid 1 of a new process namespace."""
        if not self.uses_namespaces:
            return os.fork()
        sys_.unshare(sys_.CLONE_NEWPID)
        try:
            pid = os.fork()
        finally:
            if os.getpid() == 1 and self._pid_namespace >= 0:
                with contextlib.suppress(OSError):
                    sys_.setns(self._pid_namespace, sys_.CLONE_NEWPID)
        return pid

    def check_worker_namespaces(self) -> None:
        """Create the namespaces of a worker once. Raises OSError where the machine does not allow them."""
        if not self.uses_namespaces:
            return
        read, write = os.pipe()
        pid = self.fork_supervisor()
        if pid == 0:
            problem = ""
            try:
                self.enter_worker_namespaces()
            except BaseException as error:  # noqa: BLE001 - nothing may unwind into the fork server
                problem = str(error) or type(error).__name__
            os.write(write, problem.encode())
            os._exit(0)
        os.close(write)
        os.waitpid(pid, 0)
        with open(read, encoding="utf-8") as file:
            problem = file.read()
        if problem:
            raise OSError(f"the namespaces of a worker cannot be created: {problem}")

    def enter_worker_namespaces(self) -> socket.socket | None:
        """Create the namespaces and the private directory of one worker. Returns the listener of its proxy, if any."""
        if not self.uses_namespaces:
            return None
        flags = sys_.CLONE_NEWNS | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
        if self.spec.network != "host":
            flags |= sys_.CLONE_NEWNET
        sys_.unshare(flags)
        below_tmp = {path: os.open(f"{SESSION_DIRECTORY}{path}", os.O_PATH) for path in self._below_tmp}
        mount_flags = sys_.MS_NOSUID | sys_.MS_NODEV
        sys_.mount("proc", "/proc", "proc", mount_flags | sys_.MS_NOEXEC)
        size = self.spec.disk or 64 << 20
        sys_.mount("tmpfs", SESSION_DIRECTORY, "tmpfs", mount_flags, f"size={size},nr_inodes=65536,mode=755")
        for name in ("work", "tmp", "shm", "home"):
            os.mkdir(f"{SESSION_DIRECTORY}/{name}", 0o700)
        for path, fd in below_tmp.items():
            _bind_mount(fd, path, SESSION_DIRECTORY, writable=path in self.spec.writable)
            os.close(fd)
        if self.spec.terminals:
            sys_.mount("devpts", "/dev/pts", "devpts", sys_.MS_NOSUID | sys_.MS_NOEXEC, "newinstance,ptmxmode=0666")
        socket.sethostname("worker")
        listener = _create_proxy_listener() if self.spec.network == "proxy" else None
        uid, gid = os.geteuid(), os.getegid()
        sys_.unshare(sys_.CLONE_NEWUSER)
        sys_.map_identity(uid, gid)
        return listener

    def _hide_import_paths(self) -> None:
        for path in remove_hidden_entries((*self.readable, *self.spec.writable)):
            self.notes.append(f"{path} is not visible, although it is on sys.path: add it to readable to allow it")

    def _drop_privileges(self) -> None:
        uid, gid = self.spec.uid, self.spec.gid
        if uid is None or os.geteuid() != 0:
            self._drop_groups()
            return
        if not sys.platform.startswith("linux"):
            self.notes.append("runs as root: the user is changed on Linux only")
            return
        unreadable = "" if self.uses_namespaces else _find_unreadable(self.readable)
        if unreadable:
            self._accept_root(f"other users cannot read {unreadable}: use an interpreter (python=) that they can read")
            return
        if uid == 0:
            self._accept_root("run_as is 0")
        try:
            os.setgroups([])
            os.setresgid(gid or uid, gid or uid, gid or uid)
            os.setresuid(uid, uid, uid)
        except OSError as problem:
            raise PermissionError(f"root cannot become the user {uid} (run_as) here: {problem}") from problem
        # Changing the user makes /proc/self unwritable, where the identity maps have to be written.
        sys_.prctl(sys_.PR_SET_DUMPABLE, 1)

    def _accept_root(self, reason: str) -> None:
        """Note that workers run as root. Raises PermissionError where files of root would be within their reach."""
        if self.spec.level == "locked":
            raise PermissionError(f"this level does not run as root: {reason}")
        self.notes.append(f"runs as root: {reason}")

    def _drop_groups(self) -> None:
        if self.spec.level == "plain":
            return
        with contextlib.suppress(OSError):
            os.setgroups([])
        groups = sorted(set(os.getgroups()) - {os.getegid()})
        if groups:
            numbers = ", ".join(map(str, groups))
            self.notes.append(f"keeps the groups {numbers} of its user: only root can leave them")

    def _build_root(self) -> None:
        if "/" in self.spec.writable:
            # What is created below would be created on the host.
            raise OSError("the root directory of the host cannot be mounted in that of a worker: it is writable")
        sources = {path: os.open(path, os.O_PATH) for path in (*self.readable, *self.spec.writable)}
        devices = {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
        proc = os.open("/proc", os.O_PATH)
        sys_.mount(None, "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
        root = "/tmp"
        sys_.mount("tmpfs", root, "tmpfs", sys_.MS_NOSUID, "size=1m,mode=755")
        os.mkdir(root + SESSION_DIRECTORY)
        for path, fd in sources.items():
            parent = root + SESSION_DIRECTORY if path in self._below_tmp else root
            _bind_mount(fd, path, parent, writable=path in self.spec.writable)
        for path, fd in devices.items():
            _bind_mount(fd, path, root, writable=True, is_device=True)
        os.symlink(f"{SESSION_DIRECTORY}/shm", f"{root}/dev/shm")
        os.symlink("/proc/self/fd", f"{root}/dev/fd")
        if self.spec.terminals:
            os.mkdir(f"{root}/dev/pts")
            os.symlink("pts/ptmx", f"{root}/dev/ptmx")
        _bind_mount(proc, "/proc", root, writable=True)
        if not os.path.lexists(f"{root}/tmp"):
            os.symlink(f"{SESSION_DIRECTORY}/tmp", f"{root}/tmp")
        for fd in (*sources.values(), *devices.values(), proc):
            os.close(fd)
        # All workers share this mount, and where the host is not root, it belongs to their user.
        sys_.restrict_mount(root, sys_.MOUNT_ATTR_RDONLY, recursive=False)
        sys_.pivot_into(root)


def _bind_mount(fd: int, path: str, root: str, *, writable: bool, is_device: bool = False) -> None:
    target = root + path
    if os.path.dirname(path) == "/" and os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(os.stat(fd).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o644))
    sys_.mount(f"/proc/self/fd/{fd}", target, None, sys_.MS_BIND | sys_.MS_REC)
    attributes = sys_.MOUNT_ATTR_NOSUID if is_device else sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV
    sys_.restrict_mount(target, attributes if writable else attributes | sys_.MOUNT_ATTR_RDONLY)


def _create_proxy_listener() -> socket.socket:
    import fcntl
    import struct

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Bring the loopback interface up: SIOCSIFFLAGS with IFF_UP | IFF_RUNNING.
    fcntl.ioctl(listener, 0x8914, struct.pack("16sH14s", b"lo", 0x1 | 0x40, b""))
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


def _continue_as_init() -> None:
    """Fork into the new process namespace. The outer process only waits and returns the exit status."""
    pid = os.fork()
    if pid:
        for fd in range(3, 256):
            with contextlib.suppress(OSError):
                os.close(fd)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, 9)


def _find_unreadable(paths: tuple[str, ...]) -> str:
    """Return the first directory on the way to these paths that other users cannot enter, or an empty string."""
    for path in paths:
        while path != "/":
            if not os.stat(path).st_mode & stat.S_IXOTH and os.path.isdir(path):
                return path
            path = os.path.dirname(path)
    return ""
