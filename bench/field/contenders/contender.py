"""What is known of each contender besides its code."""


class Contender:
    # What the page calls it, and how it is used, with the documentation that was followed.
    title: str
    usage: str
    # The server that keeps the record of a request: "postgres", "redis" or, if nothing is recorded, None.
    kept_in: str | None = None
    # Whether the record is committed with the effect.
    one_transaction = False
    # Whether the work is pay() in the server. Then it is pay() that stops there: stops.sql.
    in_server = False
    # Whether a worker, when it starts, goes on with what a killed worker of the same name has left.
    recovers_at_start = False

    @staticmethod
    def prepare(place):
        """Makes what the contender needs in a fresh database."""

    def __init__(self, place):
        """Connects the contender to the servers of this place."""
        raise NotImplementedError

    def transfer(self, request):
        """Makes the transfer once, and answers it each time, or raises `InProgress`."""
        raise NotImplementedError
