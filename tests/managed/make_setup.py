#!/usr/bin/env python3
"""Prints what the golden SQL needs beside the edition: the functions of the extension's setup that fit, and setup.sql."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent
SHARED = """regress_show regress_client_session regress_id regress_told regress_lease_token regress_take regress_token regress_error
regress_message regress_uuid7""".split()

text = (HERE.parent / "pg_regress" / "sql" / "setup.sql").read_text()
print("SET client_min_messages = error;")
for name in SHARED:
    print(re.search(rf"CREATE (?:FUNCTION|TABLE) {name}\b.*?(?:\n\$\$;|\);|;)\n(?=\n|\Z)", text, re.DOTALL).group(0))
print((HERE / "setup.sql").read_text())
