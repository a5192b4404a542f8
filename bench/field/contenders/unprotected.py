"""The work alone: what a retry does is done again."""

from work import COMMIT, open_pool, reached, transfer

from .contender import Contender


class Unprotected(Contender):
    title = "the work alone"
    usage = """
    The transaction, and nothing that recognises a retry.
    """

    def __init__(self, place):
        self.pool = open_pool(place.postgres)

    def transfer(self, request):
        with self.pool.connection() as conn:
            answer = transfer(conn, request)
        reached(COMMIT)
        return answer
