"""A PgBouncer in transaction mode, where consecutive transactions of a connection run on different backends."""

import contextlib
import getpass
import pathlib
import shutil
import subprocess
import tempfile

import servers
from ports import free_port, wait_until_listening

INSTALLED = shutil.which("pgbouncer")


@contextlib.contextmanager
def pgbouncer():
    """The URI of the tests' database behind it."""
    port, there = free_port(), servers.conninfo_to_dict(servers.URI)
    # pgbouncer refuses to run as root.
    user = ["runuser", "-u", "postgres", "--"] if getpass.getuser() == "root" else []
    with tempfile.TemporaryDirectory() as folder:
        configuration = pathlib.Path(folder, "pgbouncer.ini")
        configuration.write_text(
            f"[databases]\n* = host={there['host']} port={there['port']} user={servers.OWNER}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 3\nignore_startup_parameters = extra_float_digits\n"
        )
        configuration.parent.chmod(0o755)
        process = subprocess.Popen([*user, INSTALLED, "-q", configuration])
        try:
            wait_until_listening(port, process)
            yield f"postgresql://127.0.0.1:{port}/{there['dbname']}?user={servers.OWNER}"
        finally:
            process.terminate()
            process.wait()
