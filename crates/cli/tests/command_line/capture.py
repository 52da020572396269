"""Counts the bytes that TCP carries over a link, by value, until standard input ends.

Prints the number of payload bytes and the share of the most frequent value: 1/256 for sealed bytes,
far more for numbers and text.
"""

import select
import socket
import sys

link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
link.bind((sys.argv[1], 0))
counts = [0] * 256
print("captures", flush=True)
while True:
    ready, _, _ = select.select([link, sys.stdin], [], [])
    if link in ready:
        frame = link.recv(1 << 17)
        ip = frame[14:]
        if frame[12:14] != b"\x08\x00" or ip[9] != 6:
            continue
        header = 4 * (ip[0] & 15)
        length = int.from_bytes(ip[2:4], "big")
        tcp = ip[header:length]
        for value in tcp[4 * (tcp[12] >> 4):]:
            counts[value] += 1
    elif not sys.stdin.readline():
        break
print(sum(counts), max(counts) / max(1, sum(counts)))
