"""Send one packet down each path between two hosts of a lab, and let the link counters say where it went. Needs root.

python examples/lab_paths.py [LAB.toml]
"""

import socket
import sys
import time
from pathlib import Path

from softmrc.fabric import link_name
from softmrc.lab import Lab

file = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("lab.toml"))
SOURCE, DESTINATION = 0, 7

with Lab.up(file.read_text(), "paths") as lab:
    time.sleep(1.5)  # until the kernel has announced its new interfaces
    with lab.socket(SOURCE) as sender, lab.socket(DESTINATION) as receiver:
        receiver.bind(("::", 4791))
        receiver.settimeout(1)
        for ev, carrier in enumerate(lab.plan.carriers(SOURCE, DESTINATION)):
            before = lab.packets()
            sender.sendto(f"EV {ev}".encode(), (socket.inet_ntop(socket.AF_INET6, bytes(carrier)), 4791))
            arrived = receiver.recv(100).decode()
            after = lab.packets()
            used = {link for link in after if after[link] > before[link]}
            named = lab.plan.links(SOURCE, DESTINATION, *lab.plan.place_of(ev))
            verdict = "and no other" if used == set(named) else f"but {len(used ^ set(named))} differ"
            print(f"{arrived:5} used {' '.join(link_name(lab.shape, link) for link in named)} {verdict}")
