# Build, install and test the extension. `make help` lists the targets. Variables:
#
#   PG_CONFIG  the pg_config of the server to build for, 15 to 19 (default: the one on PATH)
#   PROFILE    the cargo profile to build with (default: release)
#   DESTDIR    a directory to install into instead of /
#   HOURS      how many hours the report looks back (default: 6)
#   ARGS       options for the demo and the benchmark (--help lists them)
#   CITUS_SOURCE  the source tree of Citus, or an archive of it, for test-citus

# make splits names at blanks, and what it removes would be another directory.
ifneq ($(words $(CURDIR)),1)
$(error the path of this checkout has a blank: $(CURDIR). Move it to a path without)
endif

PG_CONFIG ?= pg_config
PROFILE ?= release

# Empty where there is no such pg_config. The scripts then say so.
pg_config := $(shell command -v $(PG_CONFIG) 2>/dev/null)
pkglibdir = $(if $(pg_config),$(shell $(pg_config) --pkglibdir))

# One package for each server and profile, since it holds that server's paths.
package = $(CURDIR)/target/package/$(PROFILE)$(subst /,-,$(pkglibdir))

all: $(package).stamp ## build the extension for PG_CONFIG (the default)

# File times decide whether to build, and not cargo, so that `sudo make install` needs no cargo.
$(package).stamp: Cargo.toml Cargo.lock idempotence.control $(shell find src sql -type f)
	@scripts/build.sh $(PG_CONFIG) $(PROFILE) $(package)
	@touch $@

install: all ## install the extension into that server, or below DESTDIR
	@scripts/install_files.sh $(package) "$(DESTDIR)"

uninstall: ## remove the extension's files from that server, or from below DESTDIR
	@scripts/uninstall.sh $(PG_CONFIG) "$(DESTDIR)"

dist: ## make target/dist/idempotence-VERSION.tar.gz of the last commit, with all crates: it builds without network
	@scripts/dist.sh

deb: all ## make target/dist/postgresql-NN-idempotence_VERSION-1_ARCH.deb for that server
	@scripts/package.sh deb $(PG_CONFIG) $(package)

rpm: all ## make target/dist/idempotence_NN-VERSION-1.ARCH.rpm for that server
	@scripts/package.sh rpm $(PG_CONFIG) $(package)

package: all ## make target/dist/idempotence_NN-VERSION.ARCH.tar.gz, to be unpacked in / of another machine
	@scripts/package.sh tar $(PG_CONFIG) $(package)

debian: ## make Debian's source package of the last commit in target/dist
	@scripts/debian.sh

installcheck: ## test the installed extension in the running server (PGHOST, PGPORT, PGUSER); ARGS=regress: a part
	@scripts/installcheck.sh $(PG_CONFIG) $(ARGS)

lint: ## check formatting, clippy, rustdoc, circles of imports, shellcheck, completeness of the golden tests
	@scripts/lint.sh $(PG_CONFIG)

# Of two runs in one checkout the second waits.
test: ## test the extension on the server of PG_CONFIG (default: Debian's PostgreSQL 15), in minutes; does all the set-up
	@mkdir -p target && flock -o target/test.lock scripts/test.sh $(ARGS)

test-all: ## run every suite on PostgreSQL 15 to 19, in up to an hour; says first what it installs, and does all the set-up
	@mkdir -p target && flock -o target/test.lock scripts/test_all.sh $(ARGS)

test-citus: ## test on a Citus cluster: an installed Citus, or the source tree that CITUS_SOURCE names
	@mkdir -p target && flock -o target/test.lock scripts/test_citus.sh $(ARGS)

test-fleet: ## test failover by Patroni, and pgpool-II in front of a standby that lags; does all the set-up itself
	@mkdir -p target && flock -o target/test.lock scripts/test_fleet.sh $(ARGS)

demo: ## run clients with lost replies and killed backends, and prove the result; does all the set-up itself
	@scripts/demo.sh $(ARGS)

bench: ## measure against a solution written by hand; does all the set-up itself
	@scripts/bench.sh $(ARGS)

report: ## say what happened with requests in the last HOURS (6), in 80 columns (PGHOST, PGDATABASE and the like)
	@psql -X -v hours="$(or $(HOURS),6)" -f $(CURDIR)/monitoring/report.sql

# Packages that other programs take. Each goes to target/dist.

pgxn: ## make the archive for PGXN of the last commit
	@scripts/pgxn.sh

# BASE is an image of the server, as buildah knows it, and RUN_AS the numbers of its user and group.
oci: all ## make an image of the extension for PostgreSQL 18 or 19, or with BASE=image one of that server with it
	@scripts/oci.sh $(PG_CONFIG) $(package) "$(BASE)" "$(RUN_AS)"

managed: ## pack the edition for managed services for pg_tle, in target/dist
	@scripts/managed.sh

sbom: ## write what the library is made of, as CycloneDX
	@scripts/third_party.py --sbom
	@bash -c '. scripts/common.sh && write_sums'

clean: ## remove all that was built in this checkout
	@scripts/clean.sh

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: all managed install uninstall dist deb rpm package debian installcheck lint test test-all test-citus test-fleet demo bench report pgxn oci sbom clean help
