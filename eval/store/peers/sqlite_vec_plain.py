"""sqlite-vec with the user as a plain metadata column: faster to fill, and slower to filter, than with partitions."""

from peers import sqlite_vec


class Peer(sqlite_vec.Peer):
    user_column = "user TEXT"
