"""Sender and counter of packets, run inside a network namespace by `rails`: standard library only.

`send ADDRESS>ADDRESS ... COUNT` sends datagrams from each first address to the second; `count INTERFACE ...` counts
those that leave or arrive by each interface until its standard input ends, and prints the counts.
"""

import json
import select
import socket
import sys
import time

PORT = 9999
ALL, IPV4, UDP, OUTGOING = 0x0003, 0x0800, 17, 4
PAUSE_S = 0.002


def send(pairs: list[str], count: int) -> None:
    """Send the datagrams in turn; the first of a pair may wait for an answer to ARP."""
    for source, target in (pair.split(">") for pair in pairs):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((source, 0))
            for _ in range(count):
                sender.sendto(b"x", (target, PORT))
                time.sleep(PAUSE_S)


def count(interfaces: list[str]) -> None:
    """Print `{"INTERFACE out|in SOURCE TARGET": packets}`."""
    taps = {}
    for interface in interfaces:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL))
        tap.bind((interface, ALL))
        taps[tap] = interface
    print("ready", flush=True)
    packets: dict[str, int] = {}
    while True:
        ready, _, _ = select.select([*taps, sys.stdin], [], [])
        for tap in ready:
            if tap is sys.stdin:
                print(json.dumps(packets))
                return
            data, (_, protocol, kind, *_) = tap.recvfrom(65535)
            if protocol == IPV4 and data[9] == UDP and int.from_bytes(data[22:24], "big") == PORT:
                way = "out" if kind == OUTGOING else "in"
                key = f"{taps[tap]} {way} {socket.inet_ntoa(data[12:16])} {socket.inet_ntoa(data[16:20])}"
                packets[key] = packets.get(key, 0) + 1


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2:-1], int(sys.argv[-1]))
    else:
        count(sys.argv[2:])
