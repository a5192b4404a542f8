"""One line for each test, as the other suites have it."""


def pytest_runtest_logreport(report):
    if report.failed or (report.when == "call" and report.passed):
        print(f"\n{'not ok' if report.failed else 'ok'} {report.nodeid.partition('::')[2]}", flush=True)
