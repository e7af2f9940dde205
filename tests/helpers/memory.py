"""The most bytes that tensors hold at one time."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Within this context, `bytes` is the most that the storages which calls have returned held at one time."""

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                reference = StorageWeakRef(x.untyped_storage())
                self._live[reference.cdata] = reference, x.untyped_storage().nbytes()
        self.bytes = max(self.bytes, sum(size for _, size in self._live.values()))
        return result
