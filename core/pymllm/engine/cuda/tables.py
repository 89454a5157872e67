"""The page tables of all running requests, on the device; only what changed is sent."""

from __future__ import annotations

import numpy as np
import torch

from pymllm.engine.cuda.packed import PackedArrays
from pymllm.engine.plan import StepItem


class PageTables:
    """tables: [slots + 1, pages of a request] int32, a row for each request slot. The last row stays 0, the scrap
    page: padding points to it."""

    def __init__(self, slots: int, pages_per_request: int, device: torch.device) -> None:
        self.scrap_slot = slots
        self.width = pages_per_request
        self.tables = torch.zeros(slots + 1, pages_per_request, dtype=torch.int32, device=device)
        self._packed = PackedArrays(device)

    def update(self, items: list[StepItem]) -> None:
        """Send the pages that the items' requests got since they were last here."""
        places: list[np.ndarray] = []
        pages: list[int] = []
        for item in items:
            request = item.request
            first, count = request.synced_pages, len(request.pages)
            if first < count:
                start = request.slot * self.width
                places.append(np.arange(start + first, start + count))
                pages += request.pages[first:]
                request.synced_pages = count
        if places:
            count = len(pages)
            changed = (np.concatenate(places), np.array(pages, dtype=np.int32))
            index, values = self._packed.send(changed, [(count, np.int64), (count, np.int32)])
            self.tables.view(-1).index_copy_(0, index, values)
