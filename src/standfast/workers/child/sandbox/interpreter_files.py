"""Find the files that the interpreter of a worker needs, and no others.

``sys.path`` is not a list of them: an editable install puts the folder of a program there, and a virtual environment
may lie in it. What is left out can be added by the ``readable`` paths of the policy.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable

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
