"""Where samples are kept: an embedded ClickHouse by default, a server or cluster by a URL, with the same SQL."""
