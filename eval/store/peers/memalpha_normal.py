"""memalpha, durability "normal"."""

from peers import memalpha


class Peer(memalpha.Peer):
    durability = "normal"
