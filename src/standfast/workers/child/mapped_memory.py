"""Memory with the content of a file of the host, in which a worker sees only its own changes."""

import ctypes
import mmap
import os

_MAP_FIXED = 0x10


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map a file privately. Nothing is copied before it is changed, and the descriptor may be closed afterwards."""
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    # Given the file itself, the object would keep a descriptor open.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=writable)
    place = ctypes.c_char.from_buffer(memory)
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    address = ctypes.addressof(place)
    if call(address, size, writable, mmap.MAP_PRIVATE | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"the content of the workspace cannot be mapped: {os.strerror(number)}")
    return memory
